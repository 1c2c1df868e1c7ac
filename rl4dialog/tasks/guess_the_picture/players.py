"""Scripted players of the agent's side.

Over 5,000 games each, with the mean return for each kind of ``yes_no_penalty``:

======================= ======= ====== ====== ====== ====== ============
player                  success rounds none   hard   soft   conservative
======================= ======= ====== ====== ====== ====== ============
`RandomPlayer`          0.81    7.0    -6.00  -10.28 -14.42 -18.88
`MixedPlayer`, the data 0.89    4.9    -3.91  -6.10  -8.14  -11.18
`OpenPlayer`            1.00    2.8    -1.81  -1.81  -1.81  -3.43
`InformedPlayer`        1.00    2.0    -1.00  -1.01  -1.02  -1.02
======================= ======= ====== ====== ====== ====== ============
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections import Counter
from typing import Any

from rl4dialog.core.protocols import Player
from rl4dialog.tasks.guess_the_picture.guesser import values_left_by
from rl4dialog.tasks.guess_the_picture.questions import OPEN_QUESTIONS, QUESTIONS, Question
from rl4dialog.tasks.guess_the_picture.scenes import VIEWS, Scene, table_of


class PicturePlayer(Player):
    """Base class: draws with the seed of the game."""

    def __init__(self) -> None:
        self._rng = random.Random(0)

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._rng = random.Random(seed)

    def say(self, history: list[str]) -> str:
        return self.choose(history).text

    @abstractmethod
    def choose(self, history: list[str]) -> Question:
        """Choose a question.

        Args:
            history: All utterances so far, oldest first.
        """


class RandomPlayer(PicturePlayer):
    """Asks any question at random, also the same one again; most of them are yes/no questions."""

    def choose(self, history: list[str]) -> Question:
        return self._rng.choice(QUESTIONS)


class OpenPlayer(PicturePlayer):
    """Asks no yes/no questions: all open ones in random order, also those that the view makes hard to answer."""

    def choose(self, history: list[str]) -> Question:
        unasked = [question for question in OPEN_QUESTIONS if question.text not in history]
        return self._rng.choice(unasked or OPEN_QUESTIONS)


class InformedPlayer(PicturePlayer):
    """Knows the table, and asks the question whose answer takes the most points from scenes, by expectation.

    The expectation is over the scenes that agree with the caption and all answers, all equally likely. It is 0 for
    questions that the view makes hard to answer. Penalties for yes/no questions are not considered.
    """

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        super().reset(meta_info, seed)
        self._scenes = table_of(meta_info) or ()

    def choose(self, history: list[str]) -> Question:
        view, left = history[0], values_left_by(history)
        possible = [
            scene
            for scene in self._scenes
            if scene.view == view and all(scene.values[name] in values for name, values in left.items())
        ]
        hard_to_see = VIEWS.get(view, frozenset())
        gains = {
            question: self._gain(question, left[question.attribute], possible)
            for question in QUESTIONS
            if question.is_answered(hard_to_see)
        }
        best = max(gains.values())
        return self._rng.choice([question for question, gain in gains.items() if gain == best])

    def _gain(self, question: Question, left: frozenset[str], possible: list[Scene]) -> int:
        """Points that scenes would lose, summed over the possible scenes."""
        in_table = Counter(scene.values[question.attribute] for scene in self._scenes)
        in_possible = Counter(scene.values[question.attribute] for scene in possible)
        answers = (
            [frozenset({value}) for value in left]
            if question.values is None
            else [left & question.values, left - question.values]
        )
        return sum(
            sum(in_possible[value] for value in answer) * sum(in_table[value] for value in left - answer)
            for answer in answers
        )


class MixedPlayer(Player):
    """Plays a game as an `OpenPlayer` or a `RandomPlayer`, at random.

    Args:
        open_share: Share of the games that are played by an `OpenPlayer`.
    """

    def __init__(self, open_share: float = 0.5) -> None:
        self._open_share = open_share
        self._players = RandomPlayer(), OpenPlayer()
        self._player: Player = self._players[0]

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        rng = random.Random(seed)
        self._player = self._players[rng.random() < self._open_share]
        self._player.reset(meta_info, rng.getrandbits(31))

    def say(self, history: list[str]) -> str:
        return self._player.say(history)
