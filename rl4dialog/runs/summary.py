"""The console summary at the end of a run: metrics before and after, sample replies or conversations, the run folder.

Texts are printed verbatim, never interpreted as console markup. In files and pipes, tables use plain characters.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rl4dialog.core.console import Console
from rl4dialog.core.types import AGENT, MIN_SAMPLES, SPEAKERS, Dialogue, Turn
from rl4dialog.functional.statistics import Interval
from rl4dialog.runs.causes import Cause, causes
from rl4dialog.runs.reading import ending, read_run
from rl4dialog.runs.report.metrics import REWARD_KEY, MetricChange, before_and_after, changes_on_test, ranking_key

_MIN_WIDTH_FOR_PROMPT_COLUMN = 110
_WIDTH_FOR_GROUPS = 100  # characters, for names of metrics with their group
_EMPTY = "-"
_MAX_SHOWN = 400  # characters per utterance
_MAX_TURNS_SHOWN = 16  # utterances per conversation

# The most informative keys of metric groups with dozens of keys.
_SHOWN_OF_GROUP = {
    "diversity_metrics": ("distinct-1", "distinct-2", "entropy-2"),
    "success_in_domain": (),
    "sampled": ("episode/return", "episode/success"),
    "conversation_diversity": ("distinct-2", "self_repetition", "partner_echo"),
}
_HIDDEN = {"lexical/rouge_rougeLsum"}


@dataclass(frozen=True)
class Example:
    """The utterances of a prompt, with the replies before and after training, and the reference reply, if any."""

    utterances: Sequence[str]
    before: str
    after: str
    gold: str


def print_summary(
    before: Mapping[str, float],
    after: Mapping[str, float],
    gold: Mapping[str, float] | None,
    examples: Sequence[Example],
    run_path: str | Path,
    console: Console | None = None,
    labels: tuple[str, str] = ("before RL", "after RL"),
    conversations: Sequence[tuple[Dialogue, Dialogue]] = (),
    players: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Print a run's summary; ``gold`` is of the reference replies, ``labels`` name ``before`` and ``after``."""
    console = console or Console()
    console.print()
    keys = [*after, *(key for key in before if key not in after)]
    shown = [key for key in keys if is_headline(key)]
    run = read_run(run_path) if Path(run_path).is_dir() else None
    on_test = before_and_after(run, "test") if run is not None else (None, None)
    n_samples, changes = changes_on_test(run, *on_test) if run is not None else (0, [])
    intervals = {each.key: each.difference.interval for each in changes if each.difference is not None}
    if keys:
        title = f"Test metrics of {n_samples:,} samples" if n_samples else "Test metrics"
        console.print(Text(title, style="bold"))
        console.print(_metrics_table(console, shown, before, after, intervals, gold or {}, labels))
        headlines = headlines_of(changes)
        if sentence := verdict(headlines, f"{n_samples:,} test samples", run is not None and run.start_is_kept):
            console.print(Text(sentence, style="bold"))
        elif 0 < n_samples < MIN_SAMPLES:
            console.print(Text(f"Changes have no interval: that takes at least {MIN_SAMPLES} samples", style="dim"))
        if run is not None and all(each.effect != "better" for each in headlines):
            _print_causes(console, causes(run, *on_test), bool(sentence))
    else:
        console.print("Nothing was measured: the config has no train_evaluation.metrics and no reward_fn.")
    if len(shown) < len(keys):
        console.print(Text(f"{len(keys) - len(shown)} more scores are in test_split_metrics.jsonl", style="dim"))
    print_players(console, labels[1], after, players)
    if examples:
        console.print(Text("\nThe same prompts, answered " + " and ".join(labels), style="bold"))
        if console.width >= _MIN_WIDTH_FOR_PROMPT_COLUMN:
            console.print(_dialogues_table(console, examples, labels, has_prompt=True))
        else:
            for example in examples:
                console.print()
                console.print(Padding(_listed(example.utterances), (0, 1)))
                console.print(_dialogues_table(console, [example], labels, has_prompt=False))
    if conversations:
        console.print(Text("\nConversations from the same samples, " + " and ".join(labels), style="bold"))
    for old, new in conversations:
        console.print()
        if old.n_given:
            console.print(Padding(_utterances(old.turns[: old.n_given]), (0, 1)))
        table = Table(box=table_style(console), expand=True)
        for label in labels:
            table.add_column(label, overflow="fold", ratio=1)
        table.add_row(*(_utterances(each.said, ending(each)) for each in (old, new)))
        console.print(table)
    console.print()
    # Not wrapped, so that the path can be copied.
    console.print(Text(f"Run folder: {run_path}"), soft_wrap=True)


