"""Policies restricted to likely tokens by a mask policy (NLPO; Ramamurthy et al. 2022, arXiv 2210.01241).

The mask policy is a lagging copy of the trained one. The mask is part of the policy's distribution: in sampling, in
log-probabilities and in entropies. It is recomputed in every forward pass and never stored. Rounding differs between
passes, above all in bf16, so a token at the edge of the mask may be allowed in one pass and not in the next. Sampled
tokens therefore always count as allowed when they are scored.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl4dialog.core.arguments import Count, Positive
from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.log_probs import mask_logits
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.causal import CausalLMActorCriticPolicy
from rl4dialog.policies.decoding import Obs
from rl4dialog.policies.generation import GenerationSettings, StepEditor
from rl4dialog.policies.seq2seq import Seq2SeqLMActorCriticPolicy

MaskType = Literal["learned_top_p", "learned_top_k", "reference_top_p", "reference_top_k"]


class MaskableMixin(LMActorCriticPolicy):
    """Mixin for a policy class.

    Args:
        top_mask: Probability mass (top-p) or number of tokens (top-k) that the mask allows.
        mask_type: ``learned_top_p`` or ``learned_top_k`` for a mask policy that follows the trained one,
            ``reference_top_p`` or ``reference_top_k`` for the frozen reference as mask policy.
        min_tokens_to_keep: Minimum number of tokens that a top-p mask allows.
        target_update_iterations: Number of iterations between updates of the mask policy with the trained weights.
    """

    maskable = True
    _n_iterations: Tensor

    def __init__(
        self,
        *args: Any,
        top_mask: Positive = 0.9,
        mask_type: MaskType = "learned_top_p",
        min_tokens_to_keep: Count = 1,
        target_update_iterations: Count = 20,
        **kwargs: Any,
    ) -> None:
        self._top_mask, self._mask_type, self._min_tokens_to_keep = top_mask, mask_type, min_tokens_to_keep
        self._target_update_iterations = target_update_iterations
        super().__init__(*args, **kwargs)
        self._always_allowed = sorted(self.end_of_turn.single_token_ids)
        self.register_buffer("_n_iterations", torch.zeros((), dtype=torch.long))

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        super().check_arguments(args)
        top_mask, mask_type = args.get("top_mask", 0.9), args.get("mask_type", "learned_top_p")
        if mask_type.startswith("reference") and (reference := args.get("reference")) not in (None, "initial"):
            problem = f"{mask_type} needs the initial model, but alg.policy.args.reference is {reference}"
            raise ConfigError(f"alg.policy.args.mask_type: {problem}; choose a learned mask, or reference: initial")
        is_p = mask_type.endswith("top_p")
        if top_mask > 1 if is_p else top_mask < 1 or int(top_mask) != top_mask:
            wanted = "above 0 and at most 1 for top_p" if is_p else "a whole number of tokens for top_k"
            raise ConfigError(f"alg.policy.args.top_mask must be {wanted}, not {top_mask!r}")

    def _build_models(self, model: PreTrainedModel) -> None:
        super()._build_models(model)
        self._learned_mask_model = None
        if self._mask_type.startswith("learned"):
            self._learned_mask_model = copy.deepcopy(model).requires_grad_(False)

    def mask_model(self) -> AbstractContextManager[PreTrainedModel]:
        """Provide the language model that defines the mask."""
        return self.reference() if self._learned_mask_model is None else nullcontext(self._learned_mask_model)

    def states(self) -> dict[str, dict[str, Tensor]]:
        state = {"_n_iterations": self._n_iterations}
        if self._learned_mask_model is not None:
            for name, parameter in self._learned_mask_model.named_parameters():
                state[f"_learned_mask_model.{name}"] = parameter
        return {**super().states(), "mask": state}

    def _beam_search(self, obs: Obs, settings: GenerationSettings, limit: int) -> Replies:
        problem = f"generation_kwargs.num_beams is {settings.num_beams}, which is not supported with NLPO's mask"
        raise ConfigError(f"{problem}, which is computed token by token in rl4dialog's own sampler; remove num_beams")

    def end_iteration(self) -> bool:
        """Count an iteration and update the mask policy if it is due. Returns whether it was updated."""
        self._n_iterations += 1
        is_due = self._learned_mask_model is not None and not int(self._n_iterations) % self._target_update_iterations
        if is_due:
            self._learned_mask_model.load_state_dict(self._policy_model.state_dict())  # type: ignore[union-attr]
        return is_due

    @torch.no_grad()
    def allowed_tokens(self, logits: Tensor) -> Tensor:
        """True at tokens that the mask policy's logits allow, and at all that end a reply. Shape (N, V) -> (N, V)."""
        probabilities, order = (logits / self.settings.temperature).softmax(dim=-1).sort(dim=-1, descending=True)
        # If end tokens are suppressed for a minimum length, another token must be allowed.
        n_least = len(self._always_allowed) + 1 if self.settings.min_length else 1
        if self._mask_type.endswith("top_k"):
            n_kept = max(int(self._top_mask), n_least)
            kept = torch.arange(order.shape[-1], device=order.device).expand_as(order) < n_kept
        else:
            # Keep the token that crosses the threshold, as in nucleus sampling.
            kept = probabilities.cumsum(dim=-1) - probabilities < self._top_mask
            if self._top_mask == 1:  # regardless of rounding errors in the sum
                kept = torch.ones_like(kept)
            kept[..., : max(self._min_tokens_to_keep, n_least)] = True
        allowed = torch.zeros_like(kept).scatter(-1, order, kept)
        allowed[..., self._always_allowed] = True
        return allowed

    def _logits(self, replies: Replies, policy_hidden: Tensor, ids: Tensor | None = None) -> Tensor:
        with torch.no_grad(), self.mask_model() as model:
            allowed = self.allowed_tokens(self._head(model, self._hidden_states(self._trunk(model), replies)))
        if ids is not None:
            allowed.scatter_(-1, ids.unsqueeze(-1), True)
        return mask_logits(super()._logits(replies, policy_hidden), allowed)

    def _step_editors(self, obs: Obs, settings: GenerationSettings) -> list[StepEditor]:
        return [*super()._step_editors(obs, settings), MaskEditor(self, obs)]


class MaskEditor(StepEditor):
    """Applies the mask policy during generation, with its own KV cache."""

    def __init__(self, policy: MaskableMixin, obs: Obs) -> None:
        self._policy = policy
        with policy.mask_model() as model:
            super().__init__(policy._model_decoder(model, obs))

    def edit(self, logits: Tensor, last_ids: Tensor | None, hidden: Tensor) -> Tensor:
        assert self._decoder is not None
        with self._policy.mask_model():
            return mask_logits(logits, self._policy.allowed_tokens(self._decoder.next_logits(last_ids)))


class MaskableCausalLMActorCriticPolicy(MaskableMixin, CausalLMActorCriticPolicy):
    """Decoder-only policy under a mask, for NLPO."""


class MaskableSeq2SeqLMActorCriticPolicy(MaskableMixin, Seq2SeqLMActorCriticPolicy):
    """Encoder-decoder policy under a mask, for NLPO."""
