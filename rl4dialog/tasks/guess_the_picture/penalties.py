"""Answers for which the question is penalized, so that the agent does not only ask yes/no questions.

The kinds and the penalty are those of ILQL's visual dialogue task (Snell et al. 2022, arXiv 2206.11871, and its
published code). There, ``soft`` and ``conservative`` also find their words within other words, such as "no" in "snowy";
here, they find whole words only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

YesNoPenalty = Literal["none", "soft", "hard", "conservative"]

PENALTY = -2.0
"""Added to the reward of a question with a penalized answer."""

_YES_OR_NO = ("yes", "no")
_VAGUE = (
    *("not", "cannot", "can't", "don't", "could", "maybe", "fairly", "okay"),
    *("looks", "appears", "tell", "think so", "mostly just"),
)


def _finder(*expressions: str) -> Callable[[str], bool]:
    pattern = re.compile(rf"(?<![\w'])(?:{'|'.join(map(re.escape, expressions))})(?![\w'])")
    return lambda answer: pattern.search(answer) is not None


_RULES: dict[YesNoPenalty, Callable[[str], bool]] = {
    "none": lambda answer: False,
    "hard": lambda answer: answer in _YES_OR_NO,
    "soft": _finder(*_YES_OR_NO),
    "conservative": _finder(*_YES_OR_NO, *_VAGUE),
}


def is_penalized(answer: str, kind: YesNoPenalty) -> bool:
    """Whether an answer is penalized; case does not matter.

    Args:
        answer: The answer.
        kind: ``hard`` for answers that are exactly "yes" or "no", ``soft`` for those with one of these words,
            ``conservative`` also for those with a word of negation or doubt, such as "not" or "maybe"; ``none`` for no
            answer.
    """
    return _RULES[kind](answer.lower().strip().replace("\u2019", "'"))
