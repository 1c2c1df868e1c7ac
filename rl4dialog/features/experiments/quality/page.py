"""The page of a comparison: a table for each world, with intervals over seeds, in Markdown, and its pictures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median, median_high, median_low

import numpy as np
from scipy import stats

from rl4dialog.features.experiments.quality.cross_play import MEANS, CrossPlay
from rl4dialog.features.experiments.quality.outcomes import (
    Outcome,
    Outcomes,
    at_kl,
    probability_of_improvement,
    win_rate,
)
from rl4dialog.features.experiments.quality.plan import BEFORE, QualityPlan
from rl4dialog.functional.statistics import Estimate
from rl4dialog.runs.plots import plain_figure, save_figure
from rl4dialog.runs.report.metrics import mean_estimate

_HOW_TO_READ = (
    "Numbers are means over seeds, with 95 % intervals over seeds (Student's t) in brackets; "
    "IQM is the mean of the middle half. Differences are between runs of the same seed, and so are their "
    "intervals. *At equal tokens* is the validation metric once as many agent tokens are spent as the shortest "
    "run has, and *tokens to* a level the median over seeds; both are read from the evaluations by linear "
    "interpolation. Tokens are all that the agent says in training, those of a critic's warmup included. Seconds "
    "are those of rollouts and updates; what was spent is a median over seeds."
)
_OF_OWN_CONFIGS = (
    "*Better than* is the share of pairs of runs in which the row's run has the higher metric. *KL* is that to the "
    "reference model at the end, in nats per token."
)
_OF_WIN_RATES = (
    "*Wins* are the share of test samples whose `{score}` is higher after training than before, with intervals over "
    "seeds and samples; *at equal length*, without what a linear regression on the change of `{length}` explains."
)
_OF_COMPARISONS = (
    "Fixed in the plan before the runs. p is that of a paired t test; the last column is adjusted for all {n} tests of "
    "the plan (Holm 1979)."
)


_OF_CROSS_PLAY = (
    "Agents (rows) talk with partners (columns) about the same samples, with the same seeds: means of `{metric}`, with "
    "95 % intervals over samples and, of several runs, over runs. * marks partners met in training; *gap* is how much "
    "more an agent reaches with these than with partners never met."
)
_OF_POOLED = (
    " Means are over the worlds in which an agent has runs, differences over those in which both have some: compare "
    "agents by these. Intervals take samples of different worlds as independent."
)


def cross_play_parts(plan: QualityPlan, found: CrossPlay, heatmap: str) -> list[str]:
    """The part of the page about agents and partners."""
    parts = ["## Cross-play", f"![agents by partners]({heatmap})"]
    how_to_read = _OF_CROSS_PLAY + _OF_POOLED * bool(plan.worlds)
    for metric, of_agents in found.scores.items():
        rows = []
        for agent in of_agents:
            cells = found.estimates(metric, agent)
            means = (_interval(each) + " *" * (name in found.met[agent]) for name, each in cells.items())
            rows.append([found.label(agent), *means])
        header = ["agent", *found.partners, *MEANS]
        parts += [f"### {plan.metrics.get(metric, metric)}", how_to_read.format(metric=metric), _table(header, rows)]
        reference = plan.reference if plan.reference in of_agents else next(iter(of_agents))
        pairs = [[agent, reference] for agent in of_agents if agent != reference]
        pairs += [pair for pair in plan.comparisons if {*pair} <= of_agents.keys() and pair not in pairs]
        compared = [[*pair, *map(_interval, found.differences(metric, *pair).values())] for pair in pairs]
        parts += ["Differences:", _table(["agent", "compared with", *found.partners], compared)] if pairs else []
    return parts


def worlds_page(
    plan: QualityPlan, outcomes: Outcomes, command: str, curves: str, dots: str, more: Sequence[str] = ()
) -> str:
    """Write the page, with the command that makes it, the paths of both images, and more parts."""
    if not outcomes.done:
        whole = [f"# {plan.title}", plan.about, *more, *plan.notes, "## Command", f"```\n{command}\n```"]
        return "\n\n".join(part for part in whole if part) + "\n"
    parts = [f"![metrics after training]({dots})"]
    for name, world in plan.compared_in.items():
        if (found := outcomes.of_world(name)).done:
            same_kl = _same_kl(found, world.metric)
            parts += [f"## {name or 'Test metrics'}", *_world_table(plan, name, found), *_starts(found), *same_kl]
    if compared := _comparisons(plan, outcomes):
        parts += ["## Comparisons", compared]
    if not math.isnan(_fewest_tokens(outcomes)):
        parts += ["## Curves", f"![curves over tokens]({curves})"]
    parts += [*more, "## Runs", _made_by(outcomes)]
    how_to_read = _HOW_TO_READ
    if (n := len(outcomes.missing)) > 0:
        names = ", ".join(outcomes.missing[:10]) + (f" and {n - 10} more" if n > 10 else "")
        how_to_read += f" **{n} run(s) failed or are missing, and are not in the tables: {names}.**"
    whole = [f"# {plan.title}", plan.about, how_to_read, *parts, *plan.notes, "## Command", f"```\n{command}\n```"]
    return "\n\n".join(part for part in whole if part) + "\n"


def _same_kl(outcomes: Outcomes, metric: str) -> list[str]:
    if (kl := matched_kl(outcomes)) is None:
        return []
    text = "Change on the validation split where each run first reaches this KL, read from its evaluations by linear "
    text += "interpolation."
    if missed := [f"{run.row} with seed {run.seed}" for run in outcomes.done if max(run.kls, default=0.0) < kl]:
        text += f" These runs do not reach it and are left out: {', '.join(missed)}."
    rows = []
    for label in outcomes.rows():
        changes = [at_kl(run.kls, run.curves[metric], kl) - run.curves[metric][0] for run in outcomes.of(label)]
        rows.append([label, _interval(mean_estimate(changes))])
    return [f"### At the same KL: {kl:.3f} nats per token", text, _table(["", metric], rows)]


def matched_kl(outcomes: Outcomes) -> float | None:
    """The largest KL that at least half of the runs of every group reach; ``None`` if there is none above 0."""
    highest = [[max(run.kls, default=0.0) for run in outcomes.of(label)] for label in outcomes.rows()]
    lowest = min(map(median_low, highest))
    return lowest if lowest > 0 else None


def reference_of(plan: QualityPlan, outcomes: Outcomes) -> str:
    """The plan's reference; in a world without its runs, the first row that has some."""
    wanted = plan.reference or next(iter(plan.runs))
    return wanted if outcomes.of(wanted) else outcomes.rows()[0]


