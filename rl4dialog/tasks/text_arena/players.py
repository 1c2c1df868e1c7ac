"""Scripted players of the agent's side."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.protocols import Player
from rl4dialog.tasks.text_arena.game import OwnRandom, chosen_by


class TextArenaPlayer(Player):
    """A player that chooses moves by a function.

    Args:
        chooser: ``random`` for one of the moves that the game lists, or ``module:function``.
    """

    def __init__(self, chooser: str) -> None:
        self._choose = chosen_by(chooser, "player")

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        del meta_info
        self._random = OwnRandom(seed)

    def say(self, history: list[str]) -> str:
        with self._random.in_use():
            return self._choose("\n".join(history))
