"""Reads a run folder: config, iterations, metrics, predictions with their conversations, and warnings.

Damage that an interrupted run can leave (missing files, a truncated last line, truncated predictions) is skipped and
listed in :attr:`Run.notes`. Any other unreadable file is an error.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from rl4dialog.core.errors import DataError
from rl4dialog.core.files import check_contained, json_value
from rl4dialog.core.run_format import current_config
from rl4dialog.core.types import AGENT, SPEAKERS, Call, Dialogue, EndedBy, Turn, is_number
from rl4dialog.core.untrusted import redacted
from rl4dialog.runs.run_folder import (
    CONFIG_FILE,
    PROVENANCE_FILE,
    RESULT_FILE,
    ROLLOUT_INFO_FILE,
    TRAINING_INFO_FILE,
    WARNINGS_FILE,
    read_players,
    read_references,
    result_or_nothing,
)

_METRICS_FILE = re.compile(r"(\w+)_split_metrics\.jsonl")
_PREDICTIONS_FILE = re.compile(r"epoch_(\d+)_(\w+)_split_predictions\.json")

_TURN_MARKER = "<EOU>"
_TEXT_KEYS = ("prompt_text", "generated_text", "ref_text")
_NO_SCORES = {*_TEXT_KEYS, "split_name", "sample_id"}
_OF_TURNS = ("advantages", "values")
_REFERENCE = re.compile(r"<START-(\d+)>(.*?)<END-\1>", re.DOTALL)

TURNS_KEY = "turns"
CONVERSATION_KEYS = (TURNS_KEY, "outcome", "ended_by")
GOAL_KEY, FAILURES_KEY = "goal_text", "failures"
_ENDS = {
    "agent": "ended by the agent",
    "partner": "ended by the partner",
    "max_turns": "ended after max_turns",
    "length": "ended by an utterance that was cut at the length limit",
}


@dataclass(frozen=True)
class Predictions:
    """Replies to the prompts of a split, conversations that start with them, or its episodes, which have empty texts.

    ``replies`` are the first ones of ``conversations``, which are ``None`` for single replies and plain episodes.
    ``scores`` of each reply or conversation are by metric or reward, NaN where there is none, of shape (N,).
    ``advantages`` are means over each utterance of the agent, by the values of the policy, and ``values`` those of the
    states before the utterances; empty without values.
    """

    sample_ids: list[str]
    prompts: list[str]
    utterances: list[list[str]]
    replies: list[str]
    references: list[list[str]]
    scores: dict[str, NDArray[np.float64]]
    conversations: list[Dialogue | None]
    advantages: list[list[float]] = field(default_factory=list)
    values: list[list[float]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.replies)

    def select(self, rows: Sequence[int]) -> Predictions:
        """Return the given rows, in that order."""
        index = np.asarray(rows, dtype=int)
        names = [each.name for each in fields(self) if each.name != "scores"]
        columns = {name: [column[row] for row in rows] if (column := getattr(self, name)) else [] for name in names}
        return Predictions(**columns, scores={key: values[index] for key, values in self.scores.items()})

    @property
    def has_texts(self) -> bool:
        """Whether there are prompts and replies, rather than episodes."""
        return any(self.prompts) or any(self.replies)

    @property
    def has_conversations(self) -> bool:
        """Whether there are conversations, rather than single replies or episodes."""
        return any(conversation is not None for conversation in self.conversations)

    def reply_lengths(self) -> NDArray[np.float64]:
        """Number of words of each reply, split at whitespace: of all that the agent said, in order."""
        rows = zip(self.replies, self.conversations, strict=True)
        replies = [text for reply, said in rows for text in ([reply] if said is None else said.texts(AGENT))]
        return np.array([len(reply.split()) for reply in replies], dtype=float)


def read_predictions(path: Path) -> Predictions | None:
    """Read a predictions file; ``None`` if it is truncated."""
    try:
        rows = json_value(_read_text(path))
    except ValueError:
        return None
    if not isinstance(rows, list) or not all(map(_is_complete, rows)):
        raise DataError(f"{path} must be a list of objects, each with the texts {', '.join(_TEXT_KEYS)}, or with none")
    try:
        conversations = [recorded_conversation(row) for row in rows]
    except ValueError as error:
        raise DataError(f"{path} has a conversation that cannot be read: {error}") from error
    logged = [(key, value) for row in rows for key, value in row.items() if key not in _NO_SCORES]
    keys = dict.fromkeys(key for key, value in logged if isinstance(value, (int, float)))
    return Predictions(
        [str(row.get("sample_id", i)) for i, row in enumerate(rows)],
        [row.get("prompt_text", "") for row in rows],
        [_utterances(row) for row in rows],
        [row.get("generated_text", "") for row in rows],
        [references_of(row) for row in rows],
        {key: np.array([number(row.get(key)) for row in rows], float) for key in keys},
        conversations,
        *(
            [[number(v) for v in row.get(key, ())] for row in rows] if any(key in r for r in rows) else []
            for key in _OF_TURNS
        ),
    )


def references_of(record: Mapping[str, Any]) -> list[str]:
    """The references of a record, which RL4LMs' form joins to one text."""
    text = record.get("ref_text", "")
    return list(filter(None, [found for _, found in _REFERENCE.findall(text)] or [text]))


