"""Compares all metrics and rewards of a config with human ratings of dialogues or replies, by rank correlations.

A dialogue's score by a metric or reward of replies is the mean over the agent's replies, each scored with its own
history. Rewards of whole conversations are summed over the turns, as a run would pay them.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text
from scipy import stats

from rl4dialog.core.config import TextConfig
from rl4dialog.core.console import Console
from rl4dialog.core.errors import ConfigError, RL4DialogError, nearest_hint
from rl4dialog.core.files import write_csv, write_json
from rl4dialog.core.protocols import BaseMetric, BatchedConversationReward, ConversationReward, DialogueMetric
from rl4dialog.core.reward_parts import FinishedReplies, RewardPart, names_needing, weighted_sum
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import RatedDialogue
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.functional.statistics import Interval, bootstrap_intervals, spearman
from rl4dialog.inference.offline_evaluation import make_folder
from rl4dialog.rollouts.talk import Reply, Talk
from rl4dialog.runs.plots import plain_figure, save_figure
from rl4dialog.runs.progress import Progress
from rl4dialog.runs.summary import format_interval, format_number, is_headline, table_style
from rl4dialog.scores.base import mean_of_known
from rl4dialog.scores.parts import as_parts
from rl4dialog.scores.scoring import Scorer
from rl4dialog.training.assembly import Assembly
from rl4dialog.training.building.rewards import reward_builder
from rl4dialog.training.evaluation import compute_metrics

N_RESAMPLES = 500
MIN_GROUPS = 20
"""Fewer groups get no interval: the percentile bootstrap then covers less than it says (``docs/metrics.md``)."""


@dataclass(frozen=True)
class Correlation:
    """Agreement of a score with a rating over the items that have both."""

    n: int
    spearman: float = math.nan
    kendall: float = math.nan  # Kendall's tau-b
    spearman_interval: Interval | None = None
    kendall_interval: Interval | None = None
    problem: str | None = None  # why there is no correlation; the numbers are then NaN


def correlate(
    scores: Sequence[float],
    ratings: Sequence[float],
    groups: Sequence[int] | None = None,
    n_resamples: int = N_RESAMPLES,
) -> Correlation:
    """Correlate scores with ratings, NaN where there is none, with the percentile bootstrap over groups.

    Replies of one conversation are not independent, so whole conversations are resampled. Fewer than ``MIN_GROUPS``
    have no interval.
    """
    x, y = np.asarray(scores, dtype=np.float64), np.asarray(ratings, dtype=np.float64)
    known = ~(np.isnan(x) | np.isnan(y))
    x, y, n = x[known], y[known], int(known.sum())
    if n < 3:
        return Correlation(n, problem=f"only {n} items have both")
    for values, name in ((x, "score"), (y, "rating")):
        if (values == values[0]).all():
            return Correlation(n, problem=f"the {name} is always {values[0]:g}")
    of_item = np.arange(len(known)) if groups is None else np.asarray(groups)
    group_of = np.unique(of_item[known], return_inverse=True)[1]
    n_groups, items = int(group_of.max()) + 1, np.arange(n)

    def of_groups(drawn: NDArray[np.int64]) -> tuple[float, float]:
        rows = np.repeat(items, np.bincount(drawn, minlength=n_groups)[group_of])
        return spearman(x[rows], y[rows]), stats.kendalltau(x[rows], y[rows]).statistic

    found = Correlation(n, spearman(x, y), float(stats.kendalltau(x, y).statistic))
    if n_groups < MIN_GROUPS or n_resamples == 0:
        return found
    first, second = bootstrap_intervals(of_groups, n_groups, n_resamples=n_resamples)
    return replace(found, spearman_interval=first, kendall_interval=second)


REFERENCES = "it needs references; what a person said next is none"


@dataclass(frozen=True)
class Scores:
    """A column of scores, named by the metric's key, the reward's part or a baseline; or why it cannot be computed."""

    name: str
    values: Sequence[float] = ()  # one per dialogue, NaN where there is none
    problem: str | None = None


def talk_of(rated: RatedDialogue, dialogue_format: DialogueFormat | None) -> Talk:
    """Return a rated dialogue as a conversation, with the prompt of each of the agent's replies."""
    turns = tuple(replace(turn, reward=math.nan) for turn in rated.dialogue.turns)
    dialogue = replace(rated.dialogue, turns=turns)
    talk, persona = Talk(dialogue), dialogue.meta_data.get("persona")
    for i in dialogue.agent_turns:
        history = [turn.text for turn in dialogue.turns[:i]]
        if dialogue_format is None:
            prompt = "".join(f"{text}\n" for text in history)
        else:
            history = dialogue_format.context(history)
            prompt = dialogue_format.prompt(history, persona)
        talk.replies.append(Reply(prompt, dialogue.turns[i].text, [], {**dialogue.meta_data, "history": history}))
    return talk


