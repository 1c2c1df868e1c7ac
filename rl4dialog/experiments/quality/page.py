"""The page of a comparison: tables with intervals over seeds, in Markdown, and the frontier of metric against KL."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median_low

from rl4dialog.experiments.quality.outcomes import (
    Outcome,
    Outcomes,
    at_kl,
    probability_of_improvement,
    smoothed,
    tokens_to_reward,
    win_rate,
)
from rl4dialog.experiments.quality.plan import QualityPlan, WinRate
from rl4dialog.functional.statistics import Estimate
from rl4dialog.runs.plots import plain_figure, save_figure
from rl4dialog.runs.reading import number
from rl4dialog.runs.report.metrics import mean_estimate

_SHARE_OF_GAIN = 0.8
_HOW_TO_READ = (
    "Numbers are means over seeds, with 95 % intervals over seeds (Student's t) in brackets. A number without one "
    "is of a single seed, or all seeds gave the same."
)


def markdown_page(plan: QualityPlan, outcomes: Outcomes, command: str, picture: str) -> str:
    """Write the page, with the command that makes it, and the path of the frontier's image."""
    parts = [f"# {plan.title}", plan.about, _HOW_TO_READ]
    if failed := outcomes.missing:
        parts[-1] += f" **{len(failed)} run(s) failed and are not in the tables: {', '.join(failed)}.**"
    if plan.worlds:
        for name, world in plan.worlds.items():
            if (found := outcomes.of_world(name)).done:
                metrics = {world.metric: world.metric, **plan.metrics}
                parts += [f"## {name}", _test_table(plan.model_copy(update={"metrics": metrics}), found)]
        return "\n\n".join([*parts, *plan.notes, "## Command", f"```\n{command}\n```"]) + "\n"
    labels = outcomes.rows()
    parts += ["## Test metrics", _test_table(plan, outcomes), "## Change by training"]
    parts.append(
        _by_label(plan, outcomes, labels, lambda runs, key: _mean_of_all([r.after[key] - r.before[key] for r in runs]))
    )
    if plan.win_rate is not None:
        parts += ["## Win rate against the start", _win_rate_table(plan.win_rate, outcomes)]
    if (kl := matched_kl(outcomes)) is not None:

        def change(runs: Sequence[Outcome], key: str) -> Estimate:
            curves = [[value - run.curves[key][0] for value in run.curves[key]] for run in runs]
            return mean_estimate([at_kl(run.kls, curve, kl) for run, curve in zip(runs, curves, strict=True)])

        parts += [f"## At the same KL: {kl:.3f} nats per token", _matched_text(outcomes, kl)]
        parts += [_by_label(plan, outcomes, labels, change), f"![metric against KL]({picture})"]
    if len(labels) > 1:
        if _counts_tokens(outcomes):
            parts += ["## Tokens to the same training reward", _tokens_table(outcomes)]
        first = outcomes.of(labels[0])

        def probability(runs: Sequence[Outcome], key: str) -> Estimate:
            return probability_of_improvement(*([run.after[key] for run in each] for each in (runs, first)))

        text = f"Share of pairs of runs in which the row's run has a higher test metric than that of {labels[0]}."
        parts += ["## Probability of improvement", text, _by_label(plan, outcomes, labels[1:], probability)]
    parts += [*plan.notes, "## Command", f"```\n{command}\n```"]
    return "\n\n".join(part for part in parts if part) + "\n"


def matched_kl(outcomes: Outcomes) -> float | None:
    """The largest KL that at least half of the runs of every group reach; ``None`` if there is none above 0."""
    highest = [[max(run.kls, default=0.0) for run in outcomes.of(label)] for label in outcomes.rows()]
    lowest = min(map(median_low, highest))
    return lowest if lowest > 0 else None


def plot_frontier(plan: QualityPlan, outcomes: Outcomes, output_png: Path) -> None:
    """Plot the first metrics of the plan on the validation split against the KL, one line per run."""
    keys = list(plan.metrics)[:2]
    figure, all_axes = plain_figure(4.2 * len(keys), 3.8, n_columns=len(keys))
    for axes, key in zip(all_axes, keys, strict=True):
        for i, label in enumerate(outcomes.rows()):
            for n, run in enumerate(outcomes.of(label)):
                axes.plot(
                    run.kls, run.curves[key], color=f"C{i}", lw=1.2, alpha=0.7, marker="o", markersize=2.5,
                    label=label if n == 0 else None,
                )  # fmt: skip
        axes.set_xlabel("KL to the reference per token [nats]")
        axes.set_ylabel(f"{plan.metrics[key]} (validation)")
    all_axes[0].legend(loc="best", frameon=False, fontsize="small")
    save_figure(figure, output_png)


