"""Compares all metrics and rewards of a config with human ratings."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rl4dialog.core.config import TextConfig
from rl4dialog.core.errors import ConfigError, nearest_hint
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import RatedDialogue
from rl4dialog.inference.reward_validation.correlation import N_RESAMPLES, Correlation, correlate
from rl4dialog.inference.reward_validation.scores import (
    Scores,
    baseline_scores,
    metric_scores,
    reward_scores,
    talk_of,
)
from rl4dialog.runs.progress import Progress
from rl4dialog.scores.base import mean_of_known
from rl4dialog.scores.parts import as_parts
from rl4dialog.scores.scoring import Scorer
from rl4dialog.training.building.metrics import build_metrics
from rl4dialog.training.building.rewards import reward_builder
from rl4dialog.training.building.texts import build_run_tokenizer
from rl4dialog.training.building.toolkit import build_toolkit


@dataclass(frozen=True)
class Agreement:
    """Agreement of one score with one rating.

    Attributes:
        score: Name of the score.
        rating: Name of the rating.
        correlation: Over dialogues or replies.
        of_systems: Over the systems' means, if the data compares at least three systems.
    """

    score: str
    rating: str
    correlation: Correlation
    of_systems: Correlation | None = None


@dataclass(frozen=True)
class Validation:
    """Result of a validation.

    Attributes:
        rated: The rated dialogues or replies.
        ratings: Names of the ratings.
        scores: All columns of scores, those that cannot be computed included.
        agreements: One for each score that can be computed and each rating.
    """

    rated: Sequence[RatedDialogue]
    ratings: Sequence[str]
    scores: Sequence[Scores]
    agreements: Sequence[Agreement]

    @property
    def systems(self) -> list[str]:
        """Names of the systems, in order."""
        return list(dict.fromkeys(each.system for each in self.rated if each.system is not None))

    def rating_values(self, rating: str) -> list[float]:
        """One value per dialogue; NaN for a gap."""
        return rating_values(self.rated, rating)


def rating_values(rated: Iterable[RatedDialogue], rating: str) -> list[float]:
    """Values of a rating; NaN for a gap."""
    return [each.ratings.get(rating, math.nan) for each in rated]


def drawn(rated: Sequence[RatedDialogue], n: int | None, seed: int) -> Sequence[RatedDialogue]:
    """Draw ``n`` rated dialogues or replies at random, in their order; all of them if there are not more.

    Datasets are sorted, for example by chatbot, so the first ones would not be representative.
    """
    if n is None or n >= len(rated):
        return rated
    rows = random.Random(derive_seed(seed, "validation")).sample(range(len(rated)), n)
    return [rated[row] for row in sorted(rows)]


def validate(
    config: TextConfig,
    rated: Sequence[RatedDialogue],
    ratings: Sequence[str] = (),
    n_resamples: int = N_RESAMPLES,
) -> Validation:
    """Compute all scores of a config on rated dialogues, and their correlations with the ratings.

    Args:
        config: Config with ``reward_fn`` and ``train_evaluation.metrics``; prompts have the format of its datapool.
        rated: Rated dialogues or replies.
        ratings: Names of the ratings to compare with; by default all.
        n_resamples: Resamples for the confidence intervals.
    """
    known = list(dict.fromkeys(name for each in rated for name in each.ratings))
    for name in ratings:
        if name not in known:
            raise ConfigError(f"there is no rating {name!r}{nearest_hint(name, known)} (ratings: {', '.join(known)})")
    chosen = list(ratings or known)
    scores = compute_scores(config, rated)
    pairs = [(column, rating) for rating in chosen for column in scores if column.problem is None]
    groups = _numbered(each.conversation for each in rated)
    agreements = []
    progress = Progress("Correlating", "correlation", len(pairs), line_every_s=60.0, line_at_end=False, stays=False)
    with progress:
        for column, rating in pairs:
            values = rating_values(rated, rating)
            correlation = correlate(column.values, values, groups, n_resamples)
            agreements.append(Agreement(column.name, rating, correlation, _of_systems(rated, column.values, values)))
            progress.advance(1)
    return Validation(rated, chosen, scores, agreements)


def compute_scores(config: TextConfig, rated: Sequence[RatedDialogue]) -> list[Scores]:
    """Score rated dialogues with baselines, and all metrics and rewards of a config."""
    tokenizer, data = build_run_tokenizer(config)
    toolkit = build_toolkit(config, tokenizer, data)
    talks = [talk_of(each, data.pools["train"].dialogue_format) for each in rated]
    columns = list(baseline_scores(talks))
    for chosen, metric in zip(config.train_evaluation.metrics, build_metrics(config, toolkit), strict=True):
        columns += metric_scores(chosen.id, metric, talks)
    reward = config.reward_fn
    if reward is not None and not config.uses_reward:
        columns.append(Scores("reward", problem="this run does not use it (train_evaluation.score_predictions: false)"))
    elif reward is not None:
        parts = as_parts(reward_builder(toolkit)(reward.id, reward.args), reward.id)
        scorer = Scorer(parts, reward.on_error, toolkit["async_calls"], reward.timeout_s, tokenizer)
        columns += reward_scores(scorer, talks)
    return columns


def _of_systems(
    rated: Sequence[RatedDialogue], scores: Sequence[float], ratings: Sequence[float]
) -> Correlation | None:
    """Correlation of the systems' mean scores with their mean ratings, without an interval: there are few."""
    systems = sorted({each.system for each in rated if each.system is not None})
    if len(systems) < 3:
        return None
    known = [i for i in range(len(rated)) if not (math.isnan(scores[i]) or math.isnan(ratings[i]))]
    rows = [[i for i in known if rated[i].system == system] for system in systems]
    means = [[mean_of_known([values[i] for i in own]) for own in rows] for values in (scores, ratings)]
    return correlate(means[0], means[1], n_resamples=0)


def _numbered(names: Iterable[Any]) -> list[int]:
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(name, len(numbers)) for name in names]
