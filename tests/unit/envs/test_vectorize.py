from __future__ import annotations

import sys
import threading
from typing import Any

import cloudpickle
import numpy as np
import pytest
from tiny import make_env, make_env_kwargs, make_samples, make_tokenizer

from rl4dialog.core.errors import RewardError
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.envs.vectorize import make_vec_env

# As a file of a user's: workers would import torch with this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


WEIGHTED = {"samples": [(sample, 1.0 + i) for i, sample in enumerate(make_samples())], "priority_scale": 2.0}


@pytest.mark.parametrize("overrides", [{}, WEIGHTED], ids=["alike", "weighted"])
@pytest.mark.parametrize("kind", ["dummy", "blocks"])
def test_vectorized_envs_have_different_seeds_and_give_the_same_episodes(kind: str, overrides: dict[str, Any]) -> None:
    vec_env = make_vec_env(make_env_kwargs(**overrides), 3, kind)
    alone = [make_env(make_tokenizer(), **overrides) for _ in range(3)]
    try:
        vec_env.seed(5)
        prompts = vec_env.reset()["prompt_ids"]
        for i, env in enumerate(alone):
            np.testing.assert_array_equal(prompts[i], env.reset(seed=5 + i)[0]["prompt_ids"])
        for _ in range(8):
            prompts = vec_env.step(np.array([[0, -1, -1, -1, -1]] * 3))[0]["prompt_ids"]
            np.testing.assert_array_equal(prompts, [env.reset()[0]["prompt_ids"] for env in alone])
    finally:
        vec_env.close()


class Remembers:
    """Pays what it has seen so far."""

    def __init__(self) -> None:
        self.n_calls = 0

    def __call__(self, previous: Any, action: int, current: Any, done: bool, meta: dict[str, Any]) -> float:
        self.n_calls += 1
        meta["n"] = meta["n"] + 100
        return float(self.n_calls)


@pytest.mark.parametrize(("kind", "n_workers"), [("dummy", None), ("blocks", 1), ("blocks", 3)])
def test_reward_that_remembers_is_each_environments_own(kind: str, n_workers: int | None) -> None:
    env = make_vec_env(make_env_kwargs(reward_parts=[RewardPart("mine", 1.0, Remembers())]), 3, kind, n_workers)
    try:
        env.seed(0)
        env.reset()
        for total in (1 + 2, 3 + 4):
            _, rewards, _, infos = env.step(np.array([[5, 0, -1, -1, -1]] * 3))
            assert rewards.tolist() == [total] * 3
            assert all(200 <= info["meta_info"]["n"] < 300 for info in infos), "a sample is fresh in each episode"
    finally:
        env.close()


def test_reward_that_cannot_be_copied_says_how_to_share_it() -> None:
    class Locked(Remembers):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    class Shared(Locked):
        def __deepcopy__(self, memo: Any) -> Any:
            return self

    with pytest.raises(RewardError, match=r"'mine' cannot be copied.*__deepcopy__"):
        make_vec_env(make_env_kwargs(reward_parts=[RewardPart("mine", 1.0, Locked())]), 2, "dummy")
    make_vec_env(make_env_kwargs(reward_parts=[RewardPart("mine", 1.0, Shared())]), 2, "dummy").close()


@pytest.mark.parametrize("kind", ["dummy", "blocks"])
def test_tokenizer_and_samples_are_shared_by_the_environments_of_a_process(kind: str) -> None:
    class Holder(Remembers):
        def __init__(self, tokenizer: Any) -> None:
            super().__init__()
            self.tokenizer = tokenizer

    kwargs = make_env_kwargs()
    kwargs["reward_parts"] = [RewardPart("mine", 1.0, Holder(kwargs["end_of_turn"].tokenizer))]
    env = make_vec_env(kwargs, 3, kind, 1)
    try:
        for path in ("tokenizer", "_samples"):
            assert len({id(getattr(e, path)) for e in env.get_attr("env")}) == 1
        for inner in env.get_attr("env"):
            assert inner.reward_parts[0].function.tokenizer is inner.tokenizer
    finally:
        env.close()