def _test_table(plan: QualityPlan, outcomes: Outcomes) -> str:
    done, n_of_text = outcomes.done, 2 * _counts_tokens(outcomes)  # KL and tokens, which other runs have not
    starts = {tuple(sorted(run.before.items())) for run in done}
    name = "before training" if len(starts) == 1 else "before training (mean)"
    before = [_number(_mean([run.before[key] for run in done])) for key in plan.metrics]
    rows = [[name, "", *before, "", "", ""]]
    for label in outcomes.rows():
        runs = outcomes.of(label)
        cells = [_interval(_mean_of_all([run.after[key] for run in runs])) for key in plan.metrics]
        kl, tokens = _mean([run.kls[-1] for run in runs if run.kls]), _mean([sum(run.tokens) for run in runs])
        hours = _mean([run.hours for run in runs])
        time = f"{hours * 60:.0f} min" if hours >= 1 / 60 else f"{hours * 3600:.0f} s"
        rows.append([label, str(len(runs)), *cells, time, _number(kl), f"{tokens / 1000:.0f}k"])
    if done[0].references:
        ceiling = [_number(done[0].references.get(key)) for key in plan.metrics]
        rows.append(["reference replies", "", *ceiling, "", "", ""])
    width = 3 + len(plan.metrics) + n_of_text
    header = ["", "seeds", *plan.metrics.values(), "training time", "KL", "tokens"]
    return _table(header[:width], [row[:width] for row in rows])


def _counts_tokens(outcomes: Outcomes) -> bool:
    """Whether the runs are on text."""
    return all(math.isfinite(sum(run.tokens)) for run in outcomes.done)


def _win_rate_table(win_rate_of: WinRate, outcomes: Outcomes) -> str:
    text = (
        f"Share of test samples whose `{win_rate_of.score}` is higher after training than before, with 95 % "
        f"intervals over seeds and samples. At equal length: without what a linear regression on the change of "
        f"`{win_rate_of.length}` explains."
    )
    rows = []
    for label in outcomes.rows():
        changes = [run.changes for run in outcomes.of(label)]
        found = [win_rate(changes, win_rate_of.score, length) for length in (win_rate_of.length, None)]
        rows.append([label, *map(_interval, found)])
    return text + "\n\n" + _table(["", "at equal length", "as it is"], rows)


def _matched_text(outcomes: Outcomes, kl: float) -> str:
    text = "Change on the validation split where each run first reaches this KL, read from its evaluations by linear "
    text += "interpolation."
    missed = [f"{run.row} with seed {run.seed}" for run in outcomes.done if max(run.kls, default=0.0) < kl]
    return text + (f" These runs do not reach it and are left out: {', '.join(missed)}." if missed else "")


def _tokens_table(outcomes: Outcomes) -> str:
    """Tokens to a reward that every run reaches, and how well the critic predicted returns at the start."""
    first = _mean([run.rewards[0] for run in outcomes.done])
    # Not the highest one: near the plateau, the number of tokens is a matter of chance.
    highest = min(max(smoothed(run.rewards)) for run in outcomes.done)
    level = min(first + _SHARE_OF_GAIN * (highest - first), highest)
    text = (
        f"Agent tokens, in thousands, until the mean task reward of the rollouts of three iterations reaches "
        f"{_number(level)}: {_SHARE_OF_GAIN:.0%} of the way from the first rollouts to the highest that every run "
        f"reaches. Explained variance of the returns by the critic is that of the rollouts before the policy's first "
        f"step."
    )
    rows = []
    for label in outcomes.rows():
        runs = outcomes.of(label)
        thousands = [tokens_to_reward(run.rewards, run.tokens, level) / 1000 for run in runs]
        explained = [number(run.explained_variance) for run in runs]
        # Without a critic, or if all returns are equal, there is nothing to explain.
        rows.append([label, _interval(_mean_of_all(thousands)), _interval(mean_estimate(explained))])
    return text + "\n\n" + _table(["", "tokens [thousands]", "explained variance"], rows)


def _by_label(
    plan: QualityPlan, outcomes: Outcomes, labels: Sequence[str], measure: Callable[[Sequence[Outcome], str], Estimate]
) -> str:
    """A table of a number of runs and metric, by group and metric."""
    rows = [[label, *(_interval(measure(outcomes.of(label), key)) for key in plan.metrics)] for label in labels]
    return _table(["", *plan.metrics.values()], rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _interval(found: Estimate) -> str:
    if found.interval is None:
        return _number(found.value)
    return f"{_number(found.value)} [{_number(found.interval.low)}, {_number(found.interval.high)}]"


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "n/a"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3f}"


def _mean_of_all(values: Sequence[float]) -> Estimate:
    """NaN if the number of a run is missing: a mean of the others would not be that of this row's runs."""
    return Estimate(math.nan) if any(map(math.isnan, values)) else mean_estimate(values)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
