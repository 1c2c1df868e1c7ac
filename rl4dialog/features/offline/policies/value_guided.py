"""Language models whose tokens are guided by values of tokens, for offline learning (Snell et al. 2022).

Heads estimate Q(s, a) for all tokens and V(s).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import pydantic
import torch
from pydantic import Field
from torch import Tensor
from transformers import MinPLogitsWarper, PreTrainedModel, TopKLogitsWarper, TopPLogitsWarper

from rl4dialog.core.errors import ConfigError, shown
from rl4dialog.features.offline.policies.lagging_values import ActionValueHeads, LaggingValuesMixin, Sample
from rl4dialog.functional.advantages import Turns
from rl4dialog.functional.log_probs import token_log_probs
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.causal import CausalLMActorCriticPolicy
from rl4dialog.policies.decoding import Obs
from rl4dialog.policies.generation import (
    GenerationSettings,
    StepEditor,
    Temperature,
    ending_tokens,
    parsed_settings,
    used_filters,
)
from rl4dialog.policies.models import embedding_rows
from rl4dialog.policies.seq2seq import Seq2SeqLMActorCriticPolicy

_STRICT = pydantic.ConfigDict(strict=True)
_WHERE = "alg.policy.args.guidance"


@pydantic.dataclasses.dataclass(frozen=True, config=_STRICT)
class PriorFilter:
    """Settings of the language model before it is guided, with transformers' names.

    Values of tokens that are not in the log are not learned from anything, so a guided policy should not try tokens
    that the language model finds very unlikely; ``min_p`` excludes them.
    """

    temperature: Temperature = 1.0
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    min_p: float = Field(default=0.0, ge=0, lt=1)

    def kept(self, logits: Tensor, ids: Tensor | None = None) -> Tensor | None:
        """Whether each token is kept, given logits over the temperature; ``None`` for all. Shape (n, V) -> (n, V).

        Sampled tokens ``ids`` (n,) count as kept, because rounding can differ between passes.
        """
        warpers = used_filters(
            (self.top_k > 0, TopKLogitsWarper, self.top_k),
            (self.top_p < 1, TopPLogitsWarper, self.top_p),
            (self.min_p > 0, MinPLogitsWarper, self.min_p),
        )
        if not warpers:
            return None
        kept = ~warpers(None, logits).isneginf()  # type: ignore[arg-type]
        return kept if ids is None else kept.scatter(-1, ids.unsqueeze(-1), True)


@pydantic.dataclasses.dataclass(frozen=True, config=_STRICT)
class Guidance:
    """How values guide a language model.

    pi(a|s) = softmax_a[ (w log filter(pi_beta(a|s)) + min(beta (Q(s,a) - V(s)), clip)) / T ], where T is the
    temperature of ``generation_kwargs``. V changes pi only if ``clip`` is set.
    """

    beta: float = Field(default=4.0, ge=0, allow_inf_nan=False)  # in nats per unit of reward; 0 is the language model
    clip: float | None = Field(default=None, ge=0)  # largest contribution of the advantage, in nats
    prior_weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)  # w
    prior: PriorFilter = Field(default_factory=PriorFilter)
    use: Literal["target", "online"] = "target"  # the lagging copy of the values, or the trained ones
    search: Literal["sample", "beam", "rerank"] = "sample"  # rerank: sampled replies by their advantage
    num_beams: int = Field(default=1, ge=1)
    n_candidates: int = Field(default=1, ge=1)  # replies to rerank
    # Weight of a reply's log-probability under the language model in its rank.
    log_prob_weight: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any] | None) -> Guidance:
        """Parse and validate a ``guidance`` block."""
        given = dict(settings or {})
        if isinstance(given.get("prior"), Mapping):
            given["prior"] = parsed_settings(PriorFilter, given["prior"], f"{_WHERE}.prior")
        guidance = parsed_settings(cls, given, _WHERE)
        for name, search in (("num_beams", "beam"), ("n_candidates", "rerank"), ("log_prob_weight", "rerank")):
            if name in given and guidance.search != search:
                raise ConfigError(f"{_WHERE}.{name} has a meaning only with {_WHERE}.search: {search}")
        if guidance.search == "beam" and guidance.num_beams == 1:
            raise ConfigError(f"{_WHERE}.search: beam needs {_WHERE}.num_beams of at least 2")
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
        return self.search != "sample"

    @property
    def changes_nothing(self) -> bool:
        """Whether every token has its probability under the language model."""
        return not self.beta and self.prior_weight == 1 and self.prior == PriorFilter()

    def logits(self, prior: Tensor, advantages: Tensor, temperature: float, kept: Tensor | None = None) -> Tensor:
        """Logits of the guided policy from those of the filtered prior, at its own temperature. Shape (n, V) -> (n, V).

        Advantages are Q(s, a) - V(s) of the kept tokens; without a clip, Q(s, a) gives the same policy.
        """
        bonus = self.beta * advantages
        if self.clip is not None:
            bonus = bonus.clamp(max=self.clip)
        guided = ((self.prior_weight * prior if self.prior_weight != 1 else prior) + bonus) / temperature
        return guided if kept is None else guided.masked_fill(~kept, float("-inf"))


@pydantic.dataclasses.dataclass(frozen=True, config=_STRICT)
class Reranking:
    """How values of replies choose among replies that a language model samples.

    The reply is the candidate with the highest Q(s, a) + lambda log pi_beta(a|s).
    """

    n_candidates: int = Field(default=8, ge=1)  # 1 is the language model itself
    log_prob_weight: float = Field(default=0.0, ge=0, allow_inf_nan=False)  # lambda
    use: Literal["target", "online"] = "target"  # the lagging copy of the values, or the trained ones

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any] | None) -> Reranking:
        """Parse and validate a ``guidance`` block."""
        return parsed_settings(cls, settings or {}, _WHERE)

    @property
    def searches(self) -> bool:
        return self.n_candidates > 1


class ValueGuidedMixin(LaggingValuesMixin):
    """Mixin for a policy class.

    Arguments: see :class:`~rl4dialog.features.offline.policies.lagging_values.LaggingValuesMixin`; ``guidance`` has the
    settings of :class:`~rl4dialog.features.offline.policies.value_guided.Guidance`.
    """

    guidance_class = Guidance
    guidance: Guidance

    def _n_actions(self, model: PreTrainedModel) -> int:
        return embedding_rows(model)

    def _read(self, trunk: Any, replies: Replies) -> Tensor:
        """Hidden states before the agent tokens. Shape (N, H)."""
        return self._hidden_states(trunk, replies)

    def target_q_all(self, hidden: Tensor) -> Tensor:
        """Lagging estimates of all tokens. Shape (N, H) -> (N, V)."""
        with torch.no_grad():
            return self.only_tokens(self._target_heads.q_all(hidden).amin(dim=0), in_place=True)

    def action_q(self, heads: ActionValueHeads, hidden: Tensor, replies: Replies) -> Tensor:
        return heads.q_at(hidden, replies.flat("response_ids"))

    def state_v(self, heads: ActionValueHeads, hidden: Tensor) -> Tensor:
        return heads(hidden)

    def _at_tokens(self, replies: Replies, numbers: Tensor) -> Tensor:
        return replies.scattered(numbers)

    @contextmanager
    def guided_by(self, beta: float | None) -> Iterator[None]:
        """Context in which the guidance has another ``beta``; ``None`` changes nothing."""
        own = self.guidance
        self.guidance = own if beta is None else own.with_beta(beta)
        try:
            yield
        finally:
            self.guidance = own

    def _guided(
        self, logits: Tensor, heads: ActionValueHeads, hidden: Tensor, temperature: float, ids: Tensor | None = None
    ) -> Tensor:
        """Logits of the guided policy. Shapes (n, V), (n, H) -> (n, V)."""
        guidance = self.guidance
        prior = logits * (temperature / guidance.prior.temperature)
        kept = guidance.prior.kept(prior, ids)
        with torch.no_grad():
            q = _q_of_kept(heads, hidden, kept)
            advantages = q if guidance.clip is None else q - heads(hidden).unsqueeze(-1)
        # Again, because the prior may have no weight.
        return self.only_tokens(guidance.logits(prior, advantages, temperature, kept))

    def _logits(self, replies: Replies, policy_hidden: Tensor, ids: Tensor | None = None) -> Tensor:
        logits = super()._logits(replies, policy_hidden, ids)
        if self.guidance.changes_nothing:
            return logits
        heads, hidden = self._guiding(replies, policy_hidden)
        return self._guided(logits, heads, hidden, self.settings.temperature, ids)

    @torch.no_grad()
    def prior_log_probs(self, replies: Replies) -> Tensor:
        """Log-probabilities of the response tokens under the language model, 0 where masked. Shape (B, T)."""
        logits = super()._logits(replies, self._policy_hidden(replies))
        return replies.scattered(token_log_probs(logits, replies.flat("response_ids")))

    @torch.no_grad()
    def kl_to_prior(self, replies: Replies) -> Tensor:
        """KL (B, T) of the guided policy from the language model, over all tokens, in nats; 0 where masked."""
        hidden = self._policy_hidden(replies)
        guided = self._logits(replies, hidden).float().log_softmax(dim=-1)
        ratio = guided - super()._logits(replies, hidden).float().log_softmax(dim=-1)
        # Excluded tokens have the probability 0, and add nothing.
        return replies.scattered((guided.exp() * ratio.masked_fill(guided.isneginf(), 0.0)).sum(dim=-1))

    def ranks(self, replies: Replies) -> Tensor:
        """Ranks sum_t Q(s_t, a_t) - V(s_t) + lambda log pi_beta(a_t|s_t), lambda = ``log_prob_weight``. Shape (B,)."""
        log_probs = self.prior_log_probs(replies) if self.guidance.log_prob_weight else 0.0
        return (self.advantages(replies) + self.guidance.log_prob_weight * log_probs).sum(dim=1)

    def _step_editors(self, obs: Obs, settings: GenerationSettings) -> list[StepEditor]:
        editors = super()._step_editors(obs, settings)
        return editors if self.guidance.changes_nothing else [*editors, GuidanceEditor(self, obs, settings.temperature)]

    def _search(self, sample: Sample, obs: Obs, settings: GenerationSettings, limit: int) -> Replies:
        if self.guidance.search == "beam":
            return guided_beams(self, obs, settings, limit, self.guidance.num_beams)
        return reranked(self, sample, obs, settings)

    def _beam_search(self, obs: Obs, settings: GenerationSettings, limit: int) -> Replies:
        problem = f"generation_kwargs.num_beams is {settings.num_beams}, which would search without guidance"
        raise ConfigError(f"{problem}; use alg.policy.args.guidance.search: beam")


def _q_of_kept(heads: ActionValueHeads, hidden: Tensor, kept: Tensor | None) -> Tensor:
    """Values of the tokens that a row keeps, other numbers for other tokens. Shapes (n, H), (n, V) -> (n, V)."""
    if kept is not None and 2 * len(columns := kept.any(dim=0).nonzero().squeeze(-1)) < kept.shape[-1]:
        # All values of a large vocabulary cost more than the language-model head, and a filter keeps few tokens.
        q = heads.q_all(hidden, columns).amin(dim=0)
        return q.new_zeros(kept.shape).index_copy(-1, columns, q)
    return heads.q_all(hidden).amin(dim=0)


class GuidanceEditor(StepEditor):
    """Guides the language model during generation; values on a trunk of their own have their own KV cache."""

    def __init__(self, policy: ValueGuidedMixin, obs: Obs, temperature: float) -> None:
        self._policy, self._temperature = policy, temperature
        self._heads = policy.heads if policy.guidance.use == "online" else policy._target_heads
        # Heads without a lagging trunk read the trained one, or the language model itself.
        trunk = self._heads.trunk if self._heads.trunk is not None else policy.heads.trunk
        super().__init__(None if trunk is None else policy._decoder(trunk, obs))

    def edit(self, logits: Tensor, last_ids: Tensor | None, hidden: Tensor) -> Tensor:
        if self._decoder is not None:
            hidden = self._decoder.next_hidden(last_ids)
        return self._policy._guided(logits, self._heads, hidden, self._temperature)


class ValueGuidedCausalLMPolicy(ValueGuidedMixin, CausalLMActorCriticPolicy):
    """Decoder-only language model, guided by values of tokens."""


class ValueGuidedSeq2SeqLMPolicy(ValueGuidedMixin, Seq2SeqLMActorCriticPolicy):
    """Encoder-decoder language model, guided by values of tokens."""


class TurnHidden(NamedTuple):
    """Hidden states of a trunk at the U turns of replies."""

    tokens: Tensor  # before each of the N agent tokens. Shape (N, H)
    starts: Tensor  # before the first token of each turn, for V. Shape (U, H)
    ends: Tensor  # of each turn as a whole, for Q. Shape (U, H)

    def detach(self) -> TurnHidden:
        """The same states without gradients."""
        return TurnHidden(*(each.detach() for each in self))


class ValueRerankedCausalLMPolicy(LaggingValuesMixin, CausalLMActorCriticPolicy):
    """Decoder-only language model, whose reply is the best of several samples by their values.

    Log-probabilities are those of the language model, which proposes the replies.

    Args:
        features: What Q reads of a turn: the hidden state behind its ``last`` token, or the ``mean`` of those behind
            all its tokens.
        kwargs: Keyword arguments of :class:`~rl4dialog.features.offline.policies.lagging_values.LaggingValuesMixin`;
            ``guidance`` has the settings of :class:`~rl4dialog.features.offline.policies.value_guided.Reranking`.
    """

    reranked = True
    guidance_class = Reranking
    guidance: Reranking

    def __init__(self, *args: Any, features: Literal["last", "mean"] = "last", **kwargs: Any) -> None:
        self._features = features
        super().__init__(*args, **kwargs)

    def _n_actions(self, model: PreTrainedModel) -> int:
        return 1

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

    def action_q(self, heads: ActionValueHeads, hidden: TurnHidden, replies: Replies) -> Tensor:
        return heads.q_all(hidden.ends).squeeze(-1)

    def state_v(self, heads: ActionValueHeads, hidden: TurnHidden) -> Tensor:
        return heads(hidden.starts)

    def _at_tokens(self, replies: Replies, numbers: Tensor) -> Tensor:
        return replies.scattered(Turns.of(replies).spread(numbers))

    @torch.no_grad()
    def predict_sequence_values(self, replies: Replies) -> Tensor:
        """Value V(s) of the state before the turn of each response token; 0 where masked. Shape (B, T)."""
        return self._at_tokens(replies, self.state_v(self.heads, self.value_hidden(replies)))

    @torch.no_grad()
    def ranks(self, replies: Replies) -> Tensor:
        """Ranks Q(s, a) + lambda log pi_beta(a|s) of one reply per row, lambda = ``log_prob_weight``. Shape (B,)."""
        heads, hidden = self._guiding(replies)
        ranks, weight = self.action_q(heads, hidden, replies).amin(dim=0), self.guidance.log_prob_weight
        return ranks + weight * self.sequence_log_probs(replies).sum(dim=1) if weight else ranks

    def sample(self, obs: Obs, **generation_kwargs: Any) -> Replies:
        """Sample one reply of the language model per prompt; arguments as for :meth:`generate`."""
        return CausalLMActorCriticPolicy.generate(self, obs, **generation_kwargs)

    def _search(self, sample: Sample, obs: Obs, settings: GenerationSettings, limit: int) -> Replies:
        return reranked(self, sample, obs, settings)


def guided_beams(policy: ValueGuidedMixin, obs: Obs, settings: GenerationSettings, limit: int, n_beams: int) -> Replies:
    """The reply to each prompt (B, P) with the highest log-probability under the guided policy.

    The log-probability is not divided by the length. With as many beams as there are beginnings of replies, the search
    is exhaustive. Of the settings, temperature and minimum length apply.
    """
    if dataclasses.replace(settings, min_length=0, do_sample=True).truncates:
        only = "so of generation_kwargs only temperature and the lengths apply; remove the others"
        raise ConfigError(f"alg.policy.args.guidance.search: beam does not sample, {only}")
    decoder, editors = policy._model_decoder(policy.language_model, obs), policy._step_editors(obs, settings)
    ends, device, n_prompts = policy.end_of_turn, decoder.context.device, len(decoder.context)
    best = [_Beam(prompt, float("-inf"), []) for prompt in range(n_prompts)]
    beams = [_Beam(prompt, 0.0, []) for prompt in range(n_prompts)]  # unfinished replies
    last_ids: Tensor | None = None
    for t in range(limit):
        hidden = decoder.next_hidden(last_ids)
        logits = decoder.logits(hidden) / settings.temperature
        for editor in editors:
            logits = editor.edit(logits, last_ids, hidden)
        log_probs = logits.log_softmax(dim=-1)
        if t < settings.min_length:
            log_probs = log_probs.masked_fill(ending_tokens(ends, log_probs), float("-inf"))
        scores = log_probs + torch.tensor([beam.score for beam in beams], device=device).unsqueeze(1)
        chosen = _continued(scores, beams, n_beams, best, lambda ids, t=t: ends.is_end(ids) or t + 1 == limit)  # type: ignore[misc]
        if not chosen:
            break
        beams = [beam for _, beam in chosen]
        last_ids = torch.tensor([beam.ids[-1] for beam in beams], device=device)
        rows = torch.tensor([row for row, _ in chosen], device=device)
        decoder.keep(rows)
        for editor in editors:
            editor.keep(rows)
    replies = Replies.from_ids([[0]] * n_prompts, [beam.ids for beam in best], device)
    replies.prompt_ids, replies.prompt_mask = obs["prompt_ids"].long(), obs["prompt_mask"].bool()
    replies.log_probs = policy.sequence_log_probs(replies)
    replies.unmasked_log_probs = policy.prior_log_probs(replies)
    return replies


class _Beam(NamedTuple):
    """A reply so far, with its log-probability."""

    prompt: int
    score: float
    ids: list[int]


def _continued(
    scores: Tensor, beams: list[_Beam], n_beams: int, best: list[_Beam], is_finished: Callable[[list[int]], bool]
) -> list[tuple[int, _Beam]]:
    """Next unfinished replies, and the row that each continues; better finished ones replace the ``best``."""
    chosen = []
    for prompt in dict.fromkeys(beam.prompt for beam in beams):
        rows = [row for row, beam in enumerate(beams) if beam.prompt == prompt]
        flat = scores[rows].flatten()
        # Of twice as many, at least n_beams do not end in a single token id; with markers, fewer may be left.
        found, places = flat.topk(min(len(flat), 2 * n_beams))
        n_kept = 0
        for score, place in zip(found.tolist(), places.tolist(), strict=True):
            if n_kept == n_beams or score <= best[prompt].score:  # a longer reply is never more likely
                break
            row = rows[place // scores.shape[1]]
            beam = _Beam(prompt, score, [*beams[row].ids, place % scores.shape[1]])
            if is_finished(beam.ids):
                best[prompt] = beam
            else:
                chosen.append((row, beam))
                n_kept += 1
    return chosen


@torch.no_grad()
def reranked(
    policy: ValueGuidedMixin | ValueRerankedCausalLMPolicy, sample: Sample, obs: Obs, settings: GenerationSettings
) -> Replies:
    """Of the replies sampled to each prompt, the one that the policy ranks highest; of equal ones the first."""
    n = policy.guidance.n_candidates
    if n > 1 and (not settings.do_sample or settings.num_beams > 1):
        problem = "generation_kwargs gives the same reply every time; set do_sample: true, without num_beams"
        raise ConfigError(f"alg.policy.args.guidance.n_candidates is {n}, but {problem}")
    replies = sample({name: each.repeat_interleave(n, dim=0) for name, each in obs.items()})
    rank = policy.ranks(replies).view(-1, n)
    return replies[rank.argmax(dim=1) + n * torch.arange(len(rank), device=rank.device)]
