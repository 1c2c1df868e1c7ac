"""Language models whose tokens are guided by values of tokens, for offline learning (Snell et al. 2022).

Heads estimate Q(s, a) for all tokens and V(s).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import pydantic
import torch
from pydantic import Field
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LogitsProcessorList, MinPLogitsWarper, PreTrainedModel, TopKLogitsWarper, TopPLogitsWarper

from rl4dialog.core.errors import ConfigError, ModelError, nearest_hint, shown
from rl4dialog.core.pretrained import GUIDANCE_FILE
from rl4dialog.functional.advantages import Turns
from rl4dialog.functional.log_probs import token_log_probs
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.beam_search import Sample, guided_beams, reranked
from rl4dialog.policies.causal import CausalLMActorCriticPolicy
from rl4dialog.policies.decoding import Decoder
from rl4dialog.policies.generation import MIN_TEMPERATURE, GenerationSettings, StepEditor
from rl4dialog.policies.heads import ActionValueHeads
from rl4dialog.policies.lagging_values import LaggingValuesMixin
from rl4dialog.policies.models import embedding_rows
from rl4dialog.policies.saving import CRITIC_FILE, TARGET_FILE, copy_all, gathered, states_beside
from rl4dialog.policies.seq2seq import Seq2SeqLMActorCriticPolicy

T = TypeVar("T")
_STRICT = pydantic.ConfigDict(strict=True)
_WHERE = "alg.policy.args.guidance"


@pydantic.dataclasses.dataclass(frozen=True, config=_STRICT)
class PriorFilter:
    """Settings of the language model before it is guided, with transformers' names.

    Values of tokens that are not in the log are not learned from anything, so a guided policy should not try tokens
    that the language model finds very unlikely; ``min_p`` excludes them.
    """

    temperature: float = Field(default=1.0, ge=MIN_TEMPERATURE, allow_inf_nan=False)
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    min_p: float = Field(default=0.0, ge=0, lt=1)

    def kept(self, logits: Tensor) -> Tensor:
        """Whether each token is kept, given logits divided by the temperature. Shape (n, V) -> (n, V)."""
        warpers = LogitsProcessorList()
        if self.top_k > 0:
            warpers.append(TopKLogitsWarper(self.top_k))
        if self.top_p < 1:
            warpers.append(TopPLogitsWarper(self.top_p))
        if self.min_p > 0:
            warpers.append(MinPLogitsWarper(self.min_p))
        filtered: Tensor = warpers(None, logits)  # type: ignore[arg-type]
        return ~filtered.isneginf()

    @property
    def keeps_all(self) -> bool:
        """Whether no token is excluded."""
        return self == PriorFilter(temperature=self.temperature)


@pydantic.dataclasses.dataclass(frozen=True, config=_STRICT)
class Guidance:
    """How values guide a language model.

    pi(a|s) = softmax_a[ (w log filter(pi_beta(a|s)) + min(beta (Q(s,a) - V(s)), clip)) / T ], where T is the
    temperature of ``generation_kwargs``. V changes pi only if ``clip`` is set.

    Attributes:
        beta: Weight of the advantage, in nats per unit of reward; 0 is the language model itself.
        clip: Largest contribution of the advantage, in nats; ``None`` for no limit.
        prior_weight: w.
        prior: Filter of pi_beta.
        use: ``target`` for the lagging copy of the values, or ``online`` for the trained ones.
        search: ``sample`` token by token, ``beam`` search over guided log-probabilities, or ``rerank`` sampled replies
            by their advantage.
        num_beams: Number of beams.
        n_candidates: Number of replies to rerank.
        log_prob_weight: Weight of a reply's log-probability under the language model in its rank.
    """

    beta: float = Field(default=4.0, ge=0, allow_inf_nan=False)
    clip: float | None = Field(default=None, ge=0)
    prior_weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    prior: PriorFilter = Field(default_factory=PriorFilter)
    use: Literal["target", "online"] = "target"
    search: Literal["sample", "beam", "rerank"] = "sample"
    num_beams: int = Field(default=1, ge=1)
    n_candidates: int = Field(default=1, ge=1)
    log_prob_weight: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any] | None) -> Guidance:
        """Parse and validate a ``guidance`` block."""
        given = dict(settings or {})
        if isinstance(given.get("prior"), Mapping):
            given["prior"] = _parsed(PriorFilter, given["prior"], f"{_WHERE}.prior")
        guidance = _parsed(cls, given)
        for name, search in (("num_beams", "beam"), ("n_candidates", "rerank"), ("log_prob_weight", "rerank")):
            if name in given and guidance.search != search:
                raise ConfigError(f"{_WHERE}.{name} has a meaning only with {_WHERE}.search: {search}")
        if guidance.search == "beam" and guidance.num_beams == 1:
            raise ConfigError(f"{_WHERE}.search: beam needs num_beams of at least 2")
        if not guidance.prior_weight and not guidance.beta:
            raise ConfigError(f"{_WHERE}: prior_weight and beta are both 0, which leaves nothing to choose tokens by")
        return guidance

    def with_beta(self, beta: float) -> Guidance:
        """Return the same settings with another ``beta``."""
        if isinstance(beta, bool) or not isinstance(beta, (int, float)) or not 0 <= beta < math.inf:
            raise ConfigError(f"beta must be a number of at least 0, not {shown(beta)}")
        if not beta and not self.prior_weight:
            raise ConfigError("beta must be above 0, because prior_weight is 0: only the values choose tokens")
        return dataclasses.replace(self, beta=float(beta))

    @property
    def searches(self) -> bool:
        """Whether replies are found by a search."""
        return self.search != "sample"

    @property
    def changes_nothing(self) -> bool:
        """Whether every token has its probability under the language model."""
        return not self.beta and self == Guidance(
            beta=0.0,
            clip=self.clip,
            use=self.use,
            search=self.search,
            num_beams=self.num_beams,
            n_candidates=self.n_candidates,
            log_prob_weight=self.log_prob_weight,
        )


@pydantic.dataclasses.dataclass(frozen=True, config=_STRICT)
class Reranking:
    """How values of replies choose among replies that a language model samples.

    The reply is the candidate with the highest Q(s, a) + lambda log pi_beta(a|s).

    Attributes:
        n_candidates: Number of sampled replies; 1 is the language model itself.
        log_prob_weight: lambda.
        use: ``target`` for the lagging copy of the values, or ``online`` for the trained ones.
    """

    n_candidates: int = Field(default=8, ge=1)
    log_prob_weight: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    use: Literal["target", "online"] = "target"

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any] | None) -> Reranking:
        """Parse and validate a ``guidance`` block."""
        return _parsed(cls, settings)

    @property
    def searches(self) -> bool:
        """Whether replies are found by a search."""
        return self.n_candidates > 1


def _parsed(cls: type[T], settings: Mapping[str, Any] | None, where: str = _WHERE) -> T:
    """Make an object of one of the classes above from a block at ``where``."""
    given, names = dict(settings or {}), [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for key in given:
        if key not in names:
            raise ConfigError(f"unknown key '{where}.{key}'{nearest_hint(key, names)} (known: {', '.join(names)})")
    try:
        return cls(**given)
    except pydantic.ValidationError as error:
        problem = error.errors()[0]
        path = ".".join(map(str, problem["loc"]))
        message = problem["msg"][0].lower() + problem["msg"][1:]
        raise ConfigError(f"{where}.{path}: {message}, got {problem['input']!r}") from error


def prior_logits(logits: Tensor, guidance: Guidance, temperature: float) -> Tensor:
    """Logits of the language model at the filter's own temperature, from those at another one. Shape (n, V)."""
    return logits * (temperature / guidance.prior.temperature)


