"""Scripted players of the agent's side, who ask a question in every turn."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from rl4dialog.core.protocols import Player
from rl4dialog.tasks.get_acquainted.grammar import favorites
from rl4dialog.tasks.get_acquainted.topics import TOPICS, Topic


class AcquaintedPlayer(Player):
    """Asks for any topic at random, also for the same one again."""

    def __init__(self) -> None:
        self._rng = random.Random(0)
        self._topics: Sequence[Topic] = TOPICS

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._rng = random.Random(seed)
        self._topics = self.topics(seed)

    def topics(self, seed: int) -> Sequence[Topic]:
        """Return the topics of a conversation."""
        return TOPICS

    def choose(self) -> Topic:
        """Choose the topic of the next question."""
        return self._rng.choice(self._topics)

    def say(self, history: list[str]) -> str:
        return self._rng.choice(self.choose().questions)


class OneTopicPlayer(AcquaintedPlayer):
    """Asks for the same topic in every turn."""

    def topics(self, seed: int) -> Sequence[Topic]:
        return favorites(str(seed))[:1]


class FavoritesPlayer(AcquaintedPlayer):
    """Asks for one of three topics, at random."""

    def topics(self, seed: int) -> Sequence[Topic]:
        return favorites(str(seed))


class CuriousPlayer(AcquaintedPlayer):
    """Asks for another topic in every turn, in random order; starts again after all of them."""

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        super().reset(meta_info, seed)
        self._unasked: list[Topic] = []

    def choose(self) -> Topic:
        if not self._unasked:
            self._unasked = self._rng.sample(self._topics, len(self._topics))
        return self._unasked.pop()
