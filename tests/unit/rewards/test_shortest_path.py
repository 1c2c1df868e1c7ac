"""The reward of a walk, token by token."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from replies import state

from rl4dialog.core.errors import DataError
from rl4dialog.core.reward_parts import FinishedReplies
from rl4dialog.envs.observation import Observation
from rl4dialog.rewards.parts import as_parts
from rl4dialog.rewards.scoring import Scorer
from rl4dialog.rewards.shortest_path import ShortestPathReward
from rl4dialog.tasks.random_walks.graph import Graph
from rl4dialog.tasks.random_walks.walks import WalkTask
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.text.tokenizer import build_tokenizer

TASK = WalkTask(Graph({"a": [], "b": ["a"], "c": ["b", "d"], "d": ["c"]}, "a", 5), "c")
META = TASK.to_meta()


def paid(texts: list[str]) -> list[float]:
    """Rewards of the tokens after which the reply is each of these texts, of which the last one ends it."""
    reward, states = ShortestPathReward(), [state(""), *map(state, texts)]
    for number, each in enumerate(states):
        each.context_ids = list(range(number))
    return [reward(before, 1, after, after is states[-1], META) for before, after in pairwise(states)]


@pytest.mark.parametrize(
    ("texts", "rewards"),
    [
        (["b", "b a", "b a"], [-1, -1, 0]),
        (["b", "b a"], [-1, -1]),
        (["b", "b a", "b a x", "b a x"], [-1, -1, 0, 0]),
        (["d", "d c", "d c d", "d c d c", "d c d c b", "d c d c b"], [-1, -1, -1, -1, -1, 0]),
        (["d", "d c", "d c"], [-1, -1, -3]),
        (["d", "d x", "d x b", "d x b"], [-1, -4, 0, 0]),
        (["x", "x"], [-5, 0]),
        ([""], [-5]),
        # Tokens that are not whole words.
        (["", "b", "b", "b a", "b a"], [0, -1, 0, -1, 0]),
        (["b", "ba", "ba"], [-1, -4, 0]),
        (["b a"], [-2]),
    ],
)
def test_each_step_costs_one_and_the_end_the_rest(texts: list[str], rewards: list[float]) -> None:
    assert paid(texts) == rewards
    assert sum(rewards) == TASK.return_of(texts[-1])


def test_whole_text_earns_its_return() -> None:
    texts = ["b a", "d c b a", "d", "x", ""]
    replies = FinishedReplies(["from c"] * 5, texts, [[""]] * 5, [META] * 5)
    assert Scorer(as_parts(ShortestPathReward())).score(replies).total == [-2, -4, -5, -5, -5]


def test_tokens_of_an_environment_earn_the_return() -> None:
    tokenizer = build_tokenizer("builtin/tiny-gpt2", vocab_size=262, corpus=["c b a d"])
    end = EndOfTurn(tokenizer, [tokenizer.eos_token_id])
    reward = ShortestPathReward()
    for text in ("b a", "d c d c b a", "d b", "d"):
        ids = [*tokenizer(f" {text}", add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        before, total = Observation([1], [], "from c", [""], META, end), 0.0
        for number, id in enumerate(ids, start=1):
            after = before.after(id)
            total += reward(before, id, after, number == len(ids), META)
            before = after
        assert before.context_text == text and total == TASK.return_of(text)


@pytest.mark.parametrize("meta_data", [None, {}, {"walk": 1}])
def test_samples_of_other_datapools_are_an_error(meta_data: Any) -> None:
    with pytest.raises(DataError, match=r"reward 'shortest_path' needs samples .* use the datapool random_walks"):
        ShortestPathReward()(state(""), 1, state("b"), True, meta_data)
