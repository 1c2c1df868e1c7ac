"""The page of a comparison: tables with intervals over seeds, in Markdown, and the frontier of metric against KL."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median, median_high, median_low

from scipy import stats

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
from rl4dialog.functional.statistics import Estimate, holm
from rl4dialog.runs.plots import plain_figure, save_figure
from rl4dialog.runs.reading import number
from rl4dialog.runs.report.metrics import mean_estimate

_SHARE_OF_GAIN = 0.8
_MEANS = "Numbers are means over seeds, with 95 % intervals over seeds (Student's t) in brackets"
_HOW_TO_READ = f"{_MEANS}. A number without one is of a single seed, or all seeds gave the same."
_OF_WORLDS = (
    f"{_MEANS}; "
    "IQM is the mean of the middle half. Differences are between runs of the same seed, and so are their "
    "intervals. *At equal tokens* is the validation metric once as many agent tokens are spent as the shortest "
    "run has, and *tokens to* a level the median over seeds; both are read from the evaluations by linear "
    "interpolation. Tokens are all that the agent says in training, those of a critic's warmup included. Seconds "
    "are those of rollouts and updates; what was spent is a median over seeds."
)
_OF_COMPARISONS = (
    "Fixed in the plan before the runs. p is that of a paired t test; the last column is adjusted for all {n} tests of "
    "the plan (Holm 1979)."
)


def markdown_page(plan: QualityPlan, outcomes: Outcomes, command: str, picture: str) -> str:
    """Write the page, with the command that makes it, and the path of the frontier's image."""
    labels = outcomes.rows()
    parts = ["## Test metrics", _test_table(plan, outcomes), "## Change by training"]
    parts.append(
        _by_label(plan, outcomes, labels, lambda runs, key: _mean_of_all([r.after[key] - r.before[key] for r in runs]))
    )
    if plan.win_rate is not None:
        parts += ["## Win rate against the start", _win_rate_table(plan.win_rate, outcomes)]
    if same := _same_kl(plan, outcomes):
        parts += [*same, f"![metric against KL]({picture})"]
    if len(labels) > 1:
        if _counts_tokens(outcomes):
            parts += ["## Tokens to the same training reward", _tokens_table(outcomes)]
        first = outcomes.of(labels[0])

        def probability(runs: Sequence[Outcome], key: str) -> Estimate:
            return probability_of_improvement(*([run.after[key] for run in each] for each in (runs, first)))

        text = f"Share of pairs of runs in which the row's run has a higher test metric than that of {labels[0]}."
        parts += ["## Probability of improvement", text, _by_label(plan, outcomes, labels[1:], probability)]
    return _page(plan, outcomes, _HOW_TO_READ, parts, command)


def _page(plan: QualityPlan, outcomes: Outcomes, how_to_read: str, parts: Sequence[str], command: str) -> str:
    if (n := len(outcomes.missing)) > 0:
        names = ", ".join(outcomes.missing[:10]) + (f" and {n - 10} more" if n > 10 else "")
        how_to_read += f" **{n} run(s) failed or are missing, and are not in the tables: {names}.**"
    whole = [f"# {plan.title}", plan.about, how_to_read, *parts, *plan.notes, "## Command", f"```\n{command}\n```"]
    return "\n\n".join(part for part in whole if part) + "\n"


def _same_kl(plan: QualityPlan, outcomes: Outcomes, heading: str = "##") -> list[str]:
    if (kl := matched_kl(outcomes)) is None:
        return []

    def change(runs: Sequence[Outcome], key: str) -> Estimate:
        curves = [[value - run.curves[key][0] for value in run.curves[key]] for run in runs]
        return mean_estimate([at_kl(run.kls, curve, kl) for run, curve in zip(runs, curves, strict=True)])

    text = "Change on the validation split where each run first reaches this KL, read from its evaluations by linear "
    text += "interpolation."
    if missed := [f"{run.row} with seed {run.seed}" for run in outcomes.done if max(run.kls, default=0.0) < kl]:
        text += f" These runs do not reach it and are left out: {', '.join(missed)}."
    table = _by_label(plan, outcomes, outcomes.rows(), change)
    return [f"{heading} At the same KL: {kl:.3f} nats per token", text, table]


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


def paired_differences(ours: Sequence[Outcome], others: Sequence[Outcome], metric: str) -> list[float]:
    """Differences of a test metric between the runs of two rows that have the same seed."""
    theirs = {run.seed: run.after[metric] for run in others}
    # Rounded, because equal differences have no spread, and not a tiny one that would look like certainty.
    return [round(run.after[metric] - theirs[run.seed], 9) for run in ours if run.seed in theirs]


def worlds_page(plan: QualityPlan, outcomes: Outcomes, command: str, curves: str, dots: str) -> str:
    """Write the page, with the command that makes it, and the paths of both images."""
    parts = [f"![metrics after training]({dots})"]
    for name, world in plan.worlds.items():
        if (found := outcomes.of_world(name)).done:
            alone = plan.model_copy(update={"metrics": {world.metric: world.metric}})
            same_kl = _same_kl(alone, found, "###")
            parts += [f"## {name}", _world_table(plan, name, found), *_starts(found), *same_kl]
    if plan.comparisons:
        parts += ["## Comparisons", _comparisons(plan, outcomes)]
    parts += ["## Curves", f"![curves over tokens]({curves})", "## Runs", _made_by(outcomes)]
    return _page(plan, outcomes, _OF_WORLDS, parts, command)


