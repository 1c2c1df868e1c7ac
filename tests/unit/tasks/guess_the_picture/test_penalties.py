"""Answers that are penalized."""

from __future__ import annotations

import typing

import pytest

from rl4dialog.tasks.guess_the_picture.penalties import PENALTY, YesNoPenalty, is_penalized

# The kinds that penalize an answer; each kind includes those before it.
ANSWERS = {
    "yes": ("hard", "soft", "conservative"),
    "No": ("hard", "soft", "conservative"),
    " YES ": ("hard", "soft", "conservative"),
    "yes , it is": ("soft", "conservative"),
    "no, it is not": ("soft", "conservative"),
    "it is red, yes": ("soft", "conservative"),
    "no.": ("soft", "conservative"),
    "i think so": ("conservative",),
    "i do not think so": ("conservative",),
    "I don't know": ("conservative",),
    "i don\u2019t know": ("conservative",),
    "i can not tell": ("conservative",),
    "it cannot be seen": ("conservative",),
    "maybe": ("conservative",),
    "it looks red": ("conservative",),
    "it appears to be a dog": ("conservative",),
    "i do not understand": ("conservative",),
    "red": (),
    "it is red": (),
    "snowy": (),  # contains "no", but not as a word
    "it is snowing now": (),
    "a noble horse": (),
    "yesterday": (),
    "overlooks": (),
    "": (),
}


@pytest.mark.parametrize("text", ANSWERS)
@pytest.mark.parametrize("kind", typing.get_args(YesNoPenalty))
def test_each_kind_penalizes_its_answers(text: str, kind: YesNoPenalty) -> None:
    assert is_penalized(text, kind) == (kind in ANSWERS[text])


def test_penalty_is_that_of_the_paper() -> None:
    assert PENALTY == -2.0
