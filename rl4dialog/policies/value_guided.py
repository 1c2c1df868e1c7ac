"""Language models whose tokens are guided by values of tokens, for offline learning (Snell et al. 2022).

The language model is the *prior*: it imitates the log. Heads on a second copy of it, or on the prior itself, estimate
Q(s, a) for all tokens and V(s). Slowly moving copies of them (Polyak averages) are the targets of learning, and guide
the prior.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl4dialog.core.arguments import Count, Fraction
from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.log_probs import token_log_probs
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.causal import CausalLMActorCriticPolicy
from rl4dialog.policies.decoding import Decoder
from rl4dialog.policies.generation import GenerationSettings, StepEditor
from rl4dialog.policies.guidance import Guidance, guided_logits
from rl4dialog.policies.guided_search import guided_beams, reranked
from rl4dialog.policies.heads import ActionValueHeads
from rl4dialog.policies.lm_head import hidden_size
from rl4dialog.policies.models import embedding_rows
from rl4dialog.policies.seq2seq import Seq2SeqLMActorCriticPolicy

Target = Literal["model", "heads"]


class ValueGuidedMixin(LMActorCriticPolicy):
    """Mixin for a policy class.

    Args:
        args: Arguments of the policy.
        critic: ``separate`` for values on a copy of the language model's trunk, or ``shared`` for values on the trunk
            itself.
        target: What the lagging copy of the values contains: ``model`` for trunk and heads, or ``heads``, which read
            the trained trunk.
        n_q_heads: Number of heads Q, whose minimum is the estimate.
        head_width: Width of the hidden layer of the heads; ``null`` is twice the model's width.
        init_value: Value of all states and tokens before training. A value near the returns of the log saves steps.
        train_prior: Whether the language model is trained, too.
        guidance: Settings of :class:`~rl4dialog.policies.guidance.Guidance`.
        kwargs: Keyword arguments of the policy.

    Raises:
        ConfigError: If an argument is invalid.
    """

    guided = True

    def __init__(
        self,
        *args: Any,
        critic: Literal["separate", "shared"] = "separate",
        target: Target = "model",
        n_q_heads: Count = 2,
        head_width: Count | None = None,
        init_value: float = 0.0,
        train_prior: bool = True,
        guidance: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._target_kind, self._n_q_heads, self._head_width = target, n_q_heads, head_width
        self._init_value, self.trains_prior = init_value, train_prior
        self.guidance = Guidance.from_settings(guidance)
        super().__init__(*args, **{**kwargs, "critic": critic, "reference": "none"})

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        super().check_arguments({**args, "reference": "none"})
        if args.get("reference", "none") != "none":
            raise ConfigError("alg.policy.args.reference: the reference is the language model itself; remove it")
        Guidance.from_settings(args.get("guidance"))

    # -- models ---------------------------------------------------------------------------------------------------

    def _build_models(self, model: PreTrainedModel) -> None:
        super()._build_models(model)
        assert self._value_head is not None
        if not self.trains_prior:
            model.requires_grad_(False)
        n_hidden = hidden_size(model)
        width = 2 * n_hidden if self._head_width is None else self._head_width
        trunk = self._value_head.trunk
        heads = ActionValueHeads(
            n_hidden, trunk, embedding_rows(model), self._n_q_heads, width or None, self._init_value
        )
        self._value_head = heads
        heads.trunk, trunk = None, heads.trunk
        self._target_heads: ActionValueHeads = copy.deepcopy(heads).requires_grad_(False)
        heads.trunk = trunk
        if self._target_kind == "model":
            copied = copy.deepcopy(trunk if trunk is not None else self._trunk(model))
            self._target_heads.trunk = copied.requires_grad_(False)

    @property
    def heads(self) -> ActionValueHeads:
        """The trained values."""
        assert isinstance(self._value_head, ActionValueHeads)
        return self._value_head

    def update_targets(self, rate: Fraction) -> None:
        """Move the lagging copy towards the trained values: theta' <- (1 - rate) theta' + rate theta."""
        trained = dict(self.heads.named_parameters())
        if self.heads.trunk is None and self._target_heads.trunk is not None:
            trunk = self._trunk(self._policy_model)
            trained |= {f"trunk.{name}": parameter for name, parameter in trunk.named_parameters()}
        moving = [(lagging, trained[name]) for name, lagging in self._target_heads.named_parameters()]
        pairs = [(lagging, parameter) for lagging, parameter in moving if parameter.requires_grad]
        with torch.no_grad():
            torch._foreach_lerp_([lagging for lagging, _ in pairs], [parameter for _, parameter in pairs], rate)

    def target_state(self) -> dict[str, Tensor]:
        return {f"_target_heads.{name}": tensor for name, tensor in self._target_heads.named_parameters()}

    # -- values of the N agent tokens of replies --------------------------------------------------------------------

    def value_hidden(self, replies: Replies, policy_hidden: Tensor) -> Tensor:
        """Hidden states that the trained values read, before the agent tokens. Shape (N, H).

        Args:
            replies: The replies that contain the tokens.
            policy_hidden: Hidden states of the language model. Shape (N, H).
        """
        trunk = self.heads.trunk
        return policy_hidden if trunk is None else self._hidden_states(trunk, replies)

    @torch.no_grad()
    def target_hidden(self, replies: Replies, value_hidden: Tensor) -> Tensor:
        """Hidden states that the lagging values read. Shape (N, H).

        Args:
            replies: The replies that contain the tokens.
            value_hidden: Result of :meth:`value_hidden`.
        """
        trunk = self._target_heads.trunk
        return value_hidden.detach() if trunk is None else self._hidden_states(trunk, replies)

    def target_q_at(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """Lagging estimates min_j Q_j(s, a) of one token per state. Shapes (N, H), (N,) -> (N,)."""
        with torch.no_grad():
            return self._target_heads.q_at(hidden, ids).amin(dim=0)

    def target_q_all(self, hidden: Tensor) -> Tensor:
        """Lagging estimates of all tokens. Shape (N, H) -> (N, V)."""
        with torch.no_grad():
            return self._target_heads.q_all(hidden).amin(dim=0)

    def q_values(self, replies: Replies) -> Tensor:
        """Values Q(s, a) of the response tokens, by which the policy is guided; 0 where masked. Shape (B, T)."""
        heads, hidden = self._guiding(replies)
        return replies.scattered(heads.q_at(hidden, replies.flat("response_ids")).amin(dim=0))

    def advantages(self, replies: Replies) -> Tensor:
        """Advantages Q(s, a) - V(s) of the response tokens; 0 where masked. Shape (B, T)."""
        heads, hidden = self._guiding(replies)
        q = heads.q_at(hidden, replies.flat("response_ids")).amin(dim=0)
        return replies.scattered(q - heads(hidden))

    @torch.no_grad()
    def _guiding(self, replies: Replies) -> tuple[ActionValueHeads, Tensor]:
        """The heads that guide, and the hidden states that they read."""
        return self._guiding_from(replies, self._policy_hidden(replies))

    @torch.no_grad()
    def _guiding_from(self, replies: Replies, policy_hidden: Tensor) -> tuple[ActionValueHeads, Tensor]:
        hidden = self.value_hidden(replies, policy_hidden)
        if self.guidance.use == "online":
            return self.heads, hidden
        return self._target_heads, self.target_hidden(replies, hidden)

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

    @torch.no_grad()
    def _advantages_of_all(self, heads: ActionValueHeads, hidden: Tensor) -> Tensor:
        """Q(s, a) - V(s), or Q(s, a) where V changes nothing. Shape (n, H) -> (n, V)."""
        q = heads.q_all(hidden).amin(dim=0)
        return q if self.guidance.clip is None else q - heads(hidden).unsqueeze(-1)

    def _logits(self, replies: Replies, policy_hidden: Tensor, ids: Tensor | None = None) -> Tensor:
        logits = super()._logits(replies, policy_hidden, ids)
        if self.guidance.changes_nothing:
            return logits
        advantages = self._advantages_of_all(*self._guiding_from(replies, policy_hidden))
        return guided_logits(logits, advantages, self.guidance, self.settings.temperature, ids)

    def prior_log_probs(self, replies: Replies) -> Tensor:
        """Log-probabilities of the response tokens under the language model, 0 where masked. Shape (B, T)."""
        with torch.no_grad():
            logits = super()._logits(replies, self._policy_hidden(replies))
        return replies.scattered(token_log_probs(logits, replies.flat("response_ids")))

    def ranks(self, replies: Replies) -> Tensor:
        """Ranks of replies by :func:`~rl4dialog.policies.guided_search.reranked`. Shape (B,)."""
        log_probs = self.prior_log_probs(replies) if self.guidance.log_prob_weight else 0.0
        return (self.advantages(replies) + self.guidance.log_prob_weight * log_probs).sum(dim=1)

    def _step_editors(self, obs: dict[str, Tensor], settings: GenerationSettings) -> list[StepEditor]:
        editors = super()._step_editors(obs, settings)
        return editors if self.guidance.changes_nothing else [*editors, GuidanceEditor(self, obs, settings.temperature)]

    def generate(self, obs: dict[str, Tensor], **generation_kwargs: Any) -> Replies:
        guidance = self.guidance
        if guidance.search == "sample":
            return super().generate(obs, **generation_kwargs)
        settings, limit = self._sampler(generation_kwargs)
        with torch.no_grad(), self._autocast():
            if guidance.search == "beam":
                return guided_beams(self, obs, settings, limit, guidance.num_beams)
        sample = super().generate
        return reranked(self, lambda many: sample(many, **generation_kwargs), obs)

    def _beam_search(self, obs: dict[str, Tensor], settings: GenerationSettings, limit: int) -> Replies:
        raise ConfigError(
            f"generation_kwargs.num_beams is {settings.num_beams}, which would search without guidance; use "
            f"alg.policy.args.guidance.search: beam"
        )


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
        advantages = self._policy._advantages_of_all(self._heads, hidden)
        return guided_logits(logits, advantages, self._policy.guidance, self._temperature)

    def keep(self, rows: Tensor) -> None:
        if self._decoder is not None:
            self._decoder.keep(rows)


class ValueGuidedCausalLMPolicy(ValueGuidedMixin, CausalLMActorCriticPolicy):
    """Decoder-only language model, guided by values of tokens."""


class ValueGuidedSeq2SeqLMPolicy(ValueGuidedMixin, Seq2SeqLMActorCriticPolicy):
    """Encoder-decoder language model, guided by values of tokens."""
