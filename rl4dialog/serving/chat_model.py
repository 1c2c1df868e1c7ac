"""The interface of a chat model. This package does not import training code; the caller passes the model in."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from rl4dialog.core.errors import RewardError, RL4DialogError
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.policies.streaming import PartialReply
from rl4dialog.policies.token_details import TokenDetails
from rl4dialog.rewards.scoring import ReplyScores


class ChatModel(Protocol):
    """A model that generates replies."""

    @property
    def name(self) -> str:
        """Name of the run or the model, for display and for records."""

    @property
    def dialogue_format(self) -> DialogueFormat:
        """Format that turns the conversation into prompts."""

    @property
    def generation_kwargs(self) -> Mapping[str, Any]:
        """Default sampling settings."""

    @property
    def persona(self) -> str | None:
        """Persona or system message that it was trained with; ``None`` for none or many."""

    @property
    def beta(self) -> float | None:
        """Weight of the values that guide the model; ``None`` if none do."""

    def stream(
        self, prompt: str, seed: int | None = None, beta: float | None = None, **generation_kwargs: Any
    ) -> Iterator[PartialReply]:
        """Generate a reply token by token; the last item is the whole reply.

        Args:
            prompt: The prompt.
            seed: Random seed of the sampling.
            beta: Overrides :attr:`beta`.
            generation_kwargs: Overrides of :attr:`generation_kwargs`.
        """

    def n_prompt_tokens(self, prompt: str) -> int:
        """Return the number of tokens of a prompt as the model reads it, that is, without dropped utterances.

        Raises:
            DataError: If its beginning, such as a persona, leaves no room for an utterance.
        """

    def score(self, prompt: str, reply: str, meta_info: dict[str, Any], on_error: str = "raise") -> ReplyScores:
        """Compute the reward of one reply, and its parts.

        Args:
            prompt: The prompt.
            reply: The model's reply.
            meta_info: Meta data of the conversation, for rewards that read it.
            on_error: With ``mask``, a part that fails is NaN.

        Raises:
            ConfigError: If there is no reward.
            RewardError: If it fails, for example because a chat has no references and no partner.
        """

    def token_details(self, prompt: str, token_ids: Sequence[int], beta: float | None = None) -> TokenDetails:
        """Compute the policy's, critic's and reference's values for each token of a reply.

        Args:
            prompt: The prompt.
            token_ids: Tokens of the reply.
            beta: Overrides :attr:`beta`.
        """


class RewardInWords(NamedTuple):
    """The reward of a reply as text.

    Attributes:
        text: The reward and its parts, as far as they could be computed.
        missing: The parts that could not be computed; empty if all could.
        why: The reason; empty if it was already reported.
    """

    text: str = ""
    missing: str = ""
    why: str = ""


def reward_in_words(
    model: ChatModel, prompt: str, reply: str, meta_info: dict[str, Any], told: Collection[str] = ()
) -> RewardInWords:
    """Format the reward of one reply and its parts, as far as they can be computed.

    Args:
        model: The model that has the reward.
        prompt: The prompt.
        reply: The model's reply.
        meta_info: Meta data of the conversation, for rewards that read it.
        told: Missing parts that were already reported.
    """
    try:
        # One part may need a reference text while the others do not.
        scores = model.score(prompt, reply, meta_info, on_error="mask")
    except RL4DialogError as error:
        missing = "all parts"
        return RewardInWords(missing=missing, why="" if missing in told else f"no reward: {error}")
    known = {name: values[0] for name, values in scores.parts.items() if not math.isnan(values[0])}
    parts = ", ".join(f"{name} {value:.3f}" for name, value in known.items())
    missing = ", ".join(name for name in scores.parts if name not in known)
    if not missing:
        return RewardInWords(f"reward {scores.total[0]:.3f} ({parts})")
    why = ""
    if missing not in told:
        why = f"cannot compute {missing} in this chat, which has no references and no partner"
        try:
            model.score(prompt, reply, meta_info)
        except RewardError as error:
            why += f": {error}"
    return RewardInWords(f"available reward parts: {parts}" if parts else "", missing, why)
