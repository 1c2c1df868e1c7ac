"""Replies, conversations or episodes of an evaluation with their scores, and the pairing of two evaluations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4dialog.core.errors import DataError
from rl4dialog.core.files import json_value
from rl4dialog.core.types import AGENT, Dialogue
from rl4dialog.runs.conversations import recorded_conversation

_TURN_MARKER = "<EOU>"
_TEXT_KEYS = ("prompt_text", "generated_text", "ref_text")
_NO_SCORES = {*_TEXT_KEYS, "split_name", "sample_id"}
_REFERENCE = re.compile(r"<START-(\d+)>(.*?)<END-\1>", re.DOTALL)


@dataclass(frozen=True)
class Predictions:
    """Replies to the prompts of a split, conversations that start with them, or its episodes, which have empty texts.

    Attributes:
        sample_ids: Sample ids, as text.
        prompts: Prompts of the samples.
        utterances: The utterances of each prompt, without markup.
        replies: Replies to the prompts; in conversations, the first ones.
        references: Reference replies of each sample.
        scores: Score of each reply or conversation by metric or reward; NaN where there is none. Each of shape (N,).
        conversations: The whole conversations; ``None`` for single replies and plain episodes.
        advantages: Mean advantage of each utterance of the agent, by the values of the policy; empty without values.
    """

    sample_ids: list[str]
    prompts: list[str]
    utterances: list[list[str]]
    replies: list[str]
    references: list[list[str]]
    scores: dict[str, NDArray[np.float64]]
    conversations: list[Dialogue | None]
    advantages: list[list[float]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.replies)

    def select(self, rows: Sequence[int]) -> Predictions:
        """Return the given rows, in that order."""
        index = np.asarray(rows, dtype=int)
        return Predictions(
            [self.sample_ids[row] for row in rows],
            [self.prompts[row] for row in rows],
            [self.utterances[row] for row in rows],
            [self.replies[row] for row in rows],
            [self.references[row] for row in rows],
            {key: values[index] for key, values in self.scores.items()},
            [self.conversations[row] for row in rows],
            [self.advantages[row] for row in rows] if self.advantages else [],
        )

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
    """Read a predictions file.

    Returns:
        ``None`` if the file is truncated.
    """
    try:
        rows = json_value(path.read_bytes().decode("utf-8", errors="replace"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError:
        return None
    if not isinstance(rows, list) or not all(map(_is_complete, rows)):
        raise DataError(f"{path} must be a list of objects, each with the texts {', '.join(_TEXT_KEYS)}, or with none")
    try:
        conversations = [recorded_conversation(row) for row in rows]
    except ValueError as error:
        raise DataError(f"{path} has a conversation that cannot be read: {error}") from error
    keys = dict.fromkeys(key for row in rows for key, value in row.items() if _is_score(key, value))
    return Predictions(
        [str(row.get("sample_id", i)) for i, row in enumerate(rows)],
        [row.get("prompt_text", "") for row in rows],
        [_utterances(row) for row in rows],
        [row.get("generated_text", "") for row in rows],
        [_references(row.get("ref_text", "")) for row in rows],
        {key: np.array([row[key] if _is_score(key, row.get(key)) else np.nan for row in rows], float) for key in keys},
        conversations,
        [row["advantages"] for row in rows] if all(isinstance(row.get("advantages"), list) for row in rows) else [],
    )


def pair(before: Predictions, after: Predictions) -> tuple[Predictions, Predictions]:
    """Return the prompts that two evaluations share, in the order of the first."""
    before, after = aligned([before, after])
    return before, after


def aligned(evaluations: Sequence[Predictions]) -> list[Predictions]:
    """Return the prompts that all evaluations share, in the order of the first."""
    rows = [{name: row for row, name in enumerate(_names(each))} for each in evaluations]
    shared = [name for name in rows[0] if all(name in others for others in rows[1:])] if rows else []
    return [each.select([row[name] for name in shared]) for each, row in zip(evaluations, rows, strict=True)]


def _names(predictions: Predictions) -> list[tuple[str, str, int]]:
    """Unique keys of the samples of a split, whose ids may repeat."""
    seen: Counter[tuple[str, str]] = Counter()
    names = []
    for name in zip(predictions.sample_ids, predictions.prompts, strict=True):
        names.append((*name, seen[name]))
        seen[name] += 1
    return names


def _is_complete(row: Any) -> bool:
    """Whether a row has all texts, or, as an episode, none."""
    if not isinstance(row, dict):
        return False
    return not row.keys() & {*_TEXT_KEYS} or all(isinstance(row.get(key), str) for key in _TEXT_KEYS)


def _utterances(row: Mapping[str, Any]) -> list[str]:
    history = row.get("history")
    said = map(str, history) if isinstance(history, list) else row.get("prompt_text", "").split(_TURN_MARKER)
    return [text.strip() for text in said if text.strip()]


def _references(text: str) -> list[str]:
    numbered = [reference for _, reference in _REFERENCE.findall(text)] or [text]
    return [reference for reference in numbered if reference]


def _is_score(key: str, value: Any) -> bool:
    return key not in _NO_SCORES and isinstance(value, (int, float))
