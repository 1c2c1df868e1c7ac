"""``report.html``: the page of a run, a single file, from templates."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from rl4dialog.core.config_blocks import TEXT_GENERATION
from rl4dialog.core.files import naming_errors, replaced, to_plain
from rl4dialog.core.types import MIN_SAMPLES
from rl4dialog.core.yaml_loader import flatten
from rl4dialog.runs.causes import causes
from rl4dialog.runs.progress import duration
from rl4dialog.runs.reading import Predictions, Run, as_text, number, pair, read_run
from rl4dialog.runs.report.curves import (
    MIN_ITERATIONS,
    PHASES,
    Curve,
    Panel,
    evaluation_curves,
    iteration_curve,
    panels,
    remaining_keys,
)
from rl4dialog.runs.report.figures import COLORS, histogram, line_chart, stacked_chart
from rl4dialog.runs.report.metrics import (
    REWARD_KEY,
    MetricChange,
    before_and_after,
    direction,
    metric_changes,
    repeated_keys,
)
from rl4dialog.runs.report.samples import SampleSet, extreme_utterances, failure_counts, sample_set, what_they_are
from rl4dialog.runs.run_folder import LOG_FILE, REPORT_FILE, read_critic, run_state
from rl4dialog.runs.summary import format_number, headlines_of, verdict

_LOG_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d+ (\w+) (\S+): (.*)")
NOT_WRITTEN = "the report of the run could not be written"
"""Beginning of a warning that the report leaves out: whoever reads it has it."""
_WATCH = re.compile(r"iteration \d+: ")


class Warning(NamedTuple):
    """A warning of a run; ``advice`` is empty if there is none."""

    message: str
    advice: str = ""


def subtitle(run: Run, state: str) -> list[str]:
    """State, date, duration and device of a run, as far as they are known."""
    times = [time for time, *_ in _log_lines(run)]
    seconds = (max(times) - min(times)).total_seconds() if times else 0.0
    n_resumed = len(_listed(run.provenance.get("resumed")))
    again = {0: "", 1: ", resumed once"}.get(n_resumed, f", resumed {n_resumed} times")
    lasted = f"{duration(seconds)}{', pauses included' if n_resumed else ''}" if seconds else ""
    date = ""
    with suppress(ValueError):
        start = datetime.fromisoformat(str(run.provenance.get("start_time")))
        date = f"{start.day} {start:%B %Y, %H:%M} {start.tzname() or ''}".strip()
    return [part for part in (f"{state}{again}", date, lasted, _device(run)) if part]


def run_warnings(run: Run) -> list[Warning]:
    """The warnings of a run's checks, with advice, then all others in its log, each once."""
    watched = [
        Warning(f"Iteration {each.get('iteration')}: {each.get('message')}", str(each.get("advice") or ""))
        for each in run.warnings
    ]
    logged = [Warning(text) for _, level, text in _log_lines(run) if level in ("WARNING", "ERROR")]
    logged = [each for each in logged if not each.message.startswith(NOT_WRITTEN)]
    return list(dict.fromkeys([*watched, *(each for each in logged if not watched or not _WATCH.match(each.message))]))


def missing(run: Run, split: str, state: str) -> list[str]:
    """Say what the report of a run does not have, and why."""
    notes = []
    done, planned = _progress(run)
    so_far = f"after iteration {done}" + (f" of {planned}" if planned else "") if run.iterations else "at its beginning"
    if state == "running":
        notes.append(f"The run is still running; this is its state {so_far}.")
    elif state == "stopped":
        notes.append(f"The run is not complete: it stopped {so_far}. To continue it, repeat its command with --resume.")
    if not run.epochs(split):
        notes.append("There are no evaluations, so the report has no metrics and no samples.")
    elif len(run.ends(split)) == 1:
        notes.append(f"The {split} split was evaluated only once, so there is no comparison.")
    elif split != "test":
        notes.append(f"The test split was not evaluated after training; metrics and samples are those of {split}.")
    if 0 < len(run.iterations) < MIN_ITERATIONS:
        notes.append(f"Curves require at least {MIN_ITERATIONS} iterations.")
    return notes


def facts(run: Run) -> list[tuple[str, str]]:
    """The key facts of a run, by name."""
    config = flatten(run.config)
    env_id = config.get("env.id")
    found: list[tuple[str, Any]] = [
        ("algorithm", config.get("alg.id")),
        ("model", config.get("alg.policy.args.model_name") or config.get("alg.model_name")),
        ("datapool", config.get("datapool.id")),
        ("environment", env_id if env_id != TEXT_GENERATION else None),
        ("reward", config.get("reward_fn.id")),
        ("seed", config.get("seed")),
        *(_iteration_facts(run) if run.iterations else ()),
        *((key, f"{number(value):,.5g}") for key, value in run.training.items()),
    ]
    return [(name, as_text(value)) for name, value in found if value not in (None, "")]


