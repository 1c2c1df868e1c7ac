"""What a chat needs of a model. This package knows no training: whoever starts a chat hands a model in."""

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
    """A model that replies."""

    @property
    def name(self) -> str:
        """Of the run or the model, for people and for records."""

    @property
    def dialogue_format(self) -> DialogueFormat:
        """Writes prompts from what was said."""

    @property
    def generation_kwargs(self) -> Mapping[str, Any]:
        """How replies are sampled if nothing else is said."""

    def stream(self, prompt: str, seed: int | None = None, **generation_kwargs: Any) -> Iterator[PartialReply]:
        """Reply to a prompt; the last item is the whole reply.

        Args:
            prompt: What the model reads.
            seed: Of the sampling.
            generation_kwargs: Each in place of the same one of :attr:`generation_kwargs`.
        """

    def score(self, prompt: str, reply: str, meta_info: dict[str, Any], on_error: str = "raise") -> ReplyScores:
        """The reward of one reply, and its parts.

        Args:
            prompt: What the model read.
            reply: What it said.
            meta_info: What rewards may read of the conversation.
            on_error: With ``mask``, a part that fails is NaN.

        Raises:
            ConfigError: If there is no reward.
            RewardError: If it fails, for want of what a chat has not, say.
        """

    def token_details(self, prompt: str, token_ids: Sequence[int]) -> TokenDetails:
        """What policy, critic and reference say about the tokens of a reply."""


class RewardInWords(NamedTuple):
    """The reward of a reply, for people.

    Attributes:
        text: The reward and its parts, as far as there are any.
        missing: What could not be computed; empty if all could.
        why: Why not; empty where that has been told before.
    """

    text: str = ""
    missing: str = ""
    why: str = ""


def reward_in_words(
    model: ChatModel, prompt: str, reply: str, meta_info: dict[str, Any], told: Collection[str] = ()
) -> RewardInWords:
    """The reward of one reply and its parts, as far as there are any.

    Args:
        model: Has the reward.
        prompt: What the model read.
        reply: What it said.
        meta_info: What rewards may read of the conversation.
        told: What is known to be missing, and why.
    """
    try:
        # One part may want a reference to compare with, and the others do without.
        scores = model.score(prompt, reply, meta_info, on_error="mask")
    except RL4DialogError as error:
        missing = "all of it"
        return RewardInWords(missing=missing, why="" if missing in told else f"no reward: {error}")
    known = {name: values[0] for name, values in scores.parts.items() if not math.isnan(values[0])}
    parts = ", ".join(f"{name} {value:.3f}" for name, value in known.items())
    missing = ", ".join(name for name in scores.parts if name not in known)
    if not missing:
        return RewardInWords(f"reward {scores.total[0]:.3f} ({parts})")
    why = ""
    if missing not in told:
        why = f"no reward from {missing} in this chat (it has no references)"
        try:
            model.score(prompt, reply, meta_info)
        except RewardError as error:
            why += f": {error}"
    return RewardInWords(f"of the reward: {parts}" if parts else "", missing, why)