def _world_table(plan: QualityPlan, name: str, outcomes: Outcomes) -> list[str]:
    world, reference = plan.compared_in[name], reference_of(plan, outcomes)
    metric, base, shortest = world.metric, outcomes.of(reference), _fewest_tokens(outcomes)

    def mean_of(number_of: Callable[[Outcome], float]) -> Callable[[list[Outcome]], str]:
        return lambda runs: _interval(mean_estimate(list(map(number_of, runs))))

    columns: dict[str, Callable[[list[Outcome]], str]] = {
        "seeds": lambda runs: str(len(runs)),
        metric if name else plan.metrics[metric]: mean_of(lambda run: run.after[metric]),
        "IQM": lambda runs: _number(float(stats.trim_mean([run.after[metric] for run in runs], 0.25))),
        f"more than {reference}": lambda runs: _interval(mean_estimate(paired_differences(runs, base, metric))),
    }
    if (ceiling := world.ceiling) is not None:
        columns["of the way to the ceiling"] = lambda runs: _share(runs, base, metric, ceiling)
    columns["at equal tokens"] = mean_of(lambda run: at_kl(run.spent["tokens"], run.curves[metric], shortest))
    if (level := world.level) is not None:
        columns[f"tokens to {level:g}"] = lambda runs: _median_of_reached(
            [at_kl(run.curves[metric], run.spent["tokens"], level) for run in runs]
        )
    columns |= {label: mean_of(lambda run, key=key: run.after[key]) for key, label in plan.metrics.items()}  # type: ignore[misc]
    about = [] if math.isnan(shortest) else [f"Equal tokens: {shortest:,.0f}."]
    about += [] if ceiling is None else [f"Ceiling: {ceiling:g}; the way to it is that of the seeds of both rows."]
    if not name:
        after = [run.after[metric] for run in base]
        columns["change by training"] = mean_of(lambda run: run.after[metric] - run.before[metric])
        columns[f"better than {reference}"] = lambda runs: _number(
            probability_of_improvement([run.after[metric] for run in runs], after)
        )
        columns["KL"] = mean_of(lambda run: run.kls[-1])
        about.append(_OF_OWN_CONFIGS)
    if (rate := plan.win_rate) is not None:
        for column, length in (("wins", None), ("wins at equal length", rate.length)):
            columns[column] = lambda runs, length=length: _interval(  # type: ignore[misc]
                win_rate([run.changes for run in runs], rate.score, length)
            )
        about.append(_OF_WIN_RATES.format(score=rate.score, length=rate.length))
    for what in ("tokens", "conversations", "seconds"):
        columns[what] = lambda runs, what=what: _whole(median([run.spent[what][-1] for run in runs]))  # type: ignore[misc]
    columns["MiB"] = lambda runs: _whole(median([run.peak_mib for run in runs]))
    rows = {label: {column: cell(outcomes.of(label)) for column, cell in columns.items()} for label in outcomes.rows()}
    # Without a number, such as tokens of policies that take whole actions, there is no column.
    shown = [column for column in columns if any(row[column] != "n/a" for row in rows.values())]
    if not name:
        rows = {BEFORE: _means(plan, [run.before for run in outcomes.done]), **rows}
        if references := [run.references for run in outcomes.done if run.references]:
            rows["reference replies"] = _means(plan, references)
    table = _table(["", *shown], [[label, *(row.get(column, "") for column in shown)] for label, row in rows.items()])
    return [" ".join(about), table]