def baseline_scores(talks: Sequence[Talk]) -> Iterator[Scores]:
    """Length, with which every score should be compared: people often prefer longer replies and conversations."""
    words = [[len(reply.text.split()) for reply in talk.replies] for talk in talks]
    yield Scores("baseline/words_per_reply", [sum(each) / len(each) for each in words])
    if any(len(each) > 1 for each in words):
        yield Scores("baseline/words", [float(sum(each)) for each in words])
        yield Scores("baseline/replies", [float(len(each)) for each in words])


def metric_scores(name: str, metric: BaseMetric | DialogueMetric, talks: Sequence[Talk]) -> Iterator[Scores]:
    """Scores by a metric, by key; of a group with dozens of keys only the most informative.

    A metric without scores per text is computed for each dialogue separately.
    """
    if getattr(metric, "needs_references", False):
        yield Scores(name, problem=REFERENCES)
        return
    try:
        found = compute_metrics([metric], talks, "test", None)
        for key in [key for key in found if is_headline(key)] or found:
            each = found[key][0]
            if each is None:
                each = [compute_metrics([metric], [talk], "test", None)[key][1] for talk in talks]
            yield Scores(key, each)
    except Exception as error:  # a metric may be any code; the others are still computed
        yield Scores(name, problem=_reason(error))


def reward_scores(scorer: Scorer, talks: Sequence[Talk]) -> Iterator[Scores]:
    """Scores by each part of a reward, and their sum as ``reward`` if all can be computed."""
    parts = scorer.parts
    columns = [_part_scores(part, scorer, talks) for part in parts]
    if len(parts) > 1 or parts[0].weight != 1.0 or parts[0].clip is not None:
        if problems := [f"{each.name}: {each.problem}" for each in columns if each.problem]:
            yield Scores("reward", problem="; ".join(problems))
        else:
            rows = zip(*(each.values for each in columns), strict=True)
            by_name = [dict(zip([part.name for part in parts], row, strict=True)) for row in rows]
            yield Scores("reward", [float(weighted_sum(parts, row)) for row in by_name])
    for column in columns:
        yield replace(column, name=f"reward/{column.name}")


def _part_scores(part: RewardPart, scorer: Scorer, talks: Sequence[Talk]) -> Scores:
    if getattr(part.function, "needs_partner", False):
        return Scores(part.name, problem="it comes from the partner of a conversation, which rated ones do not have")
    if names_needing([part], "references"):
        return Scores(part.name, problem=REFERENCES)
    if names_needing([part], "tokens"):
        return Scores(part.name, problem="it needs the tokens of replies, and these are texts")
    of_conversation = isinstance(part.function, (ConversationReward, BatchedConversationReward))
    rows = [(talk, reply) for talk in talks for reply in talk.replies]
    replies = FinishedReplies(
        [reply.prompt for _, reply in rows],
        [reply.text for _, reply in rows],
        [reply.references for _, reply in rows],
        [reply.meta_info for _, reply in rows],
        [talk.dialogue.id for talk, _ in rows],
        [not of_conversation or reply is talk.replies[-1] for talk, reply in rows],
        # The conversation after each turn: up to the answer to each of the agent's replies.
        [replace(t.dialogue, turns=t.dialogue.turns[:end]) for t in talks for end in t.dialogue.turn_bounds[1:]],
    )
    try:
        values = replace(scorer, parts=[part]).values(replies)[part.name]
    except RL4DialogError as error:
        return Scores(part.name, problem=_reason(error))
    earlier = replies.earlier.get(part.name) or [[]] * len(values)
    paid = iter(value + sum(before) for value, before in zip(values, earlier, strict=True))
    of_talks = [list(itertools.islice(paid, len(talk.replies))) for talk in talks]
    if of_conversation:
        return Scores(part.name, [sum(each) for each in of_talks])
    return Scores(part.name, [sum(each) / len(each) if each else math.nan for each in of_talks])


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, RL4DialogError) else f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class Agreement:
    """Agreement of one score with one rating."""

    score: str
    rating: str
    correlation: Correlation  # over dialogues or replies
    of_systems: Correlation | None = None  # over the systems' means, if the data compares at least three systems


