"""REINFORCE's baselines, and arguments of RLOO and GRPO, which a constructor checks as a config does."""

import json
from functools import partial

import collected
import numpy as np
import pytest
from grouped import make_group_algorithm
from rows import rows_of
from tiny import make_gpt2, make_tokenizer

from rl4dialog.algorithms.on_policy.critic_free import GRPO, RLOO, Reinforce
from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.advantages import RewardMeans

make = partial(collected.make, critic="none", n_envs=4)


def test_defaults_are_those_of_the_papers():
    rloo, grpo = make(RLOO), make(GRPO)
    assert (rloo.group_size, rloo.kl_in, rloo.kl_estimator) == (4, "reward", "k1")
    assert (grpo.group_size, grpo.kl_in, grpo.kl_estimator) == (4, "loss", "k3")
    assert grpo.scale_rewards == "group" and grpo.constant_groups == "keep"
    scales = [make(GRPO, scale_rewards=value).scale_rewards for value in (True, False, "batch", "none")]
    assert scales == ["group", "none", "batch", "none"]
    assert make(GRPO, constant_groups="resample", max_resampling=5).max_resampling == 5
    for trained in (rloo, grpo):
        assert trained.normalize_advantage is False
    assert make(RLOO, normalize_advantage=True).normalize_advantage is True


@pytest.mark.parametrize(
    ("algorithm", "arguments", "words"),
    [
        (GRPO, {"n_generations": 3}, r"n_generations is 3, which does not divide env\.n_envs = 4"),
        (GRPO, {"gae_lambda": 0.9}, "gae_lambda has no meaning: grpo adds up rewards without values"),
        (GRPO, {"vf_coef": 0.5}, r"vf_coef has no meaning: \w+ has no critic"),
        (GRPO, {"clip_range_vf": 0.5}, r"clip_range_vf has no meaning: \w+ has no critic"),
        (GRPO, {"max_resampling": 2}, r"max_resampling has no effect without alg\.args\.constant_groups: resample"),
        (GRPO, {"clip_range_high": 0.1}, r"clip_range_high is 0\.1, below alg\.args\.clip_range = 0\.2"),
        (GRPO, {"gamma": 0.5}, r"alg\.args\.gamma has no meaning: grpo adds up rewards .* such as ppo"),
        (GRPO, {"turn_gamma": 0.5}, r"alg\.args\.turn_gamma has no effect with alg\.args\.credit: conversation"),
        (GRPO, {"turn_gae_lambda": 1.0}, r"alg\.args\.turn_gae_lambda has no meaning: grpo adds up"),
        (Reinforce, {"kl_half_life": 0.1}, "kl_half_life has no effect with alg.args.baseline: batch"),
    ],
)
def test_constructor_and_config_refuse_the_same(algorithm, arguments, words):
    with pytest.raises(ConfigError, match=words):
        make(algorithm, **arguments)
    with pytest.raises(ConfigError, match=words):
        algorithm.check_arguments(arguments, 4)


def totals_and_advantages(trained, reset=False):
    """Reward, advantage and sample of each conversation of a rollout, and KL of the update that follows it."""
    rows = rows_of(collected.collect(trained, reset))
    for row in rows:
        assert len(set(row.advantages.tolist())) == 1
    totals, advantages = np.array([[float(row.rewards.sum()), float(row.advantages[0])] for row in rows]).T
    samples = [trained.rollout_buffer.samples[row.episode] for row in rows]
    trained.train()
    return totals, advantages, samples


@pytest.mark.parametrize("baseline", ["none", "batch", "running", "prompt"])
def test_advantage_of_reinforce_is_the_reward_minus_what_was_known_before(baseline):
    kwargs = {"kl_half_life": 2.0} if baseline in ("running", "prompt") else {}
    trained = make_group_algorithm(Reinforce, make_gpt2(make_tokenizer()), baseline=baseline, **kwargs)
    known = {}  # weighted rewards and weights by sample
    for iteration in range(3):
        moved_before = trained.rollout_buffer.means.moved
        totals, advantages, samples = totals_and_advantages(trained, reset=iteration == 0)
        of_all = known.get("all", [totals.mean(), 1.0])
        expected = np.zeros(len(totals))
        if baseline in ("running", "prompt"):
            keys = samples if baseline == "prompt" else ["all"] * len(totals)
            expected = np.array([(known.get(key, of_all)[0] / known.get(key, of_all)[1]) for key in keys])
            assert trained.rollout_buffer.logged["rollout/known_baselines"] == np.mean([key in known for key in keys])
        expected = totals - expected
        if baseline in ("batch", "prompt"):
            expected = (expected - expected.mean()) / (expected.std(ddof=1) + 1e-4)
        np.testing.assert_allclose(advantages, expected, rtol=1e-3, atol=1e-4)
        for key, total in [*zip(samples, totals, strict=True), *[("all", total) for total in totals]]:
            before = known.get(key, [0.0, 0.0])
            known[key] = [before[0] + total, before[1] + 1]
        moved = trained.rollout_buffer.means.moved - moved_before
        assert (moved > 0) == (baseline in ("running", "prompt"))
        known = {key: [number * 2 ** (-moved / 2.0) for number in pair] for key, pair in known.items()}
    state = json.loads(json.dumps(trained.rollout_buffer.state_dict()))
    again = make_group_algorithm(Reinforce, make_gpt2(make_tokenizer()), baseline=baseline)
    again.rollout_buffer.load_state_dict(state)
    assert again.rollout_buffer.means.means == trained.rollout_buffer.means.means
    assert again.rollout_buffer.means.moved == trained.rollout_buffer.means.moved


def test_means_of_zeros_and_ones_are_those_of_spo():
    means, alpha, beta = RewardMeans(half_life=0.06), 0.0, 0.0
    for reward, moved in [(1, 0.0), (0, 0.03), (0, 0.0), (1, 0.2), (1, 0.01)]:
        means.moved += moved
        rho = 2 ** (-moved / 0.06)
        alpha, beta = rho * alpha + reward, rho * beta + 1 - reward
        means.add("a", reward)
        assert means.means["a"][0] == pytest.approx(alpha / (alpha + beta))
