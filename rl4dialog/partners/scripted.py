"""A partner with a given script."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from rl4dialog.core.protocols import Partner
from rl4dialog.partners.sample_texts import sample_texts

_HINT = "set the argument replies, or use a datapool whose samples have such a script"


class ScriptedPartner(Partner):
    """Replies with given lines in order, then leaves.

    Args:
        replies: The lines; by default those in the sample's ``meta_data["partner_replies"]``.

    Raises:
        DataError: At the start of a conversation, if the sample has no lines and ``replies`` is not given.
    """

    def __init__(self, replies: Annotated[list[str], Field(min_length=1)] | None = None) -> None:
        self._given = replies
        self._replies: list[str] = []
        self._n_said = 0

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        given = self._given
        self._replies = sample_texts(meta_info, "partner_replies", "scripted", _HINT) if given is None else given
        self._n_said = 0

    def reply(self, history: list[str]) -> str | None:
        if self._n_said >= len(self._replies):
            return None
        self._n_said += 1
        return self._replies[self._n_said - 1]