def kept_by_prior(prior: Tensor, guidance: Guidance, ids: Tensor | None = None) -> Tensor | None:
    """Whether the filter of the language model keeps each token; ``None`` for all. Shape (n, V) -> (n, V).

    Sampled tokens ``ids`` (n,) count as kept, because rounding can differ between passes.
    """
    if guidance.prior.keeps_all:
        return None
    kept = guidance.prior.kept(prior)
    return kept if ids is None else kept.scatter(-1, ids.unsqueeze(-1), True)


def guided_logits(
    prior: Tensor, advantages: Tensor, guidance: Guidance, temperature: float, kept: Tensor | None = None
) -> Tensor:
    """Logits of the guided policy. Shape (n, V) -> (n, V).

    Advantages are Q(s, a) - V(s) of the kept tokens; without a clip, Q(s, a) gives the same policy.
    """
    bonus = guidance.beta * advantages
    if guidance.clip is not None:
        bonus = bonus.clamp(max=guidance.clip)
    weighted = guidance.prior_weight * prior if guidance.prior_weight != 1 else prior
    guided = (weighted + bonus) / temperature
    return guided if kept is None else guided.masked_fill(~kept, float("-inf"))


VALUES_FILE = "value_guidance.safetensors"
GUIDANCE_FILES = (GUIDANCE_FILE, VALUES_FILE)