def pair(before: Predictions, after: Predictions) -> tuple[Predictions, Predictions]:
    """Return the prompts that two evaluations share, in the order of the first."""
    before, after = aligned([before, after])
    return before, after


def aligned(evaluations: Sequence[Predictions]) -> list[Predictions]:
    """Return the prompts that all evaluations share, in the order of the first."""
    rows: list[dict[tuple[str, str, int], int]] = []
    for each in evaluations:
        seen: Counter[tuple[str, str]] = Counter()  # ids of samples may repeat
        rows.append({})
        for row, name in enumerate(zip(each.sample_ids, each.prompts, strict=True)):
            rows[-1][(*name, seen[name])] = row
            seen[name] += 1
    shared = [name for name in rows[0] if all(name in others for others in rows[1:])] if rows else []
    return [each.select([found[name] for name in shared]) for each, found in zip(evaluations, rows, strict=True)]


def _is_complete(row: Any) -> bool:
    """Whether a row has all texts, or, as an episode, none."""
    if not isinstance(row, dict):
        return False
    return not row.keys() & {*_TEXT_KEYS} or all(isinstance(row.get(key), str) for key in _TEXT_KEYS)


def _utterances(row: Mapping[str, Any]) -> list[str]:
    history = row.get("history")
    said = map(str, history) if isinstance(history, list) else row.get("prompt_text", "").split(_TURN_MARKER)
    return [text.strip() for text in said if text.strip()]


@dataclass(frozen=True)
class Run:
    """The contents of a run folder, as far as there are any."""

    path: Path
    config: dict[str, Any]
    provenance: dict[str, Any]
    iterations: list[dict[str, Any]]  # values of each iteration's rollouts and update, in order
    training: dict[str, Any]  # values of a supervised run
    metrics: dict[str, dict[int, dict[str, float]]]  # corpus scores by split, epoch and key
    prediction_files: dict[str, dict[int, Path]]  # by split and epoch
    players: dict[str, dict[str, float]]  # test metrics of scripted players
    references: dict[str, float] = field(default_factory=dict)  # test metrics of the reference replies
    warnings: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # missing or damaged files, as sentences
    kept: int | None = None  # iteration whose model a complete run ended with

    @property
    def start_is_kept(self) -> bool:
        """Whether training was undone, because no iteration was better than the model before it."""
        return self.kept == 0 and bool(self.iterations)

    def column(self, key: str) -> list[float]:
        """Values logged under a key; NaN where there are none."""
        return [number(row.get(key)) for row in self.iterations]

    def epochs(self, split: str) -> list[int]:
        """Iterations after which a split was evaluated, in order; 0 is before training."""
        return sorted(self.metrics.get(split, {}).keys() | self.prediction_files.get(split, {}).keys())

    def ends(self, split: str) -> list[int]:
        """The first evaluation of a split and, if there is one, the last of the model that the run ended with.

        They are the same if the model before training was kept.
        """
        epochs = self.epochs(split)
        known = [epoch for epoch in epochs if self.kept is None or epoch <= self.kept] or epochs
        return [known[0], known[-1]] if len(known) > 1 or (known and self.start_is_kept) else known

    def predictions(self, split: str, epoch: int) -> Predictions | None:
        """Replies of an evaluation; ``None`` if there are none, or the file is damaged."""
        path = self.prediction_files.get(split, {}).get(epoch)
        if path is None:
            return None
        found = read_predictions(path)
        note = f"{path.name} is skipped: it is truncated."
        if found is None and note not in self.notes:
            self.notes.append(note)
        return found


