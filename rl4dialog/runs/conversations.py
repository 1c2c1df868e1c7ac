"""Conversations in the records of predictions: written by evaluations, read by reports and summaries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from rl4dialog.core.types import AGENT, SPEAKERS, Dialogue, EndedBy, Turn, is_number

TURNS_KEY = "turns"
CONVERSATION_KEYS = (TURNS_KEY, "outcome", "ended_by")
GOAL_KEY, FAILURES_KEY = "goal_text", "failures"
_ENDS = {
    "agent": "ended by the agent",
    "partner": "ended by the partner",
    "max_turns": "ended after max_turns",
    "length": "ended by an utterance that was cut at the length limit",
}


def conversation_record(dialogue: Dialogue) -> dict[str, Any]:
    """Return the part of a prediction's record that holds the whole conversation.

    Returns:
        ``turns``: each with its ``speaker`` (``partner`` or ``agent``) and ``text``, the ``reward`` of what the agent
        said (``None`` if it has none), what was ``spoken`` if that is another text, and ``given: True`` if it belongs
        to the sample; ``outcome`` and ``ended_by``, as in the dialogue. Of a conversation about a goal, also the
        ``goal_text`` and the ``failures``.
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
        turns.append(record)
    record = {TURNS_KEY: turns, "outcome": dict(dialogue.outcome), "ended_by": dialogue.ended_by}
    if isinstance(goal := dialogue.meta_data.get(GOAL_KEY), str):
        record |= {GOAL_KEY: goal, FAILURES_KEY: list(dialogue.failures)}
    return record


def recorded_conversation(record: Mapping[str, Any]) -> Dialogue | None:
    """Read a conversation back from the record of a prediction; ``None`` for a single reply.

    Of a conversation about a goal, the ``goal_text`` is in its meta data.

    Raises:
        ValueError: If the record is not one of :func:`conversation_record`.
    """
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
    outcome = [f"{key} {value:.4g}" for key, value in dialogue.outcome.items()]
    return "; ".join([*([_ENDS[dialogue.ended_by]] if dialogue.ended_by else []), *outcome])


def _recorded_turn(record: Any) -> Turn:
    numbers = {name: number for number, name in SPEAKERS.items()}
    known = isinstance(record, Mapping) and record.get("speaker") in [*numbers] and isinstance(record.get("text"), str)
    if not known:
        raise ValueError(f"each turn needs a speaker ({' or '.join(numbers)}) and a text")
    reward: Any = record.get("reward", 0.0)
    # A reward that was not finite is null in the file.
    spoken = record.get("spoken", "")
    return Turn(
        record["text"],
        numbers[record["speaker"]],
        reward=float(reward) if is_number(reward) else math.nan,
        spoken=spoken if isinstance(spoken, str) else "",
    )