def _fewest_tokens(outcomes: Outcomes) -> float:
    """Agent tokens of the shortest run that has any; NaN if none has."""
    return min((tokens for run in outcomes.done if (tokens := run.spent["tokens"][-1]) > 0), default=math.nan)


def _means(plan: QualityPlan, metrics: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """Cells of the plan's metrics, by column."""
    known = {key: [each[key] for each in metrics if key in each] for key in plan.metrics}
    return {
        label: _number(sum(known[key]) / len(known[key]) if known[key] else math.nan)
        for key, label in plan.metrics.items()
    }


def _median_of_reached(tokens: Sequence[float]) -> str:
    """The median, of which runs that do not reach the level take more than any other, and how many reach it."""
    usual = median_high([math.inf if math.isnan(each) else each for each in tokens])
    shown = "never" if usual == math.inf else f"{usual:,.0f}"
    return f"{shown} ({sum(map(math.isfinite, tokens))} of {len(tokens)})"


def paired_differences(ours: Sequence[Outcome], others: Sequence[Outcome], metric: str) -> list[float]:
    """Differences of a test metric between the runs of two rows that have the same seed."""
    # Rounded, because equal differences have no spread, and not a tiny one that would look like certainty.
    return [round(own - other, 9) for own, other in _of_same_seed(ours, others, metric)]


def _of_same_seed(ours: Sequence[Outcome], others: Sequence[Outcome], metric: str) -> list[tuple[float, float]]:
    theirs = {run.seed: run.after[metric] for run in others}
    return [(run.after[metric], theirs[run.seed]) for run in ours if run.seed in theirs]


def _share(ours: Sequence[Outcome], others: Sequence[Outcome], metric: str, ceiling: float) -> str:
    """The differences, over what the other row lacks with the same seeds, and the number of seeds."""
    pairs = [pair for pair in _of_same_seed(ours, others, metric) if not math.isnan(sum(pair))]
    gained = round(sum(own - other for own, other in pairs), 9)
    lacked = round(sum(ceiling - other for _, other in pairs), 9)
    # Without anything to gain there is no way; and a few seeds above the ceiling are not the row if that is below it.
    if lacked <= 0 or (gained > lacked and mean_estimate([run.after[metric] for run in ours]).value < ceiling):
        return "n/a"
    return f"{_number(gained / lacked)} ({len(pairs)} seed{'s' * (len(pairs) > 1)})"


def _starts(outcomes: Outcomes) -> list[str]:
    """Names runs that did not begin with the same weights as most of their seed."""
    found = []
    for seed in sorted({run.seed for run in outcomes.done}):
        starts = {run.row: run.made_by["first_weights"] for run in outcomes.done if run.seed == seed}
        usual = Counter(starts.values()).most_common(1)[0][0]
        found += [f"{row} with seed {seed}" for row, start in starts.items() if start != usual]
    return (
        [f"**These runs began with other weights than the rest of their seed: {', '.join(found)}.**"] if found else []
    )


def _comparisons(plan: QualityPlan, outcomes: Outcomes) -> str:
    tested: dict[tuple[str, str, str], list[float]] = {}
    for name, world in plan.compared_in.items():
        found = outcomes.of_world(name)
        for ours, others in plan.comparisons:
            rows_of = [plan.runs.get(label) for label in (ours, others) if label != BEFORE]
            if all(row is not None and name in (row.worlds or plan.compared_in) for row in rows_of):
                runs = found.of(ours)
                base = [replace(run, after=run.before) for run in runs] if others == BEFORE else found.of(others)
                differences = tested.setdefault(("all" if plan.pools_worlds else name, ours, others), [])
                differences += paired_differences(runs, base, world.metric)
    rows, p_values = [], []
    for row, differences in tested.items():
        estimate = mean_estimate(differences)
        p_values.append(math.nan if estimate.interval is None else float(stats.ttest_1samp(differences, 0.0).pvalue))
        rows.append([*row, str(len(differences)), _interval(estimate)])
    adjusted = holm(p_values)
    cells = [[*row, *map(_p, ps)] for row, ps in zip(rows, zip(p_values, adjusted, strict=True), strict=True)]
    header = ["world", "row", "compared with", "pairs", "difference", "p", "adjusted p"]
    return _OF_COMPARISONS.format(n=len(rows)) + "\n\n" + _table(header, cells) if rows else ""


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values, which control the probability of any false finding (Holm 1979). NaN counts as a test."""
    p, n = np.asarray(p_values, dtype=float), len(p_values)
    order, adjusted = np.argsort(p), np.empty(n)
    adjusted[order] = np.maximum.accumulate(np.minimum((n - np.arange(n)) * p[order], 1.0))
    return adjusted.tolist()


def _p(value: float) -> str:
    return "n/a" if math.isnan(value) else "< .001" if value < 0.001 else f"{value:.3f}".lstrip("0")


def _made_by(outcomes: Outcomes) -> str:
    """How many runs were made by which code, with which versions, on which machine."""
    counts: Counter[tuple[str, ...]] = Counter()
    for run in outcomes.done:
        made, machine = run.made_by, run.made_by["machine"]
        versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
        of_machine = f"{machine['cpu']}, {machine['cpu_cores']} cores, {machine['torch_threads']} threads per run"
        commit = made["commit"][:10] + (", with changes" if made["is_modified"] else "")
        counts[commit, versions, ", ".join([of_machine, *made["gpus"]])] += 1
    return _table(["runs", "commit", "versions", "machine"], [[str(n), *key] for key, n in sorted(counts.items())])


def plot_worlds(plan: QualityPlan, outcomes: Outcomes, curves_png: Path, dots_png: Path) -> None:
    """Plot the metric of each world: curves over tokens, and means after training with intervals.

    Curves have a row of axes for each row, where those of the reference are gray, and a column for each world.
    """
    names = [name for name in plan.compared_in if outcomes.of_world(name).done]
    labels = outcomes.rows()
    size = len(labels), len(names)
    figure, axes = plain_figure(3.0 * size[1] + 0.5, 1.5 * size[0] + 0.5, *size, sharey="col")
    dots, dot_axes = plain_figure(3.0 * size[1] + 1.5, 0.28 * size[0] + 1.2, 1, size[1], sharey=True)
    for column, name in enumerate(names):
        world, found = plan.compared_in[name], outcomes.of_world(name)
        reference = reference_of(plan, found)
        for row, label in enumerate(labels):
            here = axes[row * size[1] + column]
            for each, color in dict([(reference, "gray"), (label, "C0")]).items():
                for run in found.of(each):
                    here.plot(run.spent["tokens"], run.curves[world.metric], color=color, linewidth=0.8, alpha=0.6)
            if world.ceiling is not None:
                here.axhline(world.ceiling, color="gray", linestyle="--", linewidth=1)
            here.set_title(", ".join(filter(None, (label, name))), fontsize="small")
            final = mean_estimate([run.after[world.metric] for run in found.of(label)])
            low, high = (final.interval.low, final.interval.high) if final.interval else (final.value, final.value)
            dot_axes[column].plot([low, high], [row, row], color="C0", linewidth=1.5)
            dot_axes[column].plot(final.value, row, "o", color="C0", markersize=4)
        axes[-size[1] + column].set_xlabel(f"agent tokens ({world.metric})", fontsize="small")
        dot_axes[column].set_title(name, fontsize="small")
        dot_axes[column].set_xlabel(world.metric)
        if world.ceiling is not None:
            dot_axes[column].axvline(world.ceiling, color="gray", linestyle="--", linewidth=1)
    dot_axes[0].set_yticks(range(size[0]), labels, fontsize="small")
    dot_axes[0].invert_yaxis()
    save_figure(figure, curves_png)
    save_figure(dots, dots_png)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _interval(found: Estimate) -> str:
    if found.interval is None:
        return _number(found.value)
    return f"{_number(found.value)} [{_number(found.interval.low)}, {_number(found.interval.high)}]"


def _number(value: float) -> str:
    if math.isnan(value):
        return "n/a"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3f}"


def _whole(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{value:,.0f}"
