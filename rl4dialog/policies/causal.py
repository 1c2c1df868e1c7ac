"""Actor-critic policy over any decoder-only language model (``AutoModelForCausalLM``)."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rl4dialog.functional.log_probs import token_entropy, token_log_probs
from rl4dialog.functional.masks import position_ids_from_mask, trim_left_padding
from rl4dialog.policies.base import LMActorCriticPolicy, SequenceBatch
from rl4dialog.policies.generation import GenerationSettings, Utterances, generate_replies
from rl4dialog.policies.lm_head import head_is_plain, lm_logits


class CausalLMActorCriticPolicy(LMActorCriticPolicy):
    """Decoder-only policy, critic and reference. Arguments: see :class:`LMActorCriticPolicy`."""

    def _build_models(self, model: PreTrainedModel) -> None:
        self._policy_model = model
        self._reference_model = copy.deepcopy(model).requires_grad_(False)
        trunk = model.base_model
        self._critic_trunk = copy.deepcopy(trunk) if self.critic_kind == "separate" else None
        if self._critic_trunk is not None:
            self._critic_trunk.requires_grad_(True)
        self._value_head = nn.Linear(model.config.get_text_config().hidden_size, 1)
        # Values start at 0, so the first advantages are plain returns and not the noise of an untrained head.
        nn.init.zeros_(self._value_head.weight)
        nn.init.zeros_(self._value_head.bias)
        self._takes_positions = "position_ids" in inspect.signature(trunk.forward).parameters
        self._head_is_plain = head_is_plain(model)

    @property
    def language_model(self) -> PreTrainedModel:
        return self._policy_model

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        return (p for p in self._policy_model.parameters() if p.requires_grad)

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        yield from self._value_head.parameters()
        if self._critic_trunk is not None:
            yield from self._critic_trunk.parameters()

    # -- whole replies --------------------------------------------------------------------------------------------

    def generate(self, obs: dict[str, Tensor], **generation_kwargs: Any) -> Utterances:
        """Sample one reply per prompt.

        Args:
            obs: ``prompt_ids`` (B, P) padded on the left, ``prompt_mask`` (B, P).
            generation_kwargs: Replace those of the rollouts, all of them.

        Returns:
            Replies of at most T tokens.
        """
        settings = GenerationSettings.from_kwargs(generation_kwargs) if generation_kwargs else self.settings
        limit = min(settings.max_new_tokens or self.max_reply_length, self.max_reply_length)
        return generate_replies(
            self._policy_model,
            obs["prompt_ids"],
            obs["prompt_mask"],
            replace(settings, min_length=min(settings.min_length, limit)),
            self.end_of_turn,
            limit,
            self.pad_token_id,
        )

    def evaluate_sequences(self, batch: SequenceBatch) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self._response_hidden(self._policy_model.base_model, batch)
        logits = self._response_logits(self._policy_model, hidden, batch)
        temperature, mask = self.settings.temperature, batch.response_mask
        if self._critic_trunk is not None:
            values = self._critic_values(batch)
        else:
            values = self._value_head(hidden[mask]).squeeze(-1).float()
        return (
            _scatter(token_log_probs(logits, batch.response_ids[mask], temperature), mask),
            _scatter(values, mask),
            _scatter(token_entropy(logits, temperature), mask),
        )

    def predict_sequence_values(self, batch: SequenceBatch) -> Tensor:
        return _scatter(self._critic_values(batch), batch.response_mask)

    @torch.no_grad()
    def reference_log_probs(self, batch: SequenceBatch) -> Tensor:
        hidden = self._response_hidden(self._reference_model.base_model, batch)
        logits = self._response_logits(self._reference_model, hidden, batch)
        log_probs = token_log_probs(logits, batch.response_ids[batch.response_mask], self.settings.temperature)
        return _scatter(log_probs, batch.response_mask)

    def _critic_values(self, batch: SequenceBatch) -> Tensor:
        """Values of the N response tokens. Shape (N,)."""
        trunk = self._critic_trunk if self._critic_trunk is not None else self._policy_model.base_model
        hidden = self._response_hidden(trunk, batch)
        return self._value_head(hidden[batch.response_mask]).squeeze(-1).float()

    def _response_hidden(self, trunk: nn.Module, batch: SequenceBatch) -> Tensor:
        """Last hidden state *before* each response token, which is what predicts it. Shape (B, T, H)."""
        prompt_ids, prompt_mask = trim_left_padding(batch.prompt_ids, batch.prompt_mask)
        # The last response token predicts nothing that is needed, so it does not enter the model.
        ids = torch.cat([prompt_ids, batch.response_ids[:, :-1]], dim=1)
        mask = torch.cat([prompt_mask, batch.response_mask[:, :-1]], dim=1)
        return self._hidden(trunk, ids, mask)[:, prompt_ids.shape[1] - 1 :]

    def _response_logits(self, model: PreTrainedModel, hidden: Tensor, batch: SequenceBatch) -> Tensor:
        """Logits at the N response positions only. Shape (N, V)."""
        return lm_logits(model, hidden[batch.response_mask], self._head_is_plain)

    # -- tokens ---------------------------------------------------------------------------------------------------

    def _logits_and_values(self, obs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        ids = torch.cat([obs["prompt_ids"], obs["context_ids"]], dim=1).long()
        mask = torch.cat([obs["prompt_mask"], obs["context_mask"]], dim=1).bool()
        last = mask.long().cumsum(dim=1).argmax(dim=1)  # prompts end, and contexts begin, without a gap
        rows = torch.arange(len(ids), device=ids.device)
        hidden = self._hidden(self._policy_model.base_model, ids, mask)[rows, last]
        critic_hidden = hidden
        if self._critic_trunk is not None:
            critic_hidden = self._hidden(self._critic_trunk, ids, mask)[rows, last]
        logits = lm_logits(self._policy_model, hidden, self._head_is_plain).float() / self.settings.temperature
        return logits, self._value_head(critic_hidden).squeeze(-1).float()

    def _hidden(self, trunk: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
        positions = {"position_ids": position_ids_from_mask(mask)} if self._takes_positions else {}
        output = trunk(input_ids=ids, attention_mask=mask.long(), use_cache=False, **positions)
        hidden: Tensor = output.last_hidden_state
        return hidden


def _scatter(flat: Tensor, mask: Tensor) -> Tensor:
    """Put N numbers back where mask is True; 0 elsewhere. Shapes (N,), (B, T) -> (B, T)."""
    return torch.zeros(mask.shape, dtype=flat.dtype, device=flat.device).masked_scatter(mask, flat)