def save_value_guidance(policy: LMActorCriticPolicy, folder: Path) -> None:
    """Write the values of a guided policy."""
    guidance: Any = policy.guidance  # type: ignore[union-attr]
    settings = {"version": 1, "guidance": dataclasses.asdict(guidance), "policy": type(policy).__name__}
    (folder / GUIDANCE_FILE).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    save_file(gathered(_values(policy)), folder / VALUES_FILE)


def load_value_guidance(policy: LMActorCriticPolicy, folder: Path) -> None:
    """Load the values into a policy of the same architecture."""
    path = folder / VALUES_FILE
    if not path.is_file():
        raise ModelError(f"{path} is missing, so the language model in this folder cannot be guided")
    copy_all(_values(policy), load_file(path))


def _values(policy: LMActorCriticPolicy) -> dict[str, Tensor]:
    states = states_beside(policy)
    return {**states.get(CRITIC_FILE, {}), **states.get(TARGET_FILE, {})}


class ValueGuidedMixin(LaggingValuesMixin):
    """Mixin for a policy class.

    Arguments: see :class:`~rl4dialog.policies.lagging_values.LaggingValuesMixin`; ``guidance`` has the settings of
    :class:`~rl4dialog.policies.value_guided.Guidance`.
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
        """Context in which the guidance has another ``beta``; ``None`` changes nothing."""
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
        """KL of the guided policy from the language model at the same temperature, at response tokens. Shape (B, T).

        It is over the whole vocabulary, in nats; 0 where masked.
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


@dataclass(frozen=True)
class TurnHidden:
    """Hidden states of a trunk at the U turns of replies.

    Attributes:
        tokens: Before each of the N agent tokens. Shape (N, H).
        starts: Before the first token of each turn, for V. Shape (U, H).
        ends: Of each turn as a whole, for Q. Shape (U, H).
    """

    tokens: Tensor
    starts: Tensor
    ends: Tensor

    def detach(self) -> TurnHidden:
        """The same states without gradients."""
        return TurnHidden(self.tokens.detach(), self.starts.detach(), self.ends.detach())