def reference_of(plan: QualityPlan, outcomes: Outcomes) -> str:
    """The plan's reference; in a world without its runs, the first row that has some."""
    wanted = plan.reference or next(iter(plan.runs))
    return wanted if outcomes.of(wanted) else outcomes.rows()[0]


def _world_table(plan: QualityPlan, name: str, outcomes: Outcomes) -> str:
    world, reference = plan.worlds[name], reference_of(plan, outcomes)
    metric, base = world.metric, outcomes.of(reference)
    shortest = min(filter(None, (run.spent["tokens"][-1] for run in outcomes.done)), default=math.nan)

    def mean_of(number_of: Callable[[Outcome], float]) -> Callable[[list[Outcome]], str]:
        return lambda runs: _interval(mean_estimate(list(map(number_of, runs))))

    columns: dict[str, Callable[[list[Outcome]], str]] = {
        "seeds": lambda runs: str(len(runs)),
        metric: mean_of(lambda run: run.after[metric]),
        "IQM": lambda runs: _number(float(stats.trim_mean([run.after[metric] for run in runs], 0.25))),
        f"more than {reference}": lambda runs: _interval(mean_estimate(paired_differences(runs, base, metric))),
    }
    if (ceiling := world.ceiling) is not None:
        # The differences of all runs, over what is left to gain for those of the reference.
        columns["of the way to the ceiling"] = lambda runs: _number(
            _mean(paired_differences(runs, base, metric)) / (ceiling - _mean([run.after[metric] for run in base]))
        )
    columns["at equal tokens"] = mean_of(lambda run: at_kl(run.spent["tokens"], run.curves[metric], shortest))
    if (level := world.level) is not None:
        columns[f"tokens to {level:g}"] = lambda runs: _median_of_reached(
            [at_kl(run.curves[metric], run.spent["tokens"], level) for run in runs]
        )
    columns |= {name: mean_of(lambda run, key=key: run.after[key]) for key, name in plan.metrics.items()}  # type: ignore[misc]
    for what in ("tokens", "conversations", "seconds"):
        columns[what] = lambda runs, what=what: f"{median([run.spent[what][-1] for run in runs]):,.0f}"  # type: ignore[misc]
    columns["MiB"] = lambda runs: f"{median([run.peak_mib for run in runs]):,.0f}"
    rows = [[label, *(cell(outcomes.of(label)) for cell in columns.values())] for label in outcomes.rows()]
    about = f"Equal tokens: {shortest:,.0f}." + ("" if ceiling is None else f" Ceiling: {ceiling:g}.")
    return f"{about}\n\n{_table(['', *columns], rows)}"


def _median_of_reached(tokens: Sequence[float]) -> str:
    """The median, of which runs that do not reach the level take more than any other, and how many reach it."""
    usual = median_high([math.inf if math.isnan(each) else each for each in tokens])
    shown = "never" if usual == math.inf else f"{usual:,.0f}"
    return f"{shown} ({sum(map(math.isfinite, tokens))} of {len(tokens)})"


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
    rows, p_values = [], []
    for name, world in plan.worlds.items():
        found = outcomes.of_world(name)
        for ours, others in plan.comparisons:
            if any(name not in (plan.runs[label].worlds or plan.worlds) for label in (ours, others)):
                continue
            differences = paired_differences(found.of(ours), found.of(others), world.metric)
            estimate = mean_estimate(differences)
            p_values.append(
                math.nan if estimate.interval is None else float(stats.ttest_1samp(differences, 0.0).pvalue)
            )
            rows.append([name, ours, others, str(len(differences)), _interval(estimate)])
    adjusted = holm(p_values)
    cells = [[*row, *map(_p, ps)] for row, ps in zip(rows, zip(p_values, adjusted, strict=True), strict=True)]
    header = ["world", "row", "compared with", "pairs", "difference", "p", "adjusted p"]
    return _OF_COMPARISONS.format(n=len(rows)) + "\n\n" + _table(header, cells)


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
    return _table(["runs", "commit", "versions", "machine"], [[str(n), *key] for key, n in counts.items()])


def plot_worlds(plan: QualityPlan, outcomes: Outcomes, curves_png: Path, dots_png: Path) -> None:
    """Plot the metric of each world: curves over tokens, and means after training with intervals.

    Curves have a row of axes for each row, where those of the reference are gray, and a column for each world.
    """
    names = [name for name in plan.worlds if outcomes.of_world(name).done]
    labels = outcomes.rows()
    size = len(labels), len(names)
    figure, axes = plain_figure(3.0 * size[1] + 0.5, 1.5 * size[0] + 0.5, *size, sharey="col")
    dots, dot_axes = plain_figure(3.0 * size[1] + 1.5, 0.28 * size[0] + 1.2, 1, size[1], sharey=True)
    for column, name in enumerate(names):
        world, found = plan.worlds[name], outcomes.of_world(name)
        reference = reference_of(plan, found)
        for row, label in enumerate(labels):
            here = axes[row * size[1] + column]
            for each, color in dict([(reference, "gray"), (label, "C0")]).items():
                for run in found.of(each):
                    here.plot(run.spent["tokens"], run.curves[world.metric], color=color, linewidth=0.8, alpha=0.6)
            if world.ceiling is not None:
                here.axhline(world.ceiling, color="gray", linestyle="--", linewidth=1)
            here.set_title(f"{label}, {name}", fontsize="small")
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
