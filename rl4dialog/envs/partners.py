"""Rule-based conversation partners; neural partners run in the main process."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.protocols import Partner


class ScriptedPartner(Partner):
    """Replies with given lines in order, then ends the conversation.

    Args:
        replies: The lines; ``None`` uses the sample's ``meta_data["partner_replies"]``.
    """

    def __init__(self, replies: list[str] | None = None) -> None:
        self._given = replies
        self._replies: list[str] = []
        self._n_said = 0

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._replies = self._given if self._given is not None else list(meta_info.get("partner_replies", []))
        self._n_said = 0

    def reply(self, history: list[str]) -> str | None:
        if self._n_said >= len(self._replies):
            return None
        self._n_said += 1
        return self._replies[self._n_said - 1]
