"""A trained policy as a partner in a chat: what :mod:`rl4dialog.serving` asks of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rl4dialog.core.errors import ConfigError, RL4DialogError
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.functional.replies import Replies
from rl4dialog.inference.loading import LoadedPolicy
from rl4dialog.policies.streaming import PartialReply, stream_reply
from rl4dialog.policies.token_details import TokenDetails
from rl4dialog.rewards.scoring import ReplyScores
from rl4dialog.training.building.generation import without_beams

_logger = logging.getLogger(__name__)


class ChatAgent:
    """A policy that takes part in conversations.

    Args:
        loaded: The policy.
        name: For people, and for records of what it said.

    Raises:
        ConfigError: If the run's data are no dialogues.
    """

    def __init__(self, loaded: LoadedPolicy, name: str) -> None:
        self.name, self._loaded = name, loaded
        if loaded.dialogue_format is None:
            raise ConfigError(
                f"datapool {loaded.config.datapool.id!r} of {name} holds no dialogues, so there is no chat; "
                "rl4dialog generate replies to its prompts"
            )
        self.dialogue_format: DialogueFormat = loaded.dialogue_format
        left_out = loaded.generation_kwargs.keys() - self.generation_kwargs.keys()
        if left_out:
            _logger.warning(
                "%s is evaluated with %s, which conversations refuse; here it decodes without",
                name,
                ", ".join(sorted(left_out)),
            )

    @property
    def generation_kwargs(self) -> Mapping[str, Any]:
        """How replies are sampled if nothing else is said: as in the run's evaluations, without their beams."""
        return without_beams(self._loaded.generation_kwargs)

    def stream(self, prompt: str, seed: int | None = None, **generation_kwargs: Any) -> Iterator[PartialReply]:
        """Reply to a prompt as ``generate`` does, token by token; the last item is the whole reply."""
        kwargs = {**self.generation_kwargs, **generation_kwargs}
        return stream_reply(self._loaded.policy, self._loaded.prompt_ids(prompt), seed, **kwargs)

    def score(self, prompt: str, reply: str, meta_info: dict[str, Any], on_error: str = "raise") -> ReplyScores:
        """The run's reward of one reply, and its parts. There are no references in a chat.

        Args:
            prompt: What the model read.
            reply: What it said.
            meta_info: What rewards may read of the conversation.
            on_error: With ``mask``, a part that fails is NaN.

        Raises:
            ConfigError: If the run has no reward.
            RewardError: If the reward fails, for want of references or labels, say.
        """
        return self._loaded.scores([prompt], [reply], meta_infos=[meta_info], on_error=on_error)

    @torch.no_grad()
    def token_details(self, prompt: str, token_ids: Sequence[int]) -> TokenDetails:
        """What policy, critic and reference say about the tokens of a reply.

        All are those of the run: its temperature, the critic of its newest checkpoint, the model that it began with.
        """
        policy = self._loaded.policy
        batch = Replies.from_ids([self._loaded.prompt_ids(prompt)], [token_ids], policy.device)
        log_probs = policy.sequence_log_probs(batch)[0]
        texts = [str(policy.end_of_turn.tokenizer.decode([id])) for id in token_ids]
        details = TokenDetails(texts, log_probs.tolist())

        def value() -> Tensor:
            return self._loaded.policy_with_critic.predict_sequence_values(batch)[0]

        def kl() -> Tensor:
            return log_probs - self._loaded.reference_policy.reference_log_probs(batch)[0]

        details.values = _numbers(value, "values", details.missing)
        details.kl = _numbers(kl, "kl", details.missing)
        return details


def _numbers(find: Callable[[], Tensor], name: str, missing: dict[str, str]) -> list[float] | None:
    try:
        found: list[float] = find().tolist()
        return found
    except RL4DialogError as error:
        missing[name] = str(error)
        return None