def _print_causes(console: Console, found: Sequence[Cause], has_verdict: bool) -> None:
    for cause in found:
        console.print(Text(f"{cause.title}: {cause.shown}.\n  Change first: {cause.change}"))
    if found or has_verdict:
        console.print(f"What {'else ' if found else ''}to look at first: docs/hyperparameters.md")


def table_style(console: Console) -> box.Box:
    """Return a box style for the console; outside a terminal, tables are plain Markdown."""
    return box.SIMPLE_HEAD if console.is_terminal else box.MARKDOWN


def number_table(console: Console, titles: Sequence[str], whole_keys: bool = True) -> Table:
    """An empty table of numbers, whose first column has their keys, which are wrapped last if they are to be whole."""
    table = Table(box=table_style(console), pad_edge=False)
    table.add_column(titles[0], overflow="fold", no_wrap=whole_keys)
    for title in titles[1:]:
        table.add_column(Text(title), justify="right", overflow="fold")
    return table


def _metrics_table(
    console: Console,
    keys: Sequence[str],
    before: Mapping[str, float],
    after: Mapping[str, float],
    intervals: Mapping[str, Interval | None],
    gold: Mapping[str, float],
    labels: tuple[str, str],
) -> Table:
    has_intervals = any(intervals.values())
    has_gold = bool(gold.keys() & set(keys))  # nothing of a conversation can be measured on reference replies
    titles = ["metric", *labels, "change", *["95 % interval"] * has_intervals, *["references"] * has_gold]
    names = list(keys) if console.width >= _WIDTH_FOR_GROUPS or not has_intervals else _without_group(keys)
    table = number_table(console, titles, _fit(names, console))
    for key, name in zip(keys, names, strict=True):
        old, new = before.get(key), after.get(key)
        row = [format_number(old), format_number(new)]
        row.append(format_number(None if old is None or new is None else new - old, sign="+"))
        if has_intervals:
            row.append(format_interval(intervals.get(key), sign="+"))
        if has_gold:
            row.append(format_number(gold.get(key)))
        table.add_row(Text(name), *row)
    return table


def _without_group(keys: Iterable[str]) -> list[str]:
    """Names of metrics without their group, which leaves room for columns; equal names keep theirs."""
    names = {key: key.rpartition("/")[2] for key in keys}
    counts = Counter(names.values())
    return [name if counts[name] == 1 else key for key, name in names.items()]


def _fit(names: Iterable[str], console: Console) -> bool:
    """Whether column titles are wrapped rather than names, which then take up less than half of the line."""
    return max(map(len, names), default=0) < console.width // 2


def print_players(
    console: Console, model: str, scores: Mapping[str, float], players: Mapping[str, Mapping[str, float]] | None
) -> None:
    """Print the metrics of scripted players, the floor and ceiling of a task, beside those of the model, if any."""
    measured = dict.fromkeys(key for metrics in (players or {}).values() for key in metrics if is_headline(key))
    if not players or not measured:
        return
    columns = {model: scores, **players}
    names = _without_group(measured)
    table = number_table(console, ["metric", *columns], _fit(names, console))
    for key, name in zip(measured, names, strict=True):
        table.add_row(Text(name), *(format_number(each.get(key)) for each in columns.values()))
    console.print(Text("\nScripted players or replies, with the same samples", style="bold"))
    console.print(table)


def _dialogues_table(console: Console, examples: Sequence[Example], labels: tuple[str, str], has_prompt: bool) -> Table:
    style = table_style(console)
    table = Table(box=style, show_lines=style is not box.MARKDOWN, expand=True)
    has_gold = any(example.gold for example in examples)
    for name in (*(["prompt"] if has_prompt else []), *labels, *(["reference"] if has_gold else [])):
        table.add_column(name, overflow="fold", ratio=3 if name == "prompt" else 2)
    for example in examples:
        texts = (example.before, example.after, *([example.gold] if has_gold else []))
        replies = [Text(_one_line(reply) or "(nothing)") for reply in texts]
        table.add_row(*([_listed(example.utterances)] if has_prompt else []), *replies)
    return table