def read_run(path: str | Path) -> Run:
    """Read a run folder; a `DataError` if it is none, or one of its files has unexpected contents."""
    path = Path(path).expanduser().absolute()
    if not path.is_dir():
        raise DataError(f"{path} is not a folder; pass a run folder, which contains {CONFIG_FILE}")
    check_contained(path)
    notes: list[str] = []
    files, prediction_files = sorted(path.iterdir()), dict[str, dict[int, Path]]()
    metrics_files = {found[1]: file for file in files if (found := _METRICS_FILE.fullmatch(file.name))}
    for file in files:
        if match := _PREDICTIONS_FILE.fullmatch(file.name):
            prediction_files.setdefault(match[2], {})[int(match[1])] = file
    known = [CONFIG_FILE, ROLLOUT_INFO_FILE, TRAINING_INFO_FILE]
    if not metrics_files and not any((path / name).is_file() for name in known):
        raise DataError(f"{path} is not a run folder: it contains none of {', '.join(known)}, *_split_metrics.jsonl")
    rollouts, updates = (_read_lines(path / name, notes) for name in (ROLLOUT_INFO_FILE, TRAINING_INFO_FILE))
    config = current_config(_read_object(path / CONFIG_FILE), path)
    if not config:
        notes.append(f"There is no {CONFIG_FILE}.")
    metrics = {split: read_metrics(file, notes) for split, file in metrics_files.items()}
    iterations = _merge(path, rollouts, updates) if rollouts else []
    if result := result_or_nothing(path):
        n = result["iterations"]
        last = {metrics_files[split].name: max(found, default=0) for split, found in metrics.items()}
        if (path / ROLLOUT_INFO_FILE).exists():
            last[ROLLOUT_INFO_FILE] = rollouts[-1].get("iteration", len(rollouts)) if rollouts else 0
        notes += [f"{name} ends at iteration {end} of {n}." for name, end in last.items() if end < n]
    elif (path / RESULT_FILE).exists():
        notes.append(f"{RESULT_FILE} is damaged, so the run counts as not complete.")
    return Run(
        path,
        config,
        _read_object(path / PROVENANCE_FILE),
        iterations,
        updates[-1] if updates and not rollouts else {},
        metrics,
        prediction_files,
        read_players(path),
        read_references(path),
        _read_lines(path / WARNINGS_FILE, notes),
        notes,
        result.get("iterations"),
    )


def read_undamaged(path: str | Path) -> Run:
    """Read a complete run, for comparisons; a `DataError` says what of it is missing or damaged, and what to do."""
    try:
        run = read_run(path)
        if run.notes:
            raise DataError(f"{run.path}: {' '.join(run.notes).rstrip('.')}")
    except DataError as error:
        raise DataError(f"{error}. To train this damaged run again, remove its folder") from error
    return run


def number(value: Any) -> float:
    """Convert a logged value to a number; NaN if it is none."""
    return float(value) if isinstance(value, (int, float)) else math.nan


def as_text(value: Any) -> str:
    """Format a config value for the page."""
    return redacted(value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False))


