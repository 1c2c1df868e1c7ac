"""What is constant but for rounding is no signal: no step is made, and the log says so."""

import copy

import numpy as np
import pytest
import torch
from collected import collect, make
from covering import covering
from learn import ALGORITHMS
from rows import rows_of
from tiny import make_gpt2, make_t5, make_tokenizer, n_words_reward

from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.rollouts.collector import RolloutCollector
from rl4dialog.rollouts.task_rewards import RewardNormalizer

NAMES = ("ppo", "nlpo", "a2c", "trpo", "rloo", "grpo", "reinforce")
NOISE = {"fp32": 3e-7, "bf16": 5e-3}
"""Of the KL between equal models, per token and in nats."""


def half(previous, action, current, done, meta):
    return 0.7 * done


def nothing(previous, action, current, done, meta):
    return 0.0


def build(algorithm, reward=nothing, make_model=make_gpt2, precision="fp32", **kwargs):
    """An algorithm whose reference agrees with the policy, but for rounding."""
    cls, settings = ALGORITHMS[algorithm]
    critic = "shared" if cls.needs_critic and algorithm != "trpo" else "separate" if cls.needs_critic else "none"
    settings = {**settings, "learning_rate": 1e-2, "ent_coef": 0.0, **kwargs}
    if algorithm == "trpo":
        del settings["ent_coef"]
    if algorithm != "a2c":
        settings.setdefault("batch_size", 24)
    parts = {"reward_parts": [RewardPart("r", 1.0, reward)]}
    model = make_model(make_tokenizer())
    trained = make(cls, critic, 8, parts, model, 8, {"precision": precision}, 0.3, **settings)
    true_log_probs, random = trained.policy.reference_log_probs, torch.Generator().manual_seed(1)

    def with_rounding(batch):
        noise = NOISE[precision] * torch.randn(batch.response_mask.shape, generator=random)
        return true_log_probs(batch) + noise * batch.response_mask

    trained.policy.reference_log_probs = with_rounding
    return trained


def logged_by_rollout(trained):
    collect(trained)
    return trained.logger.name_to_value


def largest_step(trained):
    """How far an update moves any weight."""
    before = copy.deepcopy(trained.policy.state_dict())
    trained.train()
    after = trained.policy.state_dict()
    return max(float((after[name] - weight).abs().max()) for name, weight in before.items() if name != "_n_iterations")


@pytest.mark.parametrize(("algorithm", "make_model", "precision"), covering(NAMES, (make_gpt2, make_t5), NOISE))
def test_constant_rewards_and_a_kl_of_rounding_make_no_step(algorithm, make_model, precision):
    trained = build(algorithm, make_model=make_model, precision=precision, normalize_rewards=True)
    logged = logged_by_rollout(trained)
    assert 0 < abs(logged["rollout/kl"]) < NOISE[precision], "the log has it as it was measured"
    assert logged["rollout/kl_is_rounding"] == logged["rollout/constant_rewards"] == 1
    assert all(not u.returns.any() and not u.advantages.any() for u in rows_of(trained.rollout_buffer))
    assert largest_step(trained) == 0
    assert trained.logger.name_to_value["train/constant_advantages"] == 1


@pytest.mark.parametrize("algorithm", NAMES)
def test_the_same_reward_for_all_replies_moves_no_policy(algorithm):
    """The critic still learns what they earn."""
    settings = {"gamma": 1.0, "gae_lambda": 1.0} if ALGORITHMS[algorithm][0].needs_critic else {}
    if algorithm in ("ppo", "nlpo", "a2c"):
        settings["vf_coef"] = 0.0  # by itself: the critic shares the policy's trunk
    trained = build(algorithm, half, **settings)
    logged = logged_by_rollout(trained)
    assert logged["rollout/task_reward"] == pytest.approx(0.7) and logged["rollout/constant_rewards"] == 0
    actor = [parameter.detach().clone() for parameter in trained.policy.actor_parameters()]
    step = largest_step(trained)
    assert all(torch.equal(*pair) for pair in zip(actor, trained.policy.actor_parameters(), strict=True))
    assert trained.logger.name_to_value["train/constant_advantages"] == 1
    assert (step > 0) == (algorithm == "trpo")


@pytest.mark.parametrize("baseline", ["running", "prompt"])
def test_the_same_reward_in_all_iterations_moves_no_policy(baseline):
    trained = build("reinforce", half, baseline=baseline)
    for reset in (True, False, False):
        collect(trained, reset)
        assert largest_step(trained) == 0


@pytest.mark.parametrize(("algorithm", "normalize_rewards"), covering(NAMES, (True, False)))
def test_rewards_that_differ_still_teach(algorithm, normalize_rewards):
    trained = build(algorithm, n_words_reward, normalize_rewards=normalize_rewards)
    logged = logged_by_rollout(trained)
    assert logged["rollout/kl_is_rounding"] == 1 and logged["rollout/constant_rewards"] == 0
    assert largest_step(trained) > 1e-4
    assert trained.logger.name_to_value["train/constant_advantages"] < 1


def test_a_kl_that_is_none_of_rounding_is_paid_for_though_rewards_are_constant():
    trained = build("ppo", normalize_rewards=True)
    with torch.no_grad():
        for parameter in trained.policy.actor_parameters():
            parameter *= 1.01
    logged = logged_by_rollout(trained)
    assert logged["rollout/kl_is_rounding"] == logged["rollout/constant_rewards"] == 0
    assert np.concatenate([u.rewards for u in rows_of(trained.rollout_buffer)]).std() == pytest.approx(1, abs=1e-3)
    assert largest_step(trained) > 1e-4


def test_rewards_that_differ_by_little_are_normalized_and_those_by_rounding_are_not():
    for mode in ("running", "batch"):
        for gap, spread in ((1e-3, 1.0), (2e-5, 0.0)):
            scores = np.float32(1000) + np.float32(gap) * np.arange(2, dtype=np.float32)
            trained = build("ppo", nothing)
            trained.collector = RolloutCollector(normalizer=RewardNormalizer(mode))
            collect(trained)
            replies = trained.rollout_buffer.replies[torch.arange(2)]
            replies.task_rewards = torch.zeros(replies.response_mask.shape)
            replies.task_rewards[range(2), replies.response_mask.sum(dim=1) - 1] = torch.from_numpy(scores)
            RewardNormalizer(mode).normalize(replies)
            totals = [row.sum() for row in replies.per_row("task_rewards")]
            assert np.std(totals) == pytest.approx(spread, abs=1e-3), (mode, gap)