@dataclass(frozen=True)
class Validation:
    """Result of a validation: all columns of scores, and an agreement for each that can be computed and each rating."""

    rated: Sequence[RatedDialogue]
    ratings: Sequence[str]
    scores: Sequence[Scores]
    agreements: Sequence[Agreement]

    @property
    def systems(self) -> list[str]:
        return list(dict.fromkeys(each.system for each in self.rated if each.system is not None))


def rating_values(rated: Iterable[RatedDialogue], rating: str) -> list[float]:
    """One value per dialogue; NaN for a gap."""
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
    config: TextConfig, rated: Sequence[RatedDialogue], ratings: Sequence[str] = (), n_resamples: int = N_RESAMPLES
) -> Validation:
    """Compute all scores of a config on rated dialogues, and their correlations with the ratings."""
    known = list(dict.fromkeys(name for each in rated for name in each.ratings))
    for name in ratings:
        if name not in known:
            raise ConfigError(f"there is no rating {name!r}{nearest_hint(name, known)} (ratings: {', '.join(known)})")
    chosen = list(ratings or known)
    scores = compute_scores(config, rated)
    pairs = [(column, rating) for rating in chosen for column in scores if column.problem is None]
    numbers = {each: number for number, each in enumerate(dict.fromkeys(each.conversation for each in rated))}
    groups, agreements = [numbers[each.conversation] for each in rated], []
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
    parts = Assembly(config)
    talks = [talk_of(each, parts.data.pools["train"].dialogue_format) for each in rated]
    columns = list(baseline_scores(talks))
    for chosen, metric in zip(config.train_evaluation.metrics, parts.metrics, strict=True):
        columns += metric_scores(chosen.id, metric, talks)
    reward = config.reward_fn
    if reward is not None and not config.uses_reward:
        columns.append(Scores("reward", problem="this run does not use it (train_evaluation.score_predictions: false)"))
    elif reward is not None:
        of_reward = as_parts(reward_builder(parts.toolkit)(reward.id, reward.args), reward.id)
        scorer = Scorer(of_reward, reward.on_error, parts.toolkit["async_calls"], reward.timeout_s, parts.tokenizer)
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


_MAX_NAME_LENGTH = 50  # file systems allow 255 bytes; a character has up to 4
_UNKNOWN = Interval(math.nan, math.nan)


def write_validation(validation: Validation, folder: Path, about: dict[str, Any]) -> None:
    """Write ``correlations.json``, ``scores.csv`` and one picture per rating."""
    make_folder(folder)
    left_out = {column.name: column.problem for column in validation.scores if column.problem}
    counts = {"n": len(validation.rated), "n_systems": len(validation.systems), "not_computed": left_out}
    rows = [_record(agreement) for agreement in validation.agreements]
    write_json(folder / "correlations.json", {**about, **counts, "correlations": rows})
    columns: dict[str, Sequence[Any]] = {
        "id": [each.dialogue.id for each in validation.rated],
        "conversation": [each.conversation for each in validation.rated],
        "system": [each.system or "" for each in validation.rated],
        **{f"rating/{name}": rating_values(validation.rated, name) for name in validation.ratings},
        **{column.name: column.values for column in validation.scores if column.problem is None},
    }
    write_csv(folder / "scores.csv", [columns, *zip(*columns.values(), strict=True)])
    names: set[str] = set()
    for rating in validation.ratings:
        found = [(each.score, each.correlation) for each in _ordered(validation, rating)]
        known = [(score, each, each.spearman_interval or _UNKNOWN) for score, each in found if not each.problem]
        if bars := [(score, each.spearman, (limits.low, limits.high)) for score, each, limits in known]:
            name = "".join(c if c.isalnum() else "_" for c in rating)[:_MAX_NAME_LENGTH]
            while name in names:
                name += "_"
            names.add(name)
            _plot_correlations(rating, bars, folder / f"correlations_{name}.png")


