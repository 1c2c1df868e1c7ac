"""Every variant of the policy's loss improves the reward of a short run."""

import numpy as np
import pytest
from learn import W, learn, share_of_target

VARIANTS = {
    "sequence_mean": ("grpo", {"loss_aggregation": "sequence_mean"}),
    "constant": ("grpo", {"loss_aggregation": "constant", "scale_rewards": "none"}),
    "sequence ratio": ("grpo", {"ratio": "sequence"}),
    "cispo": ("grpo", {"surrogate": "cispo", "clip_range": 1.0, "clip_range_high": 4.0}),
    "clip_range_high": ("ppo", {"clip_range_high": 0.28}),
    "drop": ("grpo", {"constant_groups": "drop"}),
    "resample": ("grpo", {"constant_groups": "resample"}),
}


def assert_improved(rewards):
    assert np.mean(rewards[-3:]) > rewards[0] + 0.15


@pytest.mark.long
@pytest.mark.parametrize("name", VARIANTS)
def test_variant_improves_the_reward(name):
    algorithm, variant = VARIANTS[name]
    rewards, _ = learn(share_of_target, 0, 20, algorithm, enough=0.4, variant=variant)
    assert_improved(rewards)


@pytest.mark.long
def test_replies_that_end_are_enough_to_improve_the_reward():
    def ends_well(previous, action, current, done, meta):
        return float(action == W["w1"])

    ends = (0, W["w1"], W["w2"], W["w3"])
    rewards, _ = learn(ends_well, 0, 20, "ppo", ends=ends, enough=0.6, variant={"mask_truncated": True})
    assert_improved(rewards)
