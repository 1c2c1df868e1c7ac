"""Scripted players of the agent's side.

Over 20,000 games each, of 8 turns, with a return of ``success - 0.05 * turns``:

======================= ======= ===== ======
player                  success turns return
======================= ======= ===== ======
`BlindPlayer`           0.18    7.3   -0.18
`CarelessPlayer`        0.41    7.5   +0.03
`MixedPlayer`, the data 0.43    7.6   +0.06
`ConsistentPlayer`      0.50    7.7   +0.11
`InformationGainPlayer` 1.00    5.8   +0.71
======================= ======= ===== ======
"""

from __future__ import annotations

import random
from abc import abstractmethod
from typing import Any

from rl4dialog.core.protocols import Player
from rl4dialog.tasks.guess_what.questions import GUESSES, QUESTIONS, Question, consistent_things
from rl4dialog.tasks.guess_what.things import THINGS

MAX_TURNS = 8


class GuessWhatPlayer(Player):
    """Base class: counts turns and guesses.

    Args:
        max_turns: Number of turns after which the game is lost. On the last one, every player guesses.
    """

    def __init__(self, max_turns: int = MAX_TURNS) -> None:
        self._max_turns = max_turns
        self._n_said = 0
        self._rng = random.Random(0)

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._n_said = 0
        self._rng = random.Random(seed)

    def say(self, history: list[str]) -> str:
        self._n_said += 1
        # If the answers of a partner contradict each other, everything is possible again.
        things = consistent_things(history) or list(THINGS)
        question = None if self._n_said >= self._max_turns else self.choose(history, things)
        return (question or self.guess(things)).text

    def guess(self, things: list[str]) -> Question:
        """Guess one of the things, at random."""
        return GUESSES[self._rng.choice(things)]

    @abstractmethod
    def choose(self, history: list[str], things: list[str]) -> Question | None:
        """Choose a question.

        Args:
            history: All utterances so far, oldest first.
            things: The things that agree with all answers.

        Returns:
            The question; ``None`` to guess.
        """


class BlindPlayer(GuessWhatPlayer):
    """Guesses any thing in every turn, and does not remember its guesses."""

    def choose(self, history: list[str], things: list[str]) -> None:
        return None

    def guess(self, things: list[str]) -> Question:
        return super().guess(list(THINGS))


class CarelessPlayer(GuessWhatPlayer):
    """Asks for properties at random, also for the same one again, and often guesses early."""

    guess_share = 0.25
    """Share of guesses before the last turn."""

    def choose(self, history: list[str], things: list[str]) -> Question | None:
        return None if self._rng.random() < self.guess_share else self._rng.choice(QUESTIONS)


class ConsistentPlayer(GuessWhatPlayer):
    """Asks for properties at random, never for the same one again, and guesses when only one thing is left."""

    def choose(self, history: list[str], things: list[str]) -> Question | None:
        unasked = [question for question in QUESTIONS if question.text not in history]
        return self._rng.choice(unasked) if unasked and len(things) > 1 else None


class InformationGainPlayer(GuessWhatPlayer):
    """Asks the question with the most informative answer; among equally informative ones, it prefers a guess.

    With all things equally likely, the entropy of the answer, which is the expected information gain, is the higher
    the closer the question comes to halving the things that are left.
    """

    def choose(self, history: list[str], things: list[str]) -> Question | None:
        smaller_parts = {
            question: min(n_yes := sum(thing in question.things for thing in things), len(things) - n_yes)
            for question in QUESTIONS
        }
        best = max(smaller_parts.values())
        if best <= 1:  # the smaller part of a guess is one thing
            return None
        return self._rng.choice([question for question, part in smaller_parts.items() if part == best])


class MixedPlayer(Player):
    """Plays a game as a `ConsistentPlayer` or a `CarelessPlayer`, at random.

    Args:
        consistent_share: Share of the games that are played by a `ConsistentPlayer`.
        max_turns: Number of turns after which the game is lost.
    """

    def __init__(self, consistent_share: float = 0.4, max_turns: int = MAX_TURNS) -> None:
        self._consistent_share = consistent_share
        self._players = CarelessPlayer(max_turns), ConsistentPlayer(max_turns)
        self._player: Player = self._players[0]

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        rng = random.Random(seed)
        self._player = self._players[rng.random() < self._consistent_share]
        self._player.reset(meta_info, rng.getrandbits(31))

    def say(self, history: list[str]) -> str:
        return self._player.say(history)
