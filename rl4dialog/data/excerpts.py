"""Excerpts of rated conversations, all of the same length, in files for two reward models and for prompts.

Raters prefer long conversations. With excerpts of the same length, a reward model can only learn from what is said.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import DataError
from rl4dialog.core.files import replaced
from rl4dialog.core.types import AGENT, RatedDialogue
from rl4dialog.data.splits import shuffled

PROMPT_SHARE = 0.1
MEAN = "mean"
"""Name of the mean of all ratings of a conversation, which the files have in addition."""


def write_excerpts(
    rated: Sequence[RatedDialogue], folder: Path, n_utterances: int, default_rating: float | None = None, seed: int = 0
) -> dict[str, int]:
    """Write ratings files of excerpts, none of which share a conversation.

    Args:
        rated: Rated dialogues.
        folder: Output folder: ``reward.jsonl`` and ``held_out.jsonl`` with half of the ratings each, ``val.jsonl`` and
            ``test.jsonl`` for prompts.
        n_utterances: Utterances of an excerpt.
        default_rating: Dialogues whose ratings all have this value count as not rated. They become ``val`` and
            ``test``; without any, a share of :data:`PROMPT_SHARE` of the dialogues does.
        seed: Random seed of the split.

    Returns:
        Number of excerpts in each file.
    """
    long = [each for each in rated if len(each.dialogue.turns) >= n_utterances]
    long = [long[i] for i in shuffled(len(long), f"excerpts/{seed}")]
    spare = [each for each in long if set(each.ratings.values()) == {default_rating}]
    if spare:
        long = [each for each in long if set(each.ratings.values()) != {default_rating}]
    else:
        n_spare = round(len(long) * PROMPT_SHARE)
        long, spare = long[n_spare:], long[:n_spare]
    parts = {"reward": long[::2], "held_out": long[1::2], "val": spare[::2], "test": spare[1::2]}
    if empty := [name for name, part in parts.items() if not part]:
        raise DataError(
            f"{len(long) + len(spare)} of {len(rated)} rated dialogues have at least {n_utterances} utterances, too "
            f"few for all four files ({', '.join(empty)} would be empty)"
        )
    folder.mkdir(parents=True, exist_ok=True)
    return {name: _write(folder / f"{name}.jsonl", _rows(part, n_utterances)) for name, part in parts.items()}


def _rows(rated: Iterable[RatedDialogue], n_utterances: int) -> Iterator[dict[str, Any]]:
    """Excerpts that do not overlap, in the format of ratings files; all of a conversation have its id."""
    for each in rated:
        turns = each.dialogue.turns
        # An even step, so that the same speaker begins every excerpt.
        for start in range(0, len(turns) - n_utterances + 1, n_utterances + n_utterances % 2):
            messages = [
                {"role": "assistant" if turn.speaker == AGENT else "user", "content": turn.text}
                for turn in turns[start : start + n_utterances]
            ]
            ratings = {**each.ratings, MEAN: math.fsum(each.ratings.values()) / len(each.ratings)}
            yield {"id": each.conversation, "ratings": ratings, "messages": messages}


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    with replaced(path) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")
    return len(lines)
