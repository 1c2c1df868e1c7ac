"""PPO learns something, on tasks whose best answer is known. Thresholds hold over three seeds."""

import numpy as np
import pytest
from learn import SEEDS, W, learn, share_of_target

from rl4dialog.core.protocols import Partner


@pytest.mark.long
@SEEDS
def test_ppo_learns_to_copy_the_prompt(seed):
    def copies(previous, action, current, done, meta):
        return float(action == current.prompt_ids[0])

    rewards, _ = learn(copies, seed, 60, prompts=["w0", "w1", "w2", "w3"], max_length=1, learning_rate=5e-4, enough=0.9)
    assert rewards[0] < 0.3
    assert np.mean(rewards[-3:]) > 0.9


@pytest.mark.long
@SEEDS
def test_ppo_learns_a_length(seed):
    def near_three(previous, action, current, done, meta):
        return 1.0 - abs(len(current.context_ids) - 3) / 5 if done else 0.0

    rewards, _ = learn(near_three, seed, 40, ends=(0, W["w1"], W["w2"], W["w3"], W["w4"]), enough=0.93)
    assert np.mean(rewards[-3:]) > max(0.93, rewards[0])


class Echo(Partner):
    """Repeats what the agent said."""

    def reset(self, meta_info, seed):
        pass

    def reply(self, history):
        return history[-1] or "w0"


@SEEDS
def test_ppo_learns_that_the_first_turn_decides_the_reward_of_the_second(seed):
    def bandit(previous, action, current, done, meta):
        if not done:
            return 0.0
        return float(W["w5"] in current.prompt_ids[1:])  # what was said first, paid only at the end

    env = {"max_turns": 2, "partner": Echo()}
    rewards, _ = learn(bandit, seed, 40, max_length=1, prompts=["w0"], learning_rate=5e-4, enough=0.9, **env)
    assert rewards[0] < 0.25
    assert np.mean(rewards[-3:]) > 0.9


@pytest.mark.long
@SEEDS
def test_large_kl_coefficient_keeps_the_policy_and_zero_lets_it_go(seed):
    _, free = learn(share_of_target, seed, 20)
    rewards, bound = learn(share_of_target, seed, 20, kl_coeff=5.0)
    assert free[-1] > 0.5
    assert abs(bound[-1]) < 0.1
    assert rewards[-1] < 0.5
