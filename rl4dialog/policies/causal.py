"""Actor-critic policy over any decoder-only language model (``AutoModelForCausalLM``)."""

from __future__ import annotations

import inspect
from functools import cached_property

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from rl4dialog.functional.masks import position_ids_from_mask, trim_left_padding
from rl4dialog.policies.base import LMActorCriticPolicy, SequenceBatch
from rl4dialog.policies.decoding import CausalDecoder


class CausalLMActorCriticPolicy(LMActorCriticPolicy):
    """Decoder-only policy, critic and reference. Arguments: see :class:`LMActorCriticPolicy`."""

    auto_class = AutoModelForCausalLM

    def _trunk(self, model: PreTrainedModel) -> nn.Module:
        return model.base_model

    def _decoder(self, model: PreTrainedModel, obs: dict[str, Tensor]) -> CausalDecoder:
        return CausalDecoder(model, obs["prompt_ids"], obs["prompt_mask"])

    def _response_hidden(self, trunk: nn.Module, batch: SequenceBatch) -> Tensor:
        prompt_ids, prompt_mask = trim_left_padding(batch.prompt_ids, batch.prompt_mask)
        # The last response token predicts nothing that is needed, so it does not enter the model.
        ids = torch.cat([prompt_ids, batch.response_ids[:, :-1]], dim=1)
        mask = torch.cat([prompt_mask, batch.response_mask[:, :-1]], dim=1)
        return self._hidden(trunk, ids, mask)[:, prompt_ids.shape[1] - 1 :][batch.response_mask]

    def _next_hidden(self, trunk: nn.Module, obs: dict[str, Tensor]) -> Tensor:
        ids = torch.cat([obs["prompt_ids"], obs["context_ids"]], dim=1).long()
        mask = torch.cat([obs["prompt_mask"], obs["context_mask"]], dim=1).bool()
        last = mask.long().cumsum(dim=1).argmax(dim=1)  # prompts end, and contexts begin, without a gap
        return self._hidden(trunk, ids, mask)[torch.arange(len(ids), device=ids.device), last]

    def _hidden(self, trunk: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
        positions = {"position_ids": position_ids_from_mask(mask)} if self._takes_positions else {}
        output = trunk(input_ids=ids, attention_mask=mask.long(), use_cache=False, **positions)
        hidden: Tensor = output.last_hidden_state
        return hidden

    @cached_property
    def _takes_positions(self) -> bool:
        return "position_ids" in inspect.signature(self._trunk(self._policy_model).forward).parameters
