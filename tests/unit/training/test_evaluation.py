"""Evaluating does not change the training, and records what was said."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tiny import make_env, make_gpt2, make_tokenizer, policy_class_of

from rl4dialog.core.protocols import BaseMetric
from rl4dialog.core.types import Sample
from rl4dialog.training.evaluation import Evaluation, evaluate
from rl4dialog.training.talks import give_replies


def draw() -> list[float]:
    return [random.random(), np.random.rand(), torch.rand(()).item()]


class Drawing(BaseMetric):
    """A metric that draws random numbers, as bootstraps do."""

    def compute(self, *args: Any) -> dict[str, tuple[None, float]]:
        return {"drawn": (None, sum(draw()))}


def evaluation(samples: list[Sample], *metrics: BaseMetric) -> Callable[[], Evaluation]:
    tokenizer = make_tokenizer()
    env, model = make_env(tokenizer), make_gpt2(tokenizer)
    policy = policy_class_of(model)(
        env.observation_space, env.action_space, lambda _: 1e-3, model=model, end_of_turn=env.end_of_turn
    )
    kwargs = {"do_sample": True, "max_new_tokens": 4}
    talk = functools.partial(give_replies, [[3], [4, 5], [6]], None)
    return lambda: evaluate(policy, samples, [1, 2, 1], talk, list(metrics), "val", 2, kwargs, seed=1)


def test_random_states_are_afterwards_as_before_whatever_metrics_draw() -> None:
    samples = [Sample(i, text, ["w1"]) for i, text in enumerate(["w0", "w1 w2", "w3"])]
    result = evaluation(samples, Drawing())
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    expected = draw()
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    first = result()
    assert draw() == expected
    assert [p["generated_text"] for p in result().predictions] == [p["generated_text"] for p in first.predictions]


def test_records_have_the_history_if_it_cannot_be_read_off_the_prompt() -> None:
    history = {"history": ["w1", "w2"]}
    samples = [
        Sample(0, "<|im_start|>w1<|im_end|>w2", ["w1"], history),
        Sample(1, "w1 <EOU> w2 <EOU>", ["w1"], history),
        Sample(2, "w3", ["w1"]),
    ]
    assert [record.get("history") for record in evaluation(samples)().predictions] == [["w1", "w2"], None, None]