def _iteration_facts(run: Run) -> list[tuple[str, str]]:
    done, planned = _progress(run)
    keys = ("rollout/tokens", "rollout/timesteps", *PHASES)
    tokens, timesteps, *times = (sum(v for v in run.column(key) if not math.isnan(v)) for key in keys)
    seconds = sum(times)
    found = [
        ("iterations", f"{done} of {planned}" if planned else f"{done}"),
        ("agent tokens", f"{tokens:,.0f}" if tokens else ""),
        ("timesteps", f"{timesteps:,.0f}" if timesteps else ""),
        ("time in iterations", duration(seconds) if seconds else ""),
    ]
    rewards = zip(run.column("rollout/task_reward"), run.column("iteration"), strict=True)
    known = [(reward, iteration) for reward, iteration in rewards if not math.isnan(reward)]
    if known:
        best, iteration = max(known)
        found.append(("task reward, first to last iteration", f"{known[0][0]:.3f} → {known[-1][0]:.3f}"))
        found.append(("highest task reward", f"{best:.3f} (iteration {iteration:.0f})"))
    kl = run.column("rollout/kl")[-1]
    if not math.isnan(kl):
        found.append(("KL at the end", f"{kl:.3f} nats/token"))
    return found


def _progress(run: Run) -> tuple[int, Any]:
    """Number of iterations so far, and of those that the config asks for."""
    done = int(run.iterations[-1]["iteration"]) if run.iterations else 0
    return done, flatten(run.config).get("train_evaluation.n_iters")