def transcript(dialogue: Dialogue) -> str:
    """Format a conversation, one utterance per line with the rewards of the agent's, and its end."""
    return _utterances(dialogue.turns, ending(dialogue)).plain


def _utterances(turns: Sequence[Turn], end: str = "") -> Text:
    """Format utterances, one per line, with the rewards of the agent's if any differs from 0."""
    has_rewards = any(turn.reward for turn in turns)
    lines = []
    for turn in turns[:_MAX_TURNS_SHOWN]:
        is_paid = has_rewards and turn.speaker == AGENT and not math.isnan(turn.reward)
        reward = f" ({turn.reward:+.3g})" if is_paid else ""
        lines.append(f"{SPEAKERS[turn.speaker]}: {_one_line(turn.for_people) or '(nothing)'}{reward}")
    if len(turns) > _MAX_TURNS_SHOWN:
        lines.append(f"... {len(turns) - _MAX_TURNS_SHOWN} more utterances")
    return Text("\n".join([*lines, f"({end})"] if end else lines), overflow="fold")


def _listed(utterances: Sequence[str]) -> Text:
    """Format utterances, one per line."""
    lines = [_one_line(utterance) for utterance in utterances]
    return Text("\n".join(f"- {line}" for line in lines if line), overflow="fold")


def _one_line(text: str) -> str:
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * _MAX_SHOWN]).split())
    return line if len(line) <= _MAX_SHOWN else line[:_MAX_SHOWN] + " ..."


def is_headline(key: str) -> bool:
    """Whether a metric is among the most informative of its group."""
    group, _, name = key.partition("/")
    return key not in _HIDDEN and (group not in _SHOWN_OF_GROUP or name in _SHOWN_OF_GROUP[group])


def headlines_of(changes: Sequence[MetricChange]) -> list[MetricChange]:
    """What was trained, success, metrics that say whether it helped, then others; those that did not change last."""
    trained = ranking_key([each.key for each in changes])

    def rank(change: MetricChange) -> tuple[bool, ...]:
        is_success, is_part = change.key.endswith("success"), change.key.startswith(f"{REWARD_KEY}/")
        return change.key != trained, change.is_constant, not is_success, change.direction is None, is_part

    return sorted((each for each in changes if is_headline(each.key)), key=rank)


def verdict(changes: Sequence[MetricChange], of: str, start_is_kept: bool = False) -> str:
    """Say in a sentence what training did to the reward or return, or to the first metric that has a direction.

    Empty without two evaluations.
    """
    if start_is_kept:
        return f"No iteration was better on val than the model before training, which is kept: nothing changes on {of}."
    trained, known = ranking_key([each.key for each in changes]), [each for each in changes if each.difference]
    found = next((each for each in changes if each.key == trained), next((e for e in known if e.direction), None))
    if found is None or not known:
        return ""
    values = [math.nan if each is None else each.value for each in (found.before, found.after)]
    change = "{} on {}, from {} to {}".format(found.key, of, *map(format_number, values))
    if found.difference is None or (interval := found.difference.interval) is None:
        is_finite = all(map(math.isfinite, values))
        why = found.note if is_finite else "One of them is unknown or infinite"
        why = why or f"there is no interval with fewer than {MIN_SAMPLES}"
        return f"No verdict on {change}: {why[0].lower()}{why[1:].rstrip('.')}."
    said = {"better": "Training improved", "worse": "Training worsened"}.get(found.effect, "No significant change of")
    numbers = (format_number(value, "+") for value in (found.difference.value, interval.low, interval.high))
    return "{} {}: {} (95 % interval {} to {}).".format(said, change, *numbers)


def format_interval(interval: Interval | None, sign: str = "") -> str:
    """Format an interval; a dash if there is none."""
    ends = [] if interval is None else [format_number(end, sign) for end in (interval.low, interval.high)]
    return " to ".join(ends) or _EMPTY


def format_number(value: float | None, sign: str = "") -> str:
    """Format a score; a dash if there is none."""
    if value is None or math.isnan(value):
        return _EMPTY
    digits = 3 if abs(value) < 100 else 1 if abs(value) < 1000 else 0
    return format(value, f"{sign},.{digits}f")
