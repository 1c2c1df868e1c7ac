"""Rewards of a config, and of evaluation replies."""

import math
import random
import time
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from runs import make_config

from rl4dialog.core.async_calls import AsyncCalls
from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError, RewardError
from rl4dialog.core.protocols import BatchedRewardFunction, RewardFunction
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.core.types import Sample
from rl4dialog.rollouts.talk import talk_of_one_reply
from rl4dialog.scores.composite import Linear
from rl4dialog.scores.overlap import ChrfMetric
from rl4dialog.scores.parts import AsyncReward, FunctionReward
from rl4dialog.scores.scoring import Scorer
from rl4dialog.training.building.rewards import RewardColumns, build_metrics, build_scorer, mean_reward
from rl4dialog.training.evaluation import compute_metrics

TOOLKIT = {"tokenizer": None, "async_calls": AsyncCalls()}


@pytest.mark.parametrize(
    ("id", "args", "max_turns", "is_refused"),
    [
        ("rouge", {}, 2, True),
        ("rouge", {}, 1, False),
        ("chrf", {}, 3, True),
        ("intent_accuracy", {"synonyms": False}, 2, True),
        ("intent_accuracy", {"synonyms": False}, 1, False),
    ],
)
def test_reward_that_would_compare_later_replies_with_no_reference_is_refused(
    tmp_path, id, args, max_turns, is_refused
):
    turns = {"max_turns": max_turns, "partner_replies": ["yes"] * max_turns}
    settings = {f"env__args__{key}": each for key, each in turns.items()}
    config = make_config(tmp_path, reward_fn={"id": id, "args": args}, **settings)
    message = rf"reward '{id}' compares replies with references.*env\.args\.partner\.id: scripted gives none"
    with pytest.raises(ConfigError, match=message) if is_refused else nullcontext():
        build_scorer(parse_config(config, "config"), {**TOOLKIT, "classifier": object()})


SAMPLES = [Sample(i, f"prompt {i}", ["good"], {"gold": 0.5 * i}) for i in range(3)]
REPLIES = ["good", "", "very good"]


class AtTheEnd(RewardFunction):
    """Token by token, with something to say at the end alone."""

    def __call__(self, prev_observation, action, current_observation, done, meta_info):
        return meta_info["gold"] if done else 0.0


class Batched(BatchedRewardFunction):
    """Draws numbers, which must not change the training."""

    def __call__(self, prompt_texts, gen_texts, ref_texts, dones, meta_infos=None):
        random.random(), np.random.rand(), torch.rand(1)
        return [float(len(text)) for text in gen_texts]


async def n_words(prompt_text, gen_text, ref_texts, meta_info):
    return float(len(gen_text.split()))


def is_said(prompt_text, gen_text, ref_texts, meta_info):
    return 1 / len(gen_text) * len(gen_text)


def test_all_kinds_of_rewards_are_columns_and_their_weighted_sum():
    parts = [
        RewardPart("token", Linear(0.0, 2.0, 4), AtTheEnd()),
        RewardPart("batch", 0.1, Batched(), clip=(0.0, 5.0), in_main_process=True),
        RewardPart("async", 1.0, AsyncReward(n_words, per_reply=True), in_main_process=True),
    ]
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    columns = RewardColumns(Scorer(parts), iteration=100).score(SAMPLES, REPLIES)
    assert states == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    assert columns["reward/token"] == [0.0, 0.5, 1.0]
    assert columns["reward/batch"] == [4.0, 0.0, 9.0]
    assert columns["reward/async"] == [1.0, 0.0, 2.0]
    assert columns["reward"] == pytest.approx([0.4 + 1, 1.0, 2.0 + 0.5 + 2])
    assert mean_reward(columns) == {"reward": pytest.approx((1.4 + 1.0 + 4.5) / 3)}


@pytest.mark.parametrize(
    ("on_error", "n_missing", "message"),
    [
        ("mask", 1, "the reward failed for 1 of the 3 samples of this evaluation"),
        ("raise", 3, "this evaluation has no rewards: reward 'said' failed on sample 1: ZeroDivisionError"),
    ],
)
def test_reward_that_fails_is_a_warning(on_error, n_missing, message, caplog):
    parts = [RewardPart("said", 1.0, FunctionReward(is_said))]
    rewards = RewardColumns(Scorer(parts, on_error))
    columns = rewards.score(SAMPLES, REPLIES)
    assert (rewards.error is None) == (on_error == "mask")
    for name in ("reward", "reward/said"):
        assert sum(map(math.isnan, columns[name])) == n_missing
    assert message in caplog.text
    assert mean_reward(columns) == ({"reward": 1.0} if on_error == "mask" else {})


def test_reward_that_must_work_is_an_error_unless_failures_are_masked():
    parts = [RewardPart("said", 1.0, FunctionReward(is_said))]
    with pytest.raises(RewardError, match="ZeroDivisionError"):
        RewardColumns(Scorer(parts)).score(SAMPLES, REPLIES, must_work=True)
    assert math.isnan(RewardColumns(Scorer(parts, "mask")).score(SAMPLES, REPLIES, must_work=True)["reward"][1])
    slow = [RewardPart("slow", 1.0, FunctionReward(lambda *_: time.sleep(600)))]
    with pytest.raises(RewardError, match=r"'slow' failed on sample 0: TimeoutError: no result after 0\.05 s"):
        RewardColumns(Scorer(slow, timeout_s=0.05)).score(SAMPLES, REPLIES, must_work=True)


def test_metrics_of_texts_read_what_is_appended_to_replies_and_references(tmp_path, caplog):
    def built(id):
        metrics = [{"id": id, "append_to_texts": "<EOU>"}]
        return build_metrics(parse_config(make_config(tmp_path, train_evaluation__metrics=metrics), "config"), TOOLKIT)

    talks = [talk_of_one_reply(sample, reply) for sample, reply in zip(SAMPLES, REPLIES, strict=True)]
    prompts = [sample.prompt_or_input_text for sample in SAMPLES]
    expected = ChrfMetric().compute(prompts, [f"{reply}<EOU>" for reply in REPLIES], [["good<EOU>"]] * 3)
    assert compute_metrics(built("chrf"), talks, "test", None) == expected and not caplog.messages
    assert compute_metrics([ChrfMetric(), *built("chrf")], talks, "test", None) == expected
    assert caplog.messages == ["two metrics have the key lexical/chrf: the numbers are those of the last one"]
    assert expected != ChrfMetric().compute(prompts, REPLIES, [["good"]] * 3)
    with pytest.raises(ConfigError, match=r"metrics\[0\]\.append_to_texts: conversation measures whole conversations"):
        built("conversation")
