"""Language models whose tokens are guided by values of tokens, for offline learning (Snell et al. 2022).

Heads estimate Q(s, a) for all tokens and V(s).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.log_probs import token_log_probs
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.causal import CausalLMActorCriticPolicy
from rl4dialog.policies.decoding import Decoder
from rl4dialog.policies.generation import GenerationSettings, StepEditor
from rl4dialog.policies.guidance import Guidance, guided_logits, kept_by_prior, prior_logits
from rl4dialog.policies.guided_search import Sample, guided_beams, reranked
from rl4dialog.policies.heads import ActionValueHeads
from rl4dialog.policies.lagging_values import LaggingValuesMixin
from rl4dialog.policies.models import embedding_rows
from rl4dialog.policies.seq2seq import Seq2SeqLMActorCriticPolicy


class ValueGuidedMixin(LaggingValuesMixin):
    """Mixin for a policy class.

    Arguments: see :class:`~rl4dialog.policies.lagging_values.LaggingValuesMixin`; ``guidance`` has the settings of
    :class:`~rl4dialog.policies.guidance.Guidance`.
    """

    guidance_class = Guidance
    guidance: Guidance

    def _n_actions(self, model: PreTrainedModel) -> int:
        return embedding_rows(model)

    # -- values of the N agent tokens of replies --------------------------------------------------------------------

    def _read(self, trunk: Any, replies: Replies) -> Tensor:
        """Hidden states before the agent tokens. Shape (N, H)."""
        return self._hidden_states(trunk, replies)

    def target_q_at(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """Lagging estimates min_j Q_j(s, a) of one token per state. Shapes (N, H), (N,) -> (N,)."""
        with torch.no_grad():
            return self._target_heads.q_at(hidden, ids).amin(dim=0)

    def target_q_all(self, hidden: Tensor) -> Tensor:
        """Lagging estimates of all tokens. Shape (N, H) -> (N, V)."""
        with torch.no_grad():
            return self.only_tokens(self._target_heads.q_all(hidden).amin(dim=0), in_place=True)

    def q_values(self, replies: Replies) -> Tensor:
        """Values Q(s, a) of the response tokens, by which the policy is guided; 0 where masked. Shape (B, T)."""
        heads, hidden = self._guiding(replies)
        return replies.scattered(heads.q_at(hidden, replies.flat("response_ids")).amin(dim=0))

    def advantages(self, replies: Replies) -> Tensor:
        """Advantages Q(s, a) - V(s) of the response tokens; 0 where masked. Shape (B, T)."""
        heads, hidden = self._guiding(replies)
        q = heads.q_at(hidden, replies.flat("response_ids")).amin(dim=0)
        return replies.scattered(q - heads(hidden))

    @contextmanager
    def guided_by(self, beta: float | None) -> Iterator[None]:
        """Context in which the guidance has another ``beta``; ``None`` changes nothing.

        Raises:
            ConfigError: If it is invalid.
        """
        own = self.guidance
        self.guidance = own if beta is None else own.with_beta(beta)
        try:
            yield
        finally:
            self.guidance = own

    # -- the guided policy ------------------------------------------------------------------------------------------

    def _guided(
        self, logits: Tensor, heads: ActionValueHeads, hidden: Tensor, temperature: float, ids: Tensor | None = None
    ) -> Tensor:
        """Logits of the guided policy. Shapes (n, V), (n, H) -> (n, V)."""
        prior = prior_logits(logits, self.guidance, temperature)
        kept = kept_by_prior(prior, self.guidance, ids)
        with torch.no_grad():
            q = _q_of_kept(heads, hidden, kept)
            # Without a clip, V changes nothing.
            advantages = q if self.guidance.clip is None else q - heads(hidden).unsqueeze(-1)
        # Again, because the prior may have no weight.
        return self.only_tokens(guided_logits(prior, advantages, self.guidance, temperature, kept))

    def _logits(self, replies: Replies, policy_hidden: Tensor, ids: Tensor | None = None) -> Tensor:
        logits = super()._logits(replies, policy_hidden, ids)
        if self.guidance.changes_nothing:
            return logits
        heads, hidden = self._guiding(replies, policy_hidden)
        return self._guided(logits, heads, hidden, self.settings.temperature, ids)

    def prior_log_probs(self, replies: Replies) -> Tensor:
        """Log-probabilities of the response tokens under the language model, 0 where masked. Shape (B, T)."""
        with torch.no_grad():
            logits = super()._logits(replies, self._policy_hidden(replies))
        return replies.scattered(token_log_probs(logits, replies.flat("response_ids")))

    def kl_to_prior(self, replies: Replies) -> Tensor:
        """KL divergence of the guided policy from the language model, which has the same temperature.

        Args:
            replies: The replies.

        Returns:
            Over the whole vocabulary, before each response token, in nats; 0 where masked. Shape (B, T).
        """
        with torch.no_grad():
            hidden = self._policy_hidden(replies)
            guided = self._logits(replies, hidden).float().log_softmax(dim=-1)
            ratio = guided - super()._logits(replies, hidden).float().log_softmax(dim=-1)
            # Excluded tokens have the probability 0, and add nothing.
            return replies.scattered((guided.exp() * ratio.masked_fill(guided.isneginf(), 0.0)).sum(dim=-1))

    def ranks(self, replies: Replies) -> Tensor:
        """Ranks sum_t Q(s_t, a_t) - V(s_t) + lambda log pi_beta(a_t|s_t), lambda = ``log_prob_weight``. Shape (B,)."""
        log_probs = self.prior_log_probs(replies) if self.guidance.log_prob_weight else 0.0
        return (self.advantages(replies) + self.guidance.log_prob_weight * log_probs).sum(dim=1)

    def _step_editors(self, obs: dict[str, Tensor], settings: GenerationSettings) -> list[StepEditor]:
        editors = super()._step_editors(obs, settings)
        return editors if self.guidance.changes_nothing else [*editors, GuidanceEditor(self, obs, settings.temperature)]

    def _search(self, sample: Sample, obs: dict[str, Tensor], settings: GenerationSettings, limit: int) -> Replies:
        if self.guidance.search == "beam":
            return guided_beams(self, obs, settings, limit, self.guidance.num_beams)
        return reranked(self, sample, obs, settings)

    def _beam_search(self, obs: dict[str, Tensor], settings: GenerationSettings, limit: int) -> Replies:
        raise ConfigError(
            f"generation_kwargs.num_beams is {settings.num_beams}, which would search without guidance; use "
            f"alg.policy.args.guidance.search: beam"
        )


def _q_of_kept(heads: ActionValueHeads, hidden: Tensor, kept: Tensor | None) -> Tensor:
    """Values of the tokens that a row keeps, other numbers for other tokens. Shapes (n, H), (n, V) -> (n, V)."""
    if kept is not None and 2 * len(columns := kept.any(dim=0).nonzero().squeeze(-1)) < kept.shape[-1]:
        # All values of a large vocabulary cost more than the language-model head, and a filter keeps few tokens.
        q = heads.q_all(hidden, columns).amin(dim=0)
        return q.new_zeros(kept.shape).index_copy(-1, columns, q)
    return heads.q_all(hidden).amin(dim=0)


class GuidanceEditor:
    """Guides the language model during generation; values on a trunk of their own have their own KV cache."""

    in_policy = True

    def __init__(self, policy: ValueGuidedMixin, obs: dict[str, Tensor], temperature: float) -> None:
        self._policy, self._temperature = policy, temperature
        online = policy.guidance.use == "online"
        self._heads = policy.heads if online else policy._target_heads
        # Heads without a lagging trunk read the trained one, or the language model itself.
        trunk = self._heads.trunk if self._heads.trunk is not None else policy.heads.trunk
        self._decoder: Decoder | None = None if trunk is None else policy._decoder(trunk, obs)

    def edit(self, logits: Tensor, last_ids: Tensor | None, hidden: Tensor) -> Tensor:
        if self._decoder is not None:
            hidden = self._decoder.next_hidden(last_ids)
        return self._policy._guided(logits, self._heads, hidden, self._temperature)

    def keep(self, rows: Tensor) -> None:
        if self._decoder is not None:
            self._decoder.keep(rows)


class ValueGuidedCausalLMPolicy(ValueGuidedMixin, CausalLMActorCriticPolicy):
    """Decoder-only language model, guided by values of tokens."""


class ValueGuidedSeq2SeqLMPolicy(ValueGuidedMixin, Seq2SeqLMActorCriticPolicy):
    """Encoder-decoder language model, guided by values of tokens."""