class ValueRerankedCausalLMPolicy(LaggingValuesMixin, CausalLMActorCriticPolicy):
    """Decoder-only language model, whose reply is the best of several samples by their values.

    Log-probabilities are those of the language model, which proposes the replies.

    Args:
        args: Arguments of :class:`~rl4dialog.policies.lagging_values.LaggingValuesMixin`.
        features: What Q reads of a turn: the hidden state behind its ``last`` token, or the ``mean`` of those behind
            all its tokens.
        kwargs: Keyword arguments of :class:`~rl4dialog.policies.lagging_values.LaggingValuesMixin`; ``guidance`` has
            the settings of :class:`~rl4dialog.policies.value_guided.Reranking`.

    Raises:
        ConfigError: If an argument is invalid.
    """

    reranked = True
    guidance_class = Reranking
    guidance: Reranking

    def __init__(self, *args: Any, features: Literal["last", "mean"] = "last", **kwargs: Any) -> None:
        self._features = features
        super().__init__(*args, **kwargs)

    def _n_actions(self, model: PreTrainedModel) -> int:
        return 1

    # -- values of the U turns of replies ---------------------------------------------------------------------------

    def _read(self, trunk: Any, replies: Replies) -> TurnHidden:
        turns = Turns.of(replies)
        pad, mask = torch.nn.functional.pad, replies.response_mask
        # States behind tokens are those before the next ones, so one place more is read in each row.
        wanted = pad(mask, (0, 1)) | pad(mask, (1, 0))
        further = pad(replies.token_mask, (1, 0), value=True)
        ids = pad(replies.response_ids, (0, 1))
        hidden = self._hidden_states(trunk, Replies(replies.prompt_ids, replies.prompt_mask, ids, wanted, further))
        numbers = (wanted.flatten().cumsum(dim=0) - 1).view(wanted.shape)
        before, behind = numbers[:, :-1][mask], numbers[:, 1:][mask]
        tokens = hidden[before]
        ends = hidden[behind[turns.last]] if self._features == "last" else turns.means(hidden[behind])
        return TurnHidden(tokens, tokens[turns.first], ends)

    @staticmethod
    def turn_q(heads: ActionValueHeads, hidden: TurnHidden) -> Tensor:
        """Values of turns by each of the J heads. Shape (J, U)."""
        return heads.q_all(hidden.ends).squeeze(-1)

    @torch.no_grad()
    def target_turn_q(self, hidden: TurnHidden) -> Tensor:
        """Lagging estimates min_j Q_j(s, a) of turns. Shape (U,)."""
        return self.turn_q(self._target_heads, hidden).amin(dim=0)

    @torch.no_grad()
    def turn_values(self, replies: Replies) -> Tensor:
        """Values Q(s, a) of turns, by which they are ranked. Shape (U,)."""
        heads, hidden = self._guiding(replies)
        return self.turn_q(heads, hidden).amin(dim=0)

    @torch.no_grad()
    def q_values(self, replies: Replies) -> Tensor:
        """Value Q(s, a) of the turn that each response token belongs to; 0 where masked. Shape (B, T)."""
        return replies.scattered(Turns.of(replies).spread(self.turn_values(replies)))

    @torch.no_grad()
    def advantages(self, replies: Replies) -> Tensor:
        """Advantage Q(s, a) - V(s) of the turn that each response token belongs to; 0 where masked. Shape (B, T)."""
        heads, hidden = self._guiding(replies)
        advantages = self.turn_q(heads, hidden).amin(dim=0) - heads(hidden.starts)
        return replies.scattered(Turns.of(replies).spread(advantages))

    @torch.no_grad()
    def predict_sequence_values(self, replies: Replies) -> Tensor:
        """Value V(s) of the state before the turn of each response token; 0 where masked. Shape (B, T)."""
        hidden = self.value_hidden(replies)
        return replies.scattered(Turns.of(replies).spread(self.heads(hidden.starts)))

    # -- the reranked policy ----------------------------------------------------------------------------------------

    def ranks(self, replies: Replies) -> Tensor:
        """Ranks Q(s, a) + lambda log pi_beta(a|s) of one reply per row, lambda = ``log_prob_weight``. Shape (B,)."""
        ranks, weight = self.turn_values(replies), self.guidance.log_prob_weight
        return ranks + weight * self.sequence_log_probs(replies).sum(dim=1) if weight else ranks

    def sample(self, obs: dict[str, Tensor], **generation_kwargs: Any) -> Replies:
        """Sample one reply of the language model per prompt; arguments as for :meth:`generate`."""
        return CausalLMActorCriticPolicy.generate(self, obs, **generation_kwargs)

    def _search(self, sample: Sample, obs: dict[str, Tensor], settings: GenerationSettings, limit: int) -> Replies:
        return reranked(self, sample, obs, settings)
