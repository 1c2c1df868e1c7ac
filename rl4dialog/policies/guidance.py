"""Guidance of a language model by values of tokens or replies (Snell et al. 2022, arXiv 2206.11871, section 4.3)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import pydantic
from pydantic import Field
from torch import Tensor
from transformers import LogitsProcessorList, MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from rl4dialog.core.errors import ConfigError, nearest_hint, shown
from rl4dialog.policies.generation import MIN_TEMPERATURE

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
        """Whether each token is kept. Shape (n, V) -> (n, V).

        Args:
            logits: Logits of the language model, divided by the temperature.
        """
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
    """Logits of the language model at the filter's own temperature. Shape (n, V) -> (n, V).

    Args:
        logits: Logits of the language model, divided by the temperature of ``generation_kwargs``.
        guidance: The settings.
        temperature: That temperature.
    """
    return logits * (temperature / guidance.prior.temperature)


def kept_by_prior(prior: Tensor, guidance: Guidance, ids: Tensor | None = None) -> Tensor | None:
    """Whether the filter of the language model keeps each token; ``None`` for all. Shape (n, V) -> (n, V).

    Args:
        prior: What :func:`prior_logits` returns. Shape (n, V).
        guidance: The settings.
        ids: Tokens that count as kept, because they were sampled. Rounding can differ between passes. Shape (n,).
    """
    if guidance.prior.keeps_all:
        return None
    kept = guidance.prior.kept(prior)
    return kept if ids is None else kept.scatter(-1, ids.unsqueeze(-1), True)


def guided_logits(
    prior: Tensor, advantages: Tensor, guidance: Guidance, temperature: float, kept: Tensor | None = None
) -> Tensor:
    """Logits of the guided policy. Shape (n, V) -> (n, V).

    Args:
        prior: What :func:`prior_logits` returns. Shape (n, V).
        advantages: Q(s, a) - V(s) of the kept tokens; without a clip, Q(s, a) gives the same policy. Shape (n, V).
        guidance: The settings.
        temperature: T.
        kept: What :func:`kept_by_prior` returns.
    """
    bonus = guidance.beta * advantages
    if guidance.clip is not None:
        bonus = bonus.clamp(max=guidance.clip)
    weighted = guidance.prior_weight * prior if guidance.prior_weight != 1 else prior
    guided = (weighted + bonus) / temperature
    return guided if kept is None else guided.masked_fill(~kept, float("-inf"))
