"""User feedback as preference data in TRL's conversational format, which its DPO and reward trainers read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import DataError
from rl4dialog.core.feedback import Feedback
from rl4dialog.core.types import SPEAKERS, given_turns
from rl4dialog.data.latest_feedback import count_kinds, read_latest

_ROLES = {"agent": "assistant", "partner": "user"}


def export_preferences(source: Path, target: Path) -> tuple[int, int]:
    """Write the preferences and corrections of a feedback file as lines with prompt, chosen and rejected.

    Args:
        source: The feedback file; of judgements of the same reply, the later one holds.
        target: The output, ``.jsonl``; an existing file is replaced.

    Returns:
        Number of written pairs, and of judgements that make none: ratings, and pairs of equal replies.

    Raises:
        DataError: If the feedback is missing, malformed or empty, or makes no pair.
    """
    feedback = read_latest(source)
    pairs = list(preference_rows(feedback))
    if not pairs:
        raise DataError(
            f"{source} has no preferences or corrections of different replies, which pairs are made of (it has "
            f"{count_kinds(feedback)})"
        )
    text = "".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror}") from error
    return len(pairs), len(feedback) - len(pairs)


def preference_rows(feedback: Iterable[Feedback]) -> Iterator[dict[str, Any]]:
    """Yield a row for each preference and correction: ``prompt``, ``chosen`` and ``rejected``, as lists of messages."""
    for each in feedback:
        texts = [reply.text for reply in each.replies]
        if each.correction is not None:
            chosen, rejected = each.correction, texts[0]
        elif each.chosen is not None:
            chosen, rejected = texts[each.chosen], texts[1 - each.chosen]
        else:
            continue
        if chosen == rejected:
            continue
        system = [{"role": "system", "content": each.persona}] if each.persona else []
        turns = [{"role": _ROLES[SPEAKERS[turn.speaker]], "content": turn.text} for turn in given_turns(each.turns)]
        yield {
            "prompt": [*system, *turns],
            "chosen": [{"role": "assistant", "content": chosen}],
            "rejected": [{"role": "assistant", "content": rejected}],
        }
