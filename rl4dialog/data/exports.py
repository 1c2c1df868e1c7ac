"""Files of judgements for other uses: excerpts of rated conversations, and TRL's preference pairs of user feedback."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import DataError
from rl4dialog.core.feedback import Feedback
from rl4dialog.core.files import replaced, write_records
from rl4dialog.core.types import AGENT, PARTNER, RatedDialogue
from rl4dialog.data.dialogue_format import chat_messages
from rl4dialog.data.ratings import count_kinds, read_latest
from rl4dialog.data.splits import shuffled

PROMPT_SHARE = 0.1
MEAN = "mean"  # name of the mean of all ratings of a conversation, which the files have in addition


def write_excerpts(
    rated: Sequence[RatedDialogue], folder: Path, n_utterances: int, default_rating: float | None = None, seed: int = 0
) -> dict[str, int]:
    """Write ratings files of excerpts, all of the same length, none of which share a conversation; returns their sizes.

    Raters prefer long conversations. With excerpts of the same length, a reward model can only learn from what is said.
    ``reward.jsonl`` and ``held_out.jsonl`` have half of the ratings each. Dialogues whose ratings are all
    `default_rating` count as not rated; they, or else a share of `PROMPT_SHARE`, are prompts in ``val`` and ``test``.
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
        n_long = f"{len(long) + len(spare)} of {len(rated)} rated dialogues have at least {n_utterances} utterances"
        raise DataError(f"{n_long}, too few for all four files ({', '.join(empty)} would be empty)")
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {}
    for name, part in parts.items():
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in _rows(part, n_utterances)]
        sizes[name] = len(lines)
        with replaced(folder / f"{name}.jsonl") as temporary:
            temporary.write_text("".join(lines), encoding="utf-8")
    return sizes


def _rows(rated: Iterable[RatedDialogue], n_utterances: int) -> Iterator[dict[str, Any]]:
    """Excerpts that do not overlap, in the format of ratings files; all of a conversation have its id."""
    roles = {AGENT: "assistant", PARTNER: "user"}
    for each in rated:
        ratings = {**each.ratings, MEAN: math.fsum(each.ratings.values()) / len(each.ratings)}
        messages = [{"role": roles[turn.speaker], "content": turn.text} for turn in each.dialogue.turns]
        # An even step, so that the same speaker begins every excerpt.
        for start in range(0, len(messages) - n_utterances + 1, n_utterances + n_utterances % 2):
            yield {"id": each.conversation, "ratings": ratings, "messages": messages[start : start + n_utterances]}


def export_preferences(source: Path, target: Path) -> tuple[int, int]:
    """Write TRL's preference pairs; return their number, and that of judgements that make none."""
    feedback = read_latest(source)
    pairs = list(preference_rows(feedback))
    if not pairs:
        what = "preferences or corrections of different replies, which pairs are made of"
        raise DataError(f"{source} has no {what} (it has {count_kinds(feedback)})")
    write_records(target, pairs)
    return len(pairs), len(feedback) - len(pairs)


def preference_rows(feedback: Iterable[Feedback]) -> Iterator[dict[str, Any]]:
    """Yield a row for each preference and correction: ``prompt``, ``chosen`` and ``rejected``, as lists of messages."""
    for each in feedback:
        if each.compared is None or len(set(each.compared)) == 1:
            continue
        chosen, rejected = each.compared
        yield {
            "prompt": chat_messages(each.turns, each.persona),
            "chosen": [{"role": "assistant", "content": chosen}],
            "rejected": [{"role": "assistant", "content": rejected}],
        }
