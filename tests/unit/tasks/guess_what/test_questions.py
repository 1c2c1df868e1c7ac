"""The words of the game."""

from __future__ import annotations

import re

import pytest

from rl4dialog.tasks.guess_what.questions import (
    GUESSES,
    NO,
    NOT_UNDERSTOOD,
    OPENING,
    QUESTIONS,
    YES,
    Question,
    consistent_things,
    parse,
    win,
    with_article,
)
from rl4dialog.tasks.guess_what.things import PROPERTIES, THINGS

ALL = [*QUESTIONS, *GUESSES.values()]


@pytest.mark.parametrize("question", ALL, ids=lambda question: question.words)
def test_every_question_is_read_back(question: Question) -> None:
    assert parse(question.text) is question
    assert question.text == f"{question.words} ?"


def test_there_is_a_question_for_every_property_and_a_guess_for_every_thing() -> None:
    assert {question.words: question.things for question in QUESTIONS} == PROPERTIES
    assert {thing: question.things for thing, question in GUESSES.items()} == {t: {t} for t in THINGS}
    assert [question.is_guess for question in ALL] == [False] * 12 + [True] * 40
    assert len({question.words for question in ALL}) == len(ALL)


@pytest.mark.parametrize(
    "text", ["Is it a DOG?", "is it a dog", "  is  it a dog ?", "is it a dog ??", "is it a dog? ", "is it\ta dog\n?\n"]
)
def test_case_spaces_and_question_mark_do_not_matter(text: str) -> None:
    assert parse(text) is GUESSES["dog"]


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "?", "dog", "is it an dog ?", "is it a cat ?", "is it a dog ? is it a bee ?", "is it a dog ."),
        *("is ? it a dog", "isitadog ?", "i say is it a dog ?", "is it a dog \ud800 ?", "<EOU>", "?" * 1000),
        *(YES, OPENING),
    ],
)
def test_anything_else_is_not_a_question(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize("thing, said", [("dog", "a dog"), ("apple", "an apple"), ("umbrella", "an umbrella")])
def test_articles(thing: str, said: str) -> None:
    assert with_article(thing) == said
    assert GUESSES[thing].text == f"is it {said} ?"
    assert win(thing) == f"yes , it is {said} !"


def test_vocabulary_is_small_and_in_lower_case() -> None:
    texts = [OPENING, YES, NO, NOT_UNDERSTOOD, *(question.text for question in ALL), *(win(thing) for thing in THINGS)]
    words = {word for text in texts for word in text.split(" ")}
    assert all(re.fullmatch(r"[a-z]+|[.,!?]", word) for word in words)
    assert len(words) <= 90


def test_consistent_things_agree_with_all_answers() -> None:
    assert consistent_things([OPENING]) == list(THINGS)
    history = [OPENING, "is it alive ?", YES, "can it fly ?", YES, "is it smaller than a hand ?", NO]
    assert consistent_things(history) == ["duck", "eagle"]
    assert consistent_things([*history, "is it a duck ?", NO]) == ["eagle"]
    assert consistent_things([*history, "is it a duck ?", NO, "is it alive ?", NO]) == []


def test_consistent_things_ignore_what_was_not_understood() -> None:
    assert consistent_things([OPENING, "is it nice ?", YES, "can it fly ?", NOT_UNDERSTOOD]) == list(THINGS)
