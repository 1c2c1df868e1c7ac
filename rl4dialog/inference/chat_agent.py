"""A trained policy as a chat model for :mod:`rl4dialog.serving`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rl4dialog.core.errors import ConfigError, RL4DialogError
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.functional.replies import Replies
from rl4dialog.inference.loading import LoadedPolicy, check_learns_v
from rl4dialog.policies.answering import PartialReply, stream_reply, whole_reply
from rl4dialog.policies.generation import TokenDetails, without_beams
from rl4dialog.scores.scoring import ReplyScores

_logger = logging.getLogger(__name__)


class ChatAgent:
    """A policy that takes part in conversations."""

    def __init__(self, loaded: LoadedPolicy, name: str) -> None:
        self.name, self._loaded = name, loaded
        if loaded.dialogue_format is None:
            raise ConfigError(
                f"datapool {loaded.config.datapool.id!r} of {name} contains no dialogues, so chat is not available; "
                "use rl4dialog generate instead"
            )
        if loaded.config.task is not None:
            raise ConfigError(
                f"{name} was trained for the task {loaded.config.task.id}: its prompts have a belief and counts of the "
                f"database; to talk to it, use rl4dialog chat, or rl4dialog ui without --compare and --teach"
            )
        self.dialogue_format: DialogueFormat = loaded.dialogue_format
        left_out = loaded.generation_kwargs.keys() - self.generation_kwargs.keys()
        if left_out:
            _logger.warning(
                "%s is evaluated with %s, which chats do not support; the chat ignores it",
                name,
                ", ".join(sorted(left_out)),
            )

    @property
    def generation_kwargs(self) -> Mapping[str, Any]:
        """Default sampling settings: those of the run's evaluations, without beam search."""
        return without_beams(self._loaded.generation_kwargs)

    @property
    def persona(self) -> str | None:
        return self._loaded.persona

    @property
    def beta(self) -> float | None:
        return self._loaded.beta

    def stream(
        self, prompt: str, seed: int | None = None, beta: float | None = None, **generation_kwargs: Any
    ) -> Iterator[PartialReply]:
        """Generate a reply token by token, as ``generate`` does; the last item is the whole reply.

        A policy that searches for replies (``guidance.search``) gives only the whole one.
        """
        loaded, kwargs = self._loaded, {**self.generation_kwargs, **generation_kwargs}
        ids = loaded.prompt_ids(prompt)
        if loaded.searches:
            with loaded.guided_by(beta):
                found = whole_reply(loaded.policy, ids, seed, **kwargs)
            yield found
            return
        parts = stream_reply(loaded.policy, ids, seed, **kwargs)
        while True:
            with loaded.guided_by(beta):  # not around the yield, which would affect other replies
                part = next(parts, None)
            if part is None:
                return
            yield part

    def n_prompt_tokens(self, prompt: str) -> int:
        return len(self._loaded.prompt_ids(prompt))

    def score(self, prompt: str, reply: str, meta_info: dict[str, Any], on_error: str = "raise") -> ReplyScores:
        """Compute the run's reward of one reply and its parts, without references and partner."""
        return self._loaded.scores([prompt], [reply], meta_infos=[meta_info], on_error=on_error)

    @torch.no_grad()
    def token_details(self, prompt: str, token_ids: Sequence[int], beta: float | None = None) -> TokenDetails:
        """Compute log-probability, value, KL and advantage for each token of a reply.

        They use the run's temperature. A policy that values guide has its values, and its language model is the
        reference. Others have the critic of their latest checkpoint, and the initial model of the run as the reference.
        """
        policy = self._loaded.policy
        batch = Replies.from_ids([self._loaded.prompt_ids(prompt)], [token_ids], policy.device)
        with self._loaded.guided_by(beta):
            log_probs = policy.sequence_log_probs(batch)[0]
        texts = [str(policy.end_of_turn.tokenizer.decode([id])) for id in token_ids]
        details = TokenDetails(texts, log_probs.tolist())

        def value() -> Tensor:
            return self._loaded.policy_with_critic.predict_sequence_values(batch)[0]

        def kl() -> Tensor:
            if self.beta is not None:
                return log_probs - self._loaded.guiding_policy.prior_log_probs(batch)[0]
            return log_probs - self._loaded.reference_policy.reference_log_probs(batch)[0]

        def advantage() -> Tensor:
            advantages: Tensor = self._loaded.guiding_policy.advantages(batch)[0]
            check_learns_v(self._loaded.config, "advantages")
            return advantages

        details.values = _numbers(value, "values", details.missing)
        details.kl = _numbers(kl, "kl", details.missing)
        details.advantages = _numbers(advantage, "advantages", details.missing)
        return details


def _numbers(find: Callable[[], Tensor], name: str, missing: dict[str, str]) -> list[float] | None:
    try:
        found: list[float] = find().tolist()
        return found
    except RL4DialogError as error:
        missing[name] = str(error)
        return None
