"""Generation with vLLM, using the policy's current weights.

vLLM only selects the tokens. The detector that the environment uses also finds the end of a reply here, and
log-probabilities are recomputed by the training forward pass. Because the two implementations round differently, a
ratio of probabilities from both would not be 1 before the first update (https://fengyao.notion.site/off-policy-rl).
The difference is logged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rl4dialog.functional.replies import Replies
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.policies.vllm_engine import Request, VLLMEngine, Written, check_settings

if TYPE_CHECKING:
    from rl4dialog.text.end_of_turn import EndOfTurn


class VLLMBackend:
    """Generates for a causal policy; see :class:`~rl4dialog.policies.generation.GenerationBackend`.

    The seeds of the replies are drawn from torch's random state. The same state results in the same replies, except for
    rounding differences between batches.

    Args:
        engine: vLLM engine. It receives the policy's weights before its first use.
    """

    def __init__(self, engine: VLLMEngine) -> None:
        self._engine = engine
        self._outdated = True

    def weights_will_change(self) -> None:
        """Reload the policy's weights before the next generation."""
        self._engine.rest()
        self._outdated = True

    def generate(
        self, policy: LMActorCriticPolicy, obs: dict[str, Tensor], settings: GenerationSettings, limit: int
    ) -> Replies:
        """Generate one reply per prompt, like the policy's own sampler.

        Raises:
            ConfigError: If vLLM does not support a setting.
            GenerationError: If the engine fails.
        """
        check_settings(settings, "generation_kwargs")
        if self._outdated:
            self._engine.load(_weights(policy))
            self._outdated = False
        prompt_mask = obs["prompt_mask"].bool()
        prompts = [ids[mask].tolist() for ids, mask in zip(obs["prompt_ids"].cpu(), prompt_mask.cpu(), strict=True)]
        written = self._write(prompts, settings, policy.end_of_turn, limit)

        replies = Replies.from_ids(prompts, [reply.ids for reply in written], policy.device)
        replies.log_probs = replies.unmasked_log_probs = replies.computed(policy.sequence_log_probs)
        # vLLM reports a greedy token's log-probability without the temperature, and greedy decoding draws no sample.
        if settings.do_sample:
            sampled = torch.tensor([log_prob for reply in written for log_prob in reply.log_probs])
            replies.sampler_log_probs = replies.scattered(sampled.to(policy.device))
        return replies

    def _write(
        self, prompts: list[list[int]], settings: GenerationSettings, end_of_turn: EndOfTurn, max_new_tokens: int
    ) -> list[Written]:
        replies = [Written([], []) for _ in prompts]
        unfinished = list(range(len(prompts)))
        while unfinished:
            seeds = torch.randint(2**31, (len(unfinished),)).tolist()
            requests = [Request(prompts[i], replies[i].ids, seed) for i, seed in zip(unfinished, seeds, strict=True)]
            written = self._engine.write(requests, settings, max_new_tokens)
            unfinished = [
                i
                for i, new in zip(unfinished, written, strict=True)
                if not _append(replies[i], new, end_of_turn, max_new_tokens)
            ]
        return replies


def _append(reply: Written, new: Written, end_of_turn: EndOfTurn, max_new_tokens: int) -> bool:
    """Extend a reply up to its end. Returns whether the end was reached."""
    for token, log_prob in zip(new.ids, new.log_probs, strict=True):
        reply.ids.append(token)
        reply.log_probs.append(log_prob)
        if end_of_turn.is_end(reply.ids) or len(reply.ids) == max_new_tokens:
            return True
    return False


def _weights(policy: LMActorCriticPolicy) -> list[tuple[str, Tensor]]:
    """Weights as in a checkpoint of the language model: merged adapters, buffers included, tied weights only once."""
    model = policy.language_model if policy.lora is None else policy.lora.merged()
    by_memory: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict().items():
        by_memory.setdefault(tensor.data_ptr(), (name, tensor))
    return list(by_memory.values())