def _plot_correlations(rating: str, bars: Sequence[tuple[str, float, tuple[float, float]]], png: Path) -> None:
    """Plot rank correlations with a rating as horizontal bars: name, correlation, and bounds of its interval or NaN."""
    figure, (axes,) = plain_figure(7.0, 1.2 + 0.28 * len(bars))
    for row, (name, value, (low, high)) in enumerate(bars):
        color = "tab:gray" if name.startswith("baseline/") else "tab:blue"
        axes.barh(row, value, color=color, alpha=0.7)
        axes.plot([low, high], [row, row], color="black", linewidth=1)
    axes.set_yticks(range(len(bars)), [name for name, *_ in bars], fontsize="small")
    axes.invert_yaxis()
    axes.axvline(0.0, color="gray", linewidth=1)
    axes.set_xlabel(f"Spearman correlation with {rating!r} (gray: length alone)")
    axes.yaxis.grid(False)
    save_figure(figure, png)


def print_validation(validation: Validation) -> None:
    """Print a table per rating, strongest correlation first, and what could not be computed."""
    # In a file, the table need not fit a terminal.
    console = Console(width=None if sys.stdout.isatty() else 120)
    n_systems = len(validation.systems)
    for rating in validation.ratings:
        ordered = _ordered(validation, rating)
        with_systems = any(each.of_systems is not None for each in ordered)
        n_gaps = sum(map(math.isnan, rating_values(validation.rated, rating)))
        gaps = f", {n_gaps} without this rating" if n_gaps else ""
        title = f"Agreement with the rating {rating!r}: {len(validation.rated)} items{gaps}"
        table = Table(title=Text(title), title_justify="left", box=table_style(console), pad_edge=False)
        table.add_column("score", overflow="fold")
        for name in ("Spearman", "95 %", "Kendall", "95 %", "n"):
            table.add_column(name, justify="right", no_wrap=True)
        if with_systems:
            table.add_column(f"Spearman of {n_systems} systems", justify="right")
        for each in ordered:
            if (found := each.correlation).problem is None:
                cells = [format_number(found.spearman, "+"), format_interval(found.spearman_interval, "+")]
                cells += [format_number(found.kendall, "+"), format_interval(found.kendall_interval, "+"), str(found.n)]
                if with_systems:
                    cells.append(format_number(each.of_systems.spearman if each.of_systems else None, "+"))
                table.add_row(Text(each.score), *cells)
        console.print(table)
        for each in ordered:
            if each.correlation.problem:
                console.print(Text(f"{each.score}: no correlation, because {each.correlation.problem}"))
        if with_systems:
            console.print(Text(f"{n_systems} systems are few: their correlation is uncertain."))
    for column in validation.scores:
        if column.problem:
            console.print(Text(f"{column.name} cannot be computed: {column.problem}"))


def _ordered(validation: Validation, rating: str) -> list[Agreement]:
    """Agreements with a rating, the strongest first."""
    of_rating = (each for each in validation.agreements if each.rating == rating)
    return sorted(of_rating, key=lambda each: -abs(np.nan_to_num(each.correlation.spearman)))


def _record(agreement: Agreement) -> dict[str, Any]:
    found, systems = agreement.correlation, agreement.of_systems or Correlation(0)
    row: dict[str, Any] = {"score": agreement.score, "rating": agreement.rating, "n": found.n}
    for name in ("spearman", "kendall"):
        interval = getattr(found, f"{name}_interval") or _UNKNOWN
        row |= {name: getattr(found, name), f"{name}_low": interval.low, f"{name}_high": interval.high}
    row |= {"systems_spearman": systems.spearman, "systems_kendall": systems.kendall}
    return {**row, "problem": found.problem or ""}
