"""Every algorithm learns with every kind of model. Thresholds hold over three seeds."""

import itertools

import numpy as np
import pytest
from learn import ALGORITHMS, ARCHITECTURES, SEEDS, learn, share_of_target

from rl4dialog.scores.rules import IncreasingNumbersReward

IN_SHORT = [("gpt2", algorithm) for algorithm in ("ppo", "rloo")]
pytestmark = [
    SEEDS,
    pytest.mark.parametrize(
        ("architecture", "algorithm"),
        [
            pytest.param(*each, marks=() if each in IN_SHORT else pytest.mark.long)
            for each in itertools.product(ARCHITECTURES, ALGORITHMS)
        ],
    ),
]

# A2C takes one step where the others take many.
N_ITERS = {"ppo": 12, "nlpo": 12, "a2c": 60, "trpo": 25, "rloo": 25, "grpo": 28, "reinforce": 25}


def test_emits_a_token(algorithm, architecture, seed):
    rewards, _ = learn(share_of_target, seed, N_ITERS[algorithm], algorithm, architecture, enough=0.8)
    assert rewards[0] < 0.4
    assert np.mean(rewards[-3:]) > 0.8


@pytest.mark.long
def test_writes_increasing_numbers(algorithm, architecture, seed):
    reward = IncreasingNumbersReward(min_tokens=5)
    rewards, _ = learn(reward, seed, 2 * N_ITERS[algorithm], algorithm, architecture, enough=0.45)
    assert rewards[0] < 0.25
    assert np.mean(rewards[-3:]) > 0.45
