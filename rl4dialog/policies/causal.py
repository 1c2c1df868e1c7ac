"""Actor-critic policy over any decoder-only language model (``AutoModelForCausalLM``)."""

from __future__ import annotations

import inspect
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from rl4dialog.functional.masks import SHARING_COST, left_aligned, position_ids_from_mask, rows_to_share
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.decoding import (
    CausalDecoder,
    Decoder,
    Head,
    Obs,
    PromptCache,
    UncachedCausalDecoder,
    cache_holds,
    keeps_states,
)


class KeepsNothing(DynamicCache):
    """A cache that is always empty. Without any, transformers looks at the positions, for which a GPU waits."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return key_states, value_states


class CausalLMActorCriticPolicy(LMActorCriticPolicy):
    """Decoder-only policy, critic and reference.

    Arguments: see :class:`LMActorCriticPolicy`.
    """

    auto_class = AutoModelForCausalLM
    joins_turns = True

    def _trunk(self, model: PreTrainedModel) -> nn.Module:
        return model.base_model

    def _decoder(self, trunk: Any, obs: Obs, head: Head | None = None, cache: PromptCache | None = None) -> Decoder:
        prompts = obs["prompt_ids"], obs["prompt_mask"]
        if self._cache_holds:
            return CausalDecoder(trunk, *prompts, head, cache)
        return UncachedCausalDecoder(trunk, *prompts, head)

    def _response_hidden(self, trunk: nn.Module, replies: Replies) -> Tensor:
        if self.share_prompts and self._cache_can_be_shared:
            device = replies.prompt_ids.device
            prompt_ids, prompt_mask = map(torch.from_numpy, replies.on_host[:2])
            if shared := rows_to_share(prompt_ids, prompt_mask, SHARING_COST.get(device.type, 0)):
                on_device = (rows.to(device, non_blocking=True) for rows in shared)
                return self._hidden_after_shared_prompts(trunk, replies, *on_device)
        ids = torch.cat([replies.prompt_ids, replies.response_ids[:, :-1]], dim=1)
        # The last token of a reply predicts no needed token, so the model does not read it.
        mask = torch.cat([replies.prompt_mask, replies.token_mask[:, 1:]], dim=1)
        prompts = replies.on_host.prompt.sum(axis=1)
        of_rows, steps = np.nonzero(replies.on_host.response)
        places = (torch.from_numpy(each) for each in (of_rows, prompts[of_rows] - 1 + steps))
        rows, columns = (each.to(ids.device, non_blocking=True) for each in places)
        longest = (prompts + replies.on_host.token[:, 1:].sum(axis=1)).max()
        # Where a model reads the same with a cache, one that keeps nothing says that no row holds several texts.
        config: Any = trunk.config
        cache = KeepsNothing(config=config) if self._cache_can_be_shared else None
        return self._hidden(trunk, ids, mask, int(longest), cache)[rows, columns]

    def _hidden_after_shared_prompts(
        self, trunk: nn.Module, replies: Replies, first: Tensor, repeats: Tensor
    ) -> Tensor:
        """`_response_hidden`, reading each of U prompts, in the rows ``first`` (U,), once for its ``repeats`` (B,)."""
        start = replies.prompt_ids.shape[1] - max(int(replies.on_host.prompt.sum(axis=1).max()), 1)
        prompt_ids, prompt_mask = replies.prompt_ids[:, start:], replies.prompt_mask[:, start:]
        ids, mask = replies.response_ids[:, :-1], replies.token_mask[:, :-1]
        positions = position_ids_from_mask(torch.cat([prompt_mask, mask], dim=1))
        at_prompt, at_reply = positions[first, : prompt_ids.shape[1]], positions[:, prompt_ids.shape[1] :]
        cache = DynamicCache(config=self._policy_model.config)

        def run(ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
            kwargs = {"position_ids": positions} if self._takes_positions else {}
            output = trunk(input_ids=ids, attention_mask=mask.long(), past_key_values=cache, use_cache=True, **kwargs)
            return output.last_hidden_state

        before_reply = run(prompt_ids[first], prompt_mask[first], at_prompt)[repeats, -1:]
        if not ids.shape[1]:
            return before_reply[replies.coordinates]
        cache.batch_select_indices(repeats)
        within_reply = run(ids, torch.cat([prompt_mask, mask], dim=1), at_reply)
        return torch.cat([before_reply, within_reply], dim=1)[replies.coordinates]

    @staticmethod
    def _hidden(
        trunk: nn.Module, ids: Tensor, mask: Tensor, longest: int | None = None, cache: KeepsNothing | None = None
    ) -> Tensor:
        """Hidden states of each row's real tokens, with positions from 0 and padding on the right. Shape (B, L, H)."""
        # Causal attention ignores padding on the right. Without a mask, the fastest attention kernel is used.
        ids, _ = left_aligned(ids, mask, longest)
        kwargs = {} if cache is None else {"past_key_values": cache}
        return trunk(input_ids=ids, use_cache=False, **kwargs).last_hidden_state

    @cached_property
    def _cache_holds(self) -> bool:
        return cache_holds(self._policy_model)

    @cached_property
    def _cache_can_be_shared(self) -> bool:
        return self._cache_holds and not keeps_states(self._policy_model)

    @cached_property
    def _takes_positions(self) -> bool:
        return "position_ids" in inspect.signature(self._trunk(self._policy_model).forward).parameters
