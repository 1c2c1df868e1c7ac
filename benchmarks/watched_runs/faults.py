"""Rewards, partners and policies with a fault, for runs that are made to go wrong."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.task import FailingReward
from rl4dialog import Partner, PartnerRegistry, PolicyRegistry, RewardFunctionRegistry
from rl4dialog.policies.causal import CausalLMActorCriticPolicy

RewardFunctionRegistry.register("failing_reward")(FailingReward)


@RewardFunctionRegistry.register("strict_reward")
def strict_reward(prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
    """Share of long words, which fails for replies that contain none: the mean of no numbers."""
    lengths = [len(word) for word in gen_text.split() if len(word) > 5]
    return sum(lengths) / len(lengths) / 10


@RewardFunctionRegistry.register("mute_judge")
def mute_judge(prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
    """A judge whose answers cannot be read, and stand for the middle of the scale."""
    return 0.5


@RewardFunctionRegistry.register("word_count")
def word_count(prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
    """Share of a reply's words that are the most frequent one."""
    words = gen_text.lower().split()
    return max(map(words.count, words)) / 8 if words else 0.0


class _Random(Partner):
    """A partner with a random generator of its own."""

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._rng = random.Random(seed)


@PartnerRegistry.register("unreliable_partner")
class UnreliablePartner(_Random):
    """A partner whose server fails at times."""

    def __init__(self, share: float) -> None:
        self._share = share

    def reply(self, history: list[str]) -> str:
        if self._rng.random() < self._share:
            raise ConnectionError("the partner's server does not answer")
        return self._rng.choice(["really?", "i see.", "what do you think?"])


@PartnerRegistry.register("parrot")
class Parrot(_Random):
    """A partner that repeats some utterances."""

    def __init__(self, share: float) -> None:
        self._share = share

    def reply(self, history: list[str]) -> str:
        return history[-1] if self._rng.random() < self._share else "i see."


@PolicyRegistry.register("other_temperature_policy")
class OtherTemperaturePolicy(CausalLMActorCriticPolicy):
    """A policy that samples at one temperature and trains at another."""

    def _logits(self, replies: Any, policy_hidden: Tensor, ids: Tensor | None = None) -> Tensor:
        logits = super()._logits(replies, policy_hidden, ids)
        return logits / 1.2 if torch.is_grad_enabled() else logits


@PolicyRegistry.register("dropout_policy")
class DropoutPolicy(CausalLMActorCriticPolicy):
    """A policy with dropout in its updates."""

    def _logits(self, replies: Any, policy_hidden: Tensor, ids: Tensor | None = None) -> Tensor:
        return super()._logits(replies, nn.functional.dropout(policy_hidden, 0.1, torch.is_grad_enabled()), ids)


@PolicyRegistry.register("filtered_reference_policy")
class FilteredReferencePolicy(CausalLMActorCriticPolicy):
    """A policy whose reference is normalized over its 20 likeliest tokens, as a sampler with ``top_k`` does."""

    @torch.no_grad()
    def reference_log_probs(self, replies: Any) -> Tensor:
        with self.reference() as model:
            logits = self._head(model, self._hidden_states(self._trunk(model), replies))
        total = logits.logsumexp(dim=-1) - logits.topk(20).values.logsumexp(dim=-1)
        return super().reference_log_probs(replies) + replies.scattered(total)


@PolicyRegistry.register("scaled_reference_policy")
class ScaledReferencePolicy(CausalLMActorCriticPolicy):
    """A policy whose reference applies a temperature to log-probabilities instead of logits."""

    def reference_log_probs(self, replies: Any) -> Tensor:
        return super().reference_log_probs(replies) / 1.1