def _merge(path: Path, rollouts: list[dict[str, Any]], updates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per iteration; if an iteration was logged twice, the later values win."""
    rows: dict[int, dict[str, Any]] = {}
    for records in (rollouts, updates):
        for i, record in enumerate(records, start=1):
            iteration = record.get("iteration", i)
            if not isinstance(iteration, int):
                raise DataError(f"{path}: the iteration of a logged line must be a whole number, not {iteration!r:.80}")
            rows.setdefault(iteration, {}).update({**record, "iteration": iteration})
    return [rows[iteration] for iteration in sorted(rows)]


def read_metrics(path: Path, notes: list[str]) -> dict[int, dict[str, float]]:
    """Read a split's evaluations by iteration, with NaN for what is no number; a truncated last line gets a note."""
    found: dict[int, dict[str, float]] = {}
    if path.is_file() and not path.stat().st_size:
        raise DataError(f"{path} is empty, but has a line for each evaluation; restore it, or remove it")
    for record in _read_lines(path, notes):
        epoch, metrics = record.get("epoch"), record.get("metrics")
        if not isinstance(epoch, int) or not isinstance(metrics, dict):
            raise DataError(f'{path}: every line must be {{"epoch": number, "metrics": {{...}}}}, not {record!r:.80}')
        found[epoch] = {str(key): number(value) for key, value in metrics.items()}
    return found


def _read_lines(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """Records of a jsonl file; a truncated last line is skipped with a note."""
    if not path.exists():
        return []
    lines = [(f"{path}:{i}", line) for i, line in enumerate(_read_text(path).split("\n"), start=1) if line.strip()]
    records = [_object(place, line) for place, line in lines[:-1]]
    for place, line in lines[-1:]:
        try:
            json_value(line)
        except ValueError:
            notes.append(f"The last line of {path.name} is truncated and was skipped.")
        else:
            records.append(_object(place, line))
    return records


def _read_object(path: Path) -> dict[str, Any]:
    return _object(path, _read_text(path)) if path.exists() else {}


def _object(place: str | Path, text: str) -> dict[str, Any]:
    try:
        found = json_value(text)
    except ValueError as error:
        raise DataError(f"{place} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise DataError(f"{place} must be a JSON object, not {found!r:.80}")
    return found


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", errors="replace")  # an interruption may truncate a character
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def conversation_record(dialogue: Dialogue) -> dict[str, Any]:
    """The part of a prediction's record that holds the whole conversation.

    ``spoken`` is only there if it is another text, ``call`` if the agent called a tool, which has the next turn,
    ``given`` if the turn belongs to the sample, ``goal_text`` and ``failures`` if the conversation is about a goal.
    """
    turns = []
    for i, turn in enumerate(dialogue.turns):
        record: dict[str, Any] = {"speaker": SPEAKERS[turn.speaker], "text": turn.text}
        if i < dialogue.n_given:
            record["given"] = True
        elif turn.speaker == AGENT:
            record["reward"] = None if math.isnan(turn.reward) else turn.reward
        if turn.spoken:
            record["spoken"] = turn.spoken
        if turn.call is not None:
            record["call"] = {name: value for name, value in asdict(turn.call).items() if name != "answer"}
        turns.append(record)
    record = {TURNS_KEY: turns, "outcome": dict(dialogue.outcome), "ended_by": dialogue.ended_by}
    record |= {"partner": dialogue.partner} if dialogue.partner else {}
    if isinstance(goal := dialogue.meta_data.get(GOAL_KEY), str):
        record |= {GOAL_KEY: goal, FAILURES_KEY: list(dialogue.failures)}
    return record


def recorded_conversation(record: Mapping[str, Any]) -> Dialogue | None:
    """Read a conversation back from a prediction, ``None`` for a single reply; a `ValueError` for others."""
    if TURNS_KEY not in record:
        return None
    turns, outcome, ended_by = (record.get(key) for key in CONVERSATION_KEYS)
    if not isinstance(turns, list) or not isinstance(outcome, Mapping) or ended_by not in (None, *get_args(EndedBy)):
        raise ValueError("a conversation needs turns (a list), outcome (an object) and ended_by")
    given = [isinstance(turn, Mapping) and turn.get("given") is True for turn in turns]
    if given != sorted(given, reverse=True):
        raise ValueError("turns that are given must come first")
    return Dialogue(
        str(record.get("sample_id", "")),
        tuple(map(_recorded_turn, turns)),
        n_given=sum(given),
        outcome={str(key): float(value) for key, value in outcome.items() if is_number(value)},
        ended_by=ended_by,
        meta_data={GOAL_KEY: record[GOAL_KEY]} if GOAL_KEY in record else {},
        failures=tuple(map(str, record.get(FAILURES_KEY) or ())),
        partner=str(record.get("partner") or ""),
    )


def changed_conversations(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], n: int
) -> list[tuple[Dialogue, Dialogue]]:
    """Select evenly spaced conversations that have changed, from the records of two evaluations of the same samples."""
    rows = zip(before, after, strict=True)
    changed = [(old, new) for old, new in rows if TURNS_KEY in new and old.get(TURNS_KEY) != new[TURNS_KEY]]
    read = [tuple(map(recorded_conversation, each)) for each in changed[:: max(1, len(changed) // n)][:n]]
    return [(old, new) for old, new in read if old is not None and new is not None]


def ending(dialogue: Dialogue) -> str:
    """Describe how a conversation ended, such as ``"ended by the partner; success 1"``; empty if nothing is known."""
    known = [f"with {dialogue.partner}"] if dialogue.partner else []
    known += [_ENDS[dialogue.ended_by]] if dialogue.ended_by else []
    return "; ".join([*known, *(f"{key} {value:.4g}" for key, value in dialogue.outcome.items())])


def _recorded_turn(record: Any) -> Turn:
    numbers = {name: number for number, name in SPEAKERS.items()}
    known = isinstance(record, Mapping) and record.get("speaker") in [*numbers] and isinstance(record.get("text"), str)
    if not known:
        raise ValueError(f"each turn needs a speaker ({', '.join(numbers)}) and a text")
    reward: Any = record.get("reward", 0.0)  # null in the file if it was not finite
    spoken, call = record.get("spoken", ""), record.get("call")
    return Turn(
        record["text"],
        numbers[record["speaker"]],
        reward=float(reward) if is_number(reward) else math.nan,
        spoken=spoken if isinstance(spoken, str) else "",
        call=Call(**call) if isinstance(call, dict) and call.keys() == {"name", "arguments", "problem"} else None,
    )
