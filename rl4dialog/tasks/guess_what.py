"""Twenty questions: the partner thinks of a thing, and the agent asks yes/no questions until it can guess it.

How well the players do is in docs/conversations.md.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from rl4dialog.core.arguments import Count, Fraction
from rl4dialog.core.errors import DataError, shown
from rl4dialog.core.protocols import Partner
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import PartnerReply, Sample
from rl4dialog.core.yaml_loader import packaged_yaml
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat
from rl4dialog.data.pool import TextGenPool, size_of
from rl4dialog.tasks import playing
from rl4dialog.tasks.playing import MixedPlayer, SeededPlayer, play, with_game

MAX_TURNS = 8

_TABLE = packaged_yaml(Path(__file__).with_suffix(".yaml"))
THINGS = tuple(_TABLE["things"].split())
PROPERTIES = {words: frozenset(things.split()) for words, things in _TABLE["properties"].items()}
"""By words of the question, the things for which the answer is yes."""

OPENING = "guess what i think of"
YES, NO, NOT_UNDERSTOOD = "yes", "no", "i do not understand"


@dataclass(frozen=True)
class Question(playing.Question):
    """A question of the agent."""

    things: frozenset[str]  # the things for which the answer is yes
    is_guess: bool = False  # whether it asks for one thing, and not for a property


def with_article(thing: str) -> str:
    """Return a thing with its article, such as ``a dog`` or ``an apple``."""
    return f"{'an' if thing[0] in 'aeiou' else 'a'} {thing}"


QUESTIONS = tuple(Question(words, things) for words, things in PROPERTIES.items())  # one question for each property
GUESSES = {thing: Question(f"is it {with_article(thing)}", frozenset({thing}), is_guess=True) for thing in THINGS}
parse = playing.reader_of((*QUESTIONS, *GUESSES.values()))


def win(thing: str) -> str:
    """Return the answer to the right guess."""
    return f"yes , it is {with_article(thing)} !"


def consistent_things(history: Sequence[str]) -> list[str]:
    """Return the things that agree with all answers of a conversation."""
    things = list(THINGS)
    for said, answer in pairwise(history):
        question = parse(said) if answer in (YES, NO) else None
        if question is not None:
            things = [thing for thing in things if (thing in question.things) == (answer == YES)]
    return things


class GuessWhatPartner(Partner):
    """Thinks of the sample's thing, answers yes/no questions about it, and leaves after the right guess.

    The thing is in the meta data as ``thing``. The outcome ``success`` is 1 if it was guessed.
    """

    role = "You think of a thing, answer questions about it with yes or no, and say so when it is guessed."
    outcomes = ("success",)
    checks_samples = True

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._thing, self._guessed = meta_info.get("thing", ""), False
        if self._thing not in THINGS:
            there = f"a thing of the game, not {shown(meta_info.get('thing'))}"
            cure = f"use the datapool guess_what (things: {', '.join(THINGS)})"
            raise DataError(f"partner 'guess_what' needs samples whose meta_data['thing'] is {there}; {cure}")

    def secret(self) -> str:
        return self._thing

    def reply(self, history: list[str]) -> PartnerReply | str:
        question = parse(history[-1])
        if question is None:
            return NOT_UNDERSTOOD
        if self._thing not in question.things or not question.is_guess:
            return YES if self._thing in question.things else NO
        self._guessed = True
        return PartnerReply(win(self._thing), leaves=True)

    def outcome(self) -> dict[str, float]:
        return {"success": float(self._guessed)}


class GuessWhatPlayer(SeededPlayer):
    """Base class: guesses on the last turn, after which the game is lost."""

    def __init__(self, max_turns: int = MAX_TURNS) -> None:
        super().__init__()
        self._max_turns = max_turns

    def say(self, history: list[str]) -> str:
        # If the answers of a partner contradict each other, everything is possible again.
        things = consistent_things(history) or list(THINGS)
        question = None if len(history) // 2 >= self._max_turns - 1 else self.choose(history, things)
        return (question or self.guess(things)).text

    def guess(self, things: list[str]) -> Question:
        """Guess one of the things, at random."""
        return GUESSES[self._rng.choice(things)]

    @abstractmethod
    def choose(self, history: list[str], things: list[str]) -> Question | None:
        """Choose a question, or ``None`` to guess; `things` agree with all answers."""


class BlindPlayer(GuessWhatPlayer):
    """Guesses any thing in every turn, and does not remember its guesses."""

    def choose(self, history: list[str], things: list[str]) -> None:
        return None

    def guess(self, things: list[str]) -> Question:
        return super().guess(list(THINGS))


class CarelessPlayer(GuessWhatPlayer):
    """Asks for properties at random, also for the same one again, and often guesses early."""

    guess_share = 0.25  # share of guesses before the last turn

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
        n_yes = {question: sum(thing in question.things for thing in things) for question in QUESTIONS}
        smaller_part = {question: min(n, len(things) - n) for question, n in n_yes.items()}
        best = max(smaller_part.values())
        if best <= 1:  # the smaller part of a guess is one thing
            return None
        return self._rng.choice([question for question, part in smaller_part.items() if part == best])


def data_player(consistent_share: float = 0.4, max_turns: int = MAX_TURNS) -> MixedPlayer:
    return MixedPlayer(consistent_share, ConsistentPlayer(max_turns), CarelessPlayer(max_turns))


class GuessWhat(TextGenPool):
    """Games of twenty questions about everyday things, played by scripted players, without files or network.

    Args:
        consistent_share: Share of games whose player asks at random, but never twice; others repeat and guess early.
        max_turns: Number of turns after which a game is lost; use the same number in ``env.args``.
    """

    repeats_prompts = True

    @classmethod
    def prepare(
        cls,
        split: str,
        n_train: Count = 5000,
        n_val: Count = 500,
        n_test: Count = 500,
        consistent_share: Fraction = 0.4,
        max_turns: Count = MAX_TURNS,
        seed: int = 0,
        format: FormatName = "eou",
        render_chat: RenderChat | None = None,
    ) -> GuessWhat:
        """Generate the games of one split.

        All splits have the same 40 things; ``val`` and ``test`` are other games about them.

        There is one sample per game, also of lost ones. Its prompt is the partner's opening line and its reference is
        the first question. In its meta data are ``history``, the ``thing`` and the ``continuation``, which contains all
        later utterances, starting with the partner's answer.
        """
        n_games = size_of(split, n_train, n_val, n_test)
        dialogue_format = DialogueFormat(format, None, render_chat)
        player, prompt = data_player(consistent_share, max_turns), dialogue_format.prompt([OPENING])
        samples = []
        for index in range(n_games):
            game_seed = derive_seed(seed, "guess_what", split, index)
            thing = random.Random(derive_seed(game_seed, "thing")).choice(THINGS)
            sample = Sample(f"{split}_{index}", prompt, [], {"history": [OPENING], "thing": thing})
            samples.append(with_game(sample, play(player, GuessWhatPartner(), sample, max_turns, game_seed)))
        pool = cls(samples, dialogue_format=dialogue_format)
        pool.players = {
            "blind": partial(BlindPlayer, max_turns),
            "careless": partial(CarelessPlayer, max_turns),
            "data": partial(data_player, consistent_share, max_turns),
            "consistent": partial(ConsistentPlayer, max_turns),
            "information_gain": partial(InformationGainPlayer, max_turns),
        }
        return pool
