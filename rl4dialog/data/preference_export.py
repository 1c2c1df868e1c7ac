"""User feedback as preference data in TRL's conversational format, which its DPO and reward trainers read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import DataError
from rl4dialog.core.feedback import Feedback
from rl4dialog.core.json_lines import write_records
from rl4dialog.data.dialogue_format import chat_messages
from rl4dialog.data.latest_feedback import count_kinds, read_latest


def export_preferences(source: Path, target: Path) -> tuple[int, int]:
    """Write the preferences and corrections of a feedback file as lines with prompt, chosen and rejected.

    Args:
        source: The feedback file; of judgements of the same reply, the later one holds.
        target: The output, ``.jsonl``; an existing file is replaced.

    Returns:
        Number of written pairs, and of judgements that make none: ratings, and pairs of equal replies.
    """
    feedback = read_latest(source)
    pairs = list(preference_rows(feedback))
    if not pairs:
        raise DataError(
            f"{source} has no preferences or corrections of different replies, which pairs are made of (it has "
            f"{count_kinds(feedback)})"
        )
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
