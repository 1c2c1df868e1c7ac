"""What a partner in the main process answers is checked before it reaches the environments."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from partners import RulesService
from tiny import make_tokenizer

from rl4dialog.core.errors import GenerationError, PartnerError
from rl4dialog.envs.utterance_view import FAILED_ACTION, LEAVES_ACTION
from rl4dialog.rollouts.conversing import partner_answers

END = 25  # <EOU>
PROMPTS = {"prompt_ids": np.array([[1, 3, END], [4, 5, END]]), "prompt_mask": np.array([[0, 1, 1], [1, 1, 1]])}


def asked(broken: Any, timeout_s: float | None = None) -> tuple[list[list[int]], dict[int, str]]:
    tokenizer = make_tokenizer(marker="<EOU>")
    assert tokenizer.convert_tokens_to_ids("<EOU>") == END
    service = RulesService([{"pattern": "w1", "replies": "w2"}], "w3", None, tokenizer, 3, 4, broken)
    answers, problems = partner_answers(service, PROMPTS, timeout_s)
    return [list(answer) for answer in answers], problems


def raising(error: Exception) -> Any:
    def broken(found: list[Any]) -> Any:
        raise error

    return broken


def test_answers_are_actions_and_none_leaves() -> None:
    assert asked(None) == ([[6, END], [5, END]], {})
    assert asked(lambda found: [None, np.array([3, 4, 5, 6])]) == ([[LEAVES_ACTION], [3, 4, 5, 6]], {})


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("w1", "sequence of token ids"),
        (3, "sequence of token ids"),
        ([3.0, END], "sequence of token ids"),
        ([], "token that ends it"),
        ([-1], "ids 0 to 25"),
        ([3, 26], "ids 0 to 25"),
        ([3, 4], "ends with its end of turn, or with token 4"),
        ([3, END, 4], "ends with its end of turn, or with token 4"),
        ([3, 4, 5, 6, 7], "ends with its end of turn, or with token 4"),
        ([10**30, END], "ids 0 to 25"),
    ],
)
def test_answer_that_is_no_utterance_fails_alone(answer: Any, message: str) -> None:
    actions, problems = asked(lambda found: [[3, END], answer])
    assert actions == [[3, END], [FAILED_ACTION]] and list(problems) == [1] and message in problems[1]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (raising(ZeroDivisionError("gone")), "ZeroDivisionError: gone"),
        (raising(PartnerError("no more")), "no more"),
        (lambda found: found[:1], "not a list of 2 answers"),
        (lambda found: None, "not a list of 2 answers"),
        (lambda found: "ab", "not a list of 2 answers"),
        (lambda found: time.sleep(60), "had not returned after 0.1 s; reward_fn.timeout_s"),
    ],
)
def test_call_that_fails_fails_for_all(broken: Any, message: str) -> None:
    actions, problems = asked(broken, timeout_s=0.1)
    assert actions == [[FAILED_ACTION]] * 2 and sorted(problems) == [0, 1] and message in problems[0]


def test_other_errors_of_the_toolkit_are_not_the_partners() -> None:
    with pytest.raises(GenerationError, match="engine"):
        asked(raising(GenerationError("the engine is down")))
