"""The partner, who thinks of a thing and answers questions about it."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.errors import DataError, shown
from rl4dialog.core.protocols import Partner
from rl4dialog.core.types import PartnerReply
from rl4dialog.tasks.guess_what.questions import NO, NOT_UNDERSTOOD, YES, parse, win
from rl4dialog.tasks.guess_what.things import THINGS


class GuessWhatPartner(Partner):
    """Thinks of the sample's thing, answers yes/no questions about it, and leaves after the right guess.

    Its outcome ``success`` is 1 if the thing was guessed.

    Raises:
        DataError: At the start of a conversation, if the sample's ``meta_data["thing"]`` is not a thing of the game.
    """

    outcomes = ("success",)
    checks_samples = True

    def __init__(self) -> None:
        self._thing = ""
        self._guessed = False

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._thing, self._guessed = meta_info.get("thing", ""), False
        if self._thing not in THINGS:
            raise DataError(
                f"partner 'guess_what' needs samples whose meta_data['thing'] is a thing of the game, not "
                f"{shown(meta_info.get('thing'))}; use the datapool guess_what (things: {', '.join(THINGS)})"
            )

    def reply(self, history: list[str]) -> PartnerReply | str:
        question = parse(history[-1])
        if question is None:
            return NOT_UNDERSTOOD
        if self._thing not in question.things:
            return NO
        if not question.is_guess:
            return YES
        self._guessed = True
        return PartnerReply(win(self._thing), leaves=True)

    def outcome(self) -> dict[str, float]:
        return {"success": float(self._guessed)}