def _device(run: Run) -> str:
    """The device of a run, from its config and hardware."""
    hardware = run.provenance.get("hardware")
    if not isinstance(hardware, dict):
        return ""
    gpus = [str(gpu.get("name")) for gpu in _listed(hardware.get("gpus")) if isinstance(gpu, dict)]
    if gpus and flatten(run.config).get("alg.args.device") != "cpu":
        processes = number(hardware.get("processes"))
        return f"{processes:.0f} processes, {gpus[0]}" if processes > 1 else gpus[0]
    threads = hardware.get("torch_threads")
    return f"CPU {hardware.get('cpu') or ''}".strip() + (f", {threads} threads" if threads != 1 else ", 1 thread")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _log_lines(run: Run) -> list[tuple[datetime, str, str]]:
    """Time, level and message of the lines of ``log.txt``; empty if it cannot be read."""
    try:
        text = (run.path / LOG_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    lines = []
    for match in filter(None, map(_LOG_LINE.match, text.split("\n"))):
        with suppress(ValueError):  # a damaged time
            lines.append((datetime.fromisoformat(match[1]), match[2], match[4]))
    return lines


_logger = logging.getLogger(__name__)
TEMPLATES = Path(__file__).with_name("templates")
_DISTRIBUTIONS = {
    REWARD_KEY: ("Reward", "reward"),
    "episode/return": ("Return", "return"),
    "conversation/return": ("Return", "return"),
    "conversation/turns": ("Turns of the agent", "turns"),
}
_N_SHOWN = 5  # metrics, before the others are folded
_MAX_STEPS = 6  # evaluations whose samples are shown


class Picture(NamedTuple):
    """One plot of the page, with a remark beside its title; ``labels`` are its legend, in the order of the colors."""

    title: str
    remark: str
    chart: Markup
    labels: Sequence[str] = ()


def write_report(run_path: str | Path, output: str | Path | None = None, kept: int | None = None) -> Path:
    """Write the report of a run, finished or not, by default to ``report.html`` in its folder; returns the path.

    ``kept`` is the iteration whose model a run that has just ended keeps, before its result says so.
    """
    run = read_run(run_path)
    run, state = (run, run_state(run.path)) if kept is None else (replace(run, kept=kept), "complete")
    target = Path(output).expanduser() if output else run.path / REPORT_FILE
    return write_page(TEMPLATES / "run.html", target, **run_content(run, state))


def write_report_or_warn(run_path: str | Path, kept: int) -> None:
    """Write the report of a run that has just ended; a failure is only a warning."""
    try:
        write_report(run_path, kept=kept)
    except Exception as error:
        _logger.warning(f"{NOT_WRITTEN} (%s: %s); to retry: rl4dialog report %s", type(error).__name__, error, run_path)


class Measured(NamedTuple):
    """What training changed on a split: its first and last evaluation, and the metrics, headlines first."""

    split: str
    found: tuple[Predictions | None, Predictions | None]
    before: Predictions | None  # of the samples that both have, if there are two
    after: Predictions | None
    repeats: dict[str, str]
    headlines: list[MetricChange]
    changes: list[MetricChange]


def measured(run: Run) -> Measured:
    """Measure the split that shows the effect of training: ``test``, unless only another one was evaluated twice."""
    splits = [split for split in ("test", "val", *sorted(run.metrics)) if run.epochs(split)]
    split = next((split for split in splits if len(run.ends(split)) > 1), splits[0] if splits else "test")
    found = before, after = before_and_after(run, split)
    if before is not None and after is not None:
        before, after = pair(before, after)
    repeats = repeated_keys([each for each in (before, after) if each is not None])
    changes = metric_changes(run, split, *found, repeats)
    headlines = headlines_of(changes)
    others = [each for each in changes if each not in headlines]
    return Measured(split, found, before, after, repeats, headlines, [*headlines, *others])


def run_content(run: Run, state: str, labels: tuple[str, str] | None = None) -> dict[str, Any]:
    """What the template of a run shows, by the names of its variables; ``labels`` name its two evaluations."""
    split, found, before, after, repeats, headlines, changes = measured(run)
    epochs, on_test = run.epochs(split), found if split == "test" else before_and_after(run, "test")
    shown = [each for each in (before, after) if each is not None]
    of = what_they_are(shown)
    drawn = panels([run])
    evaluations, curves = _evaluation_pictures(run, repeats, [c.key for c in headlines]), _curve_pictures(run, drawn)
    n_first = 2 - len(evaluations[:1])  # curves beside the first evaluation
    browsers = _sample_sets(run, split, labels)
    beside = {"references": run.references, **run.players} if split == "test" else {}
    for name, scores in beside.items():
        beside[name] = {**{kept: scores[key] for key, kept in repeats.items() if key in scores}, **scores}
    times = labels or [_time(run, epoch) for epoch in dict.fromkeys([*epochs[:1], *epochs[-1:]])]
    return dict(
        run=run,
        subtitle=subtitle(run, state),
        verdict=verdict(
            headlines, f"{len(after or ()):,} {split} {'prompts' if of == 'replies' else of}", run.start_is_kept
        ),
        causes=[] if any(each.effect == "better" for each in headlines) else causes(run, *on_test),
        first_pictures=[*evaluations[:1], *curves[:n_first]],
        facts=facts(run),
        warnings=run_warnings(run),
        notes=[*run.notes, *missing(run, split, state)],
        split=split,
        times=" and ".join(times),
        n_samples=len(shown[-1]) if shown else 0,
        has_values=any(each.values for each in shown),
        of=of,
        beside={name: scores for name, scores in beside.items() if scores.keys() & {each.key for each in changes}},
        has_players=bool(run.players) and split == "test",
        changes=headlines[:_N_SHOWN],
        other_changes=changes[len(headlines[:_N_SHOWN]) :],
        curves=curves[n_first:],
        evaluations=evaluations[1:],
        distributions=_distributions(before, after, of, repeats),
        remaining=_remaining(run, drawn),
        browsers=browsers,
        utterances=extreme_utterances(after or before),
        failures=failure_counts(before, after, browsers[0].samples if browsers else []),
        critic=(critic := read_critic(run.path)),
        calibration=_calibration(critic.get("bins", []) if critic else []),
        provenance={key: as_text(value) for key, value in flatten(run.provenance).items()},
    )


def _time(run: Run, epoch: int) -> str:
    """Describe when an evaluation took place."""
    return f"after {epoch} {'epochs' if run.training else 'iterations'}" if epoch else "before training"


def _sample_sets(run: Run, split: str, labels: tuple[str, str] | None) -> list[SampleSet]:
    """Samples of the split that the metrics are of, then those of a split that was evaluated more often."""
    others = [each for each in run.metrics if each != split and len(run.epochs(each)) > max(2, len(run.epochs(split)))]
    found = []
    for each in (split, *others[:1]):
        epochs = run.epochs(each)
        step = max(1, math.ceil((len(epochs) - 1) / (_MAX_STEPS - 1)))
        known = {epoch: run.predictions(each, epoch) for epoch in {*epochs[::-1][::step], *epochs[:1]}}
        evaluations = {_time(run, epoch): one for epoch, one in sorted(known.items()) if one is not None}
        if labels is not None and len(evaluations) == len(labels):
            evaluations = dict(zip(labels, evaluations.values(), strict=True))
        found.append(sample_set(each, evaluations) if evaluations else None)
    return [each for each in found if each is not None]


def _curve_pictures(run: Run, drawn: Sequence[Panel]) -> list[Picture]:
    if len(run.iterations) < MIN_ITERATIONS:
        return []

    pictures, config = [], flatten(run.config)
    for panel in drawn:
        curves = [iteration_curve(run, panel, label, key) for label, key in panel.keys.items()]
        target = number(config.get(panel.target))
        known = None if math.isnan(target) else target
        chart = line_chart(panel.title, panel.unit or panel.title, curves, known)
        remark = "" if known is None else f"target {known:g}, dashed"
        pictures.append(Picture(panel.title, remark, chart, list(panel.keys) if panel.has_legend else []))
    names = {phase.removeprefix("time/").removesuffix("_s"): phase for phase in PHASES}
    layers = {name: phase for name, phase in names.items() if any(phase in row for row in run.iterations)}
    if layers:
        times = Panel("Time per phase", "seconds per iteration", layers)
        curves = [iteration_curve(run, times, name, phase) for name, phase in layers.items()]
        pictures.append(Picture(times.title, "", stacked_chart(times.title, times.unit, curves), list(layers)))
    return pictures


def _calibration(bins: Sequence[Mapping[str, float]]) -> list[Picture]:
    """Mean returns of bins of states by their mean value; those of a perfect critic are equal."""
    values, returns = ([each[key] for each in bins] for key in ("value", "mean_return"))
    x, labels = {"value of the critic": values}, ("this critic", "a perfect one")
    drawn = [Curve(label, x, y) for label, y in zip(labels, (returns, values), strict=True)]
    chart = line_chart("Calibration", "mean return of the continuations", drawn, smoothed=False)
    return [Picture("Calibration", "", chart, labels)] if bins else []


def _evaluation_pictures(run: Run, repeats: Collection[str], first: Sequence[str]) -> list[Picture]:
    """Metrics during training, of the split that was evaluated most often; ``first`` are those that come first."""
    split = max(("val", *run.metrics), key=lambda name: len(run.metrics.get(name, {})))
    if len(run.metrics.get(split, {})) < 3:
        return []
    found = [curve for curve in evaluation_curves(run, split) if curve.label not in repeats]
    curves = {curve.label: curve for curve in found if len({*curve.y}) > 1}
    pictures = []
    for key in dict.fromkeys([*(key for key in first if key in curves), *curves]):
        better = direction(key, run.config)
        unit = f"{split} split" + (f", {better} is better" if better else "")
        pictures.append(Picture(key, "", line_chart(key, unit, [curves[key]], smoothed=False)))
    return pictures


def _distributions(
    before: Predictions | None, after: Predictions | None, of: str, repeats: Collection[str]
) -> list[Picture]:
    """Rewards and lengths of all evaluated replies, or returns of all conversations or episodes."""
    known = {label: each for label, each in zip(("before", "after"), (before, after), strict=True) if each is not None}
    drawn = [
        (title, of, axis, {label: each.scores[key] for label, each in known.items()})
        for key, (title, axis) in _DISTRIBUTIONS.items()
        if known and key not in repeats and all(key in each.scores for each in known.values())
    ]
    if any(each.has_texts for each in known.values()):
        lengths = {label: each.reply_lengths() for label, each in known.items()}
        drawn.append(("Reply length in words", "replies", "words", lengths))
    return [
        Picture(title, "", histogram(title, f"share of {what}", axis, values), list(known))
        for title, what, axis, values in drawn
        if len({number for numbers in values.values() for number in numbers}) > 1
    ]


def _remaining(run: Run, drawn: Sequence[Panel]) -> list[dict[str, Any]]:
    """First, last, minimum and maximum of the logged numbers that no plot shows."""
    keys = {*PHASES, *(key for panel in drawn for key in panel.keys.values())}
    rows = []
    for key in remaining_keys(run, keys if len(run.iterations) >= MIN_ITERATIONS else ()):
        values = [value for value in run.column(key) if not math.isnan(value)]
        numbers = (values[0], values[-1], min(values), max(values))
        rows.append({"key": key, "numbers": [f"{value:.4g}" for value in numbers]})
    return rows


def write_page(template: Path, output: Path, **content: Any) -> Path:
    """Render a template with variables, of which everything but `Markup` is escaped, and write the page atomically."""
    page = (
        _environment(template.parent)
        .get_template(template.name)
        .render(colors=COLORS, min_samples=MIN_SAMPLES, **content)
    )
    with naming_errors(output, "; choose another --output"), replaced(output) as temporary:
        # Models can generate lone surrogates, which UTF-8 cannot encode.
        temporary.write_text(page, encoding="utf-8", errors="replace")
    return output


def breakable(key: str) -> Markup:
    """A key that lines can break at its parts, and only there."""
    return Markup(re.sub("([/._])", r"\1<wbr>", str(escape(key))))


@cache
def _environment(folder: Path) -> Environment:
    """What renders the templates of a folder, which can extend :data:`TEMPLATES`."""
    options: dict[str, Any] = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=FileSystemLoader([folder, TEMPLATES]), undefined=StrictUndefined, **options)
    dump = partial(yaml.safe_dump, sort_keys=False, allow_unicode=True, width=100)
    environment.filters |= {"number": format_number, "yaml": lambda obj: dump(to_plain(obj)), "breakable": breakable}
    return environment
