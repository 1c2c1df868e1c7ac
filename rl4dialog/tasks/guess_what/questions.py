"""Everything that is said in the game, in lower-case words separated by spaces, and the reading of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rl4dialog.tasks.guess_what.things import PROPERTIES, THINGS

OPENING = "guess what i think of"
YES, NO, NOT_UNDERSTOOD = "yes", "no", "i do not understand"


@dataclass(frozen=True)
class Question:
    """A question of the agent.

    Attributes:
        words: The question without its question mark.
        things: The things for which the answer is yes.
        is_guess: Whether it asks for one thing, and not for a property.
    """

    words: str
    things: frozenset[str]
    is_guess: bool = False

    @property
    def text(self) -> str:
        """The question as it is said."""
        return f"{self.words} ?"


def with_article(thing: str) -> str:
    """Return a thing with its article, such as ``a dog`` or ``an apple``."""
    return f"{'an' if thing[0] in 'aeiou' else 'a'} {thing}"


QUESTIONS = tuple(Question(words, things) for words, things in PROPERTIES.items())
"""One question for each property."""
GUESSES = {thing: Question(f"is it {with_article(thing)}", frozenset({thing}), is_guess=True) for thing in THINGS}
"""The guess of each thing."""

_BY_WORDS = {question.words: question for question in (*QUESTIONS, *GUESSES.values())}


def parse(text: str) -> Question | None:
    """Read a question. Case, spaces and question marks at the end do not matter.

    Returns:
        The question; ``None`` if the text is not exactly one question of the game.
    """
    return _BY_WORDS.get(" ".join(text.lower().split()).rstrip(" ?"))


def win(thing: str) -> str:
    """Return the answer to the right guess."""
    return f"yes , it is {with_article(thing)} !"


def consistent_things(history: Sequence[str]) -> list[str]:
    """Return the things that agree with all answers of a conversation.

    Args:
        history: The utterances, oldest first.

    Returns:
        Things in the order of ``THINGS``; none if the answers contradict each other.
    """
    things = list(THINGS)
    for said, answer in pairwise(history):
        question = parse(said) if answer in (YES, NO) else None
        if question is not None:
            things = [thing for thing in things if (thing in question.things) == (answer == YES)]
    return things
