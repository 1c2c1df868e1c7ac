"""What is constant but for rounding is no signal: no step is made, and the log says so."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from covering import covering
from learn import ALGORITHMS
from rows import rows_of
from stable_baselines3.common.vec_env import DummyVecEnv
from tiny import make_env, make_gpt2, make_t5, make_tokenizer, maskable_class_of, n_words_reward, policy_class_of

from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.rollouts.collector import RolloutCollector
from rl4dialog.rollouts.kl_controllers import FixedKLController
from rl4dialog.rollouts.task_rewards import RewardNormalizer

NAMES = ("ppo", "nlpo", "a2c", "trpo", "rloo", "grpo")
NOISE = {"fp32": 3e-7, "bf16": 5e-3}
"""Of the KL between equal models, per token and in nats."""


def half(previous: Any, action: int, current: Any, done: bool, meta: Any) -> float:
    return 0.7 * done


def nothing(previous: Any, action: int, current: Any, done: bool, meta: Any) -> float:
    return 0.0


def build(algorithm: str, reward: Any = nothing, make_model: Any = make_gpt2, precision: str = "fp32", **kwargs: Any):
    """An algorithm whose reference agrees with the policy, but for rounding."""
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    cls, settings = ALGORITHMS[algorithm]
    policy_kwargs = {
        "model": model,
        "end_of_turn": make_env(tokenizer).end_of_turn,
        "precision": precision,
        "critic": "shared" if cls.needs_critic and algorithm != "trpo" else "separate" if cls.needs_critic else "none",
    }
    settings = {**settings, "ent_coef": 0.0, **kwargs}
    if algorithm == "trpo":
        del settings["ent_coef"]
    if algorithm != "a2c":
        settings.setdefault("batch_size", 24)
    trained = cls(
        (maskable_class_of if cls.maskable else policy_class_of)(model),
        DummyVecEnv([lambda: UtteranceView(make_env(tokenizer, reward_parts=[RewardPart("r", 1.0, reward)]))] * 8),
        n_steps=8,
        learning_rate=1e-2,
        policy_kwargs=policy_kwargs,
        kl_controller=FixedKLController(0.3),
        seed=0,
        device="cpu",
        **settings,
    )
    true_log_probs, random = trained.policy.reference_log_probs, torch.Generator().manual_seed(1)

    def with_rounding(batch: Any) -> torch.Tensor:
        noise = NOISE[precision] * torch.randn(batch.response_mask.shape, generator=random)
        return true_log_probs(batch) + noise * batch.response_mask

    trained.policy.reference_log_probs = with_rounding
    return trained


def collect(trained: Any) -> dict[str, float]:
    _, callback = trained._setup_learn(10**6)
    trained.collect_rollouts(trained.env, callback, trained.rollout_buffer, trained.n_steps)
    return trained.logger.name_to_value


def largest_step(trained: Any) -> float:
    """How far an update moves any weight."""
    before = copy.deepcopy(trained.policy.state_dict())
    trained.train()
    after = trained.policy.state_dict()
    return max(float((after[name] - weight).abs().max()) for name, weight in before.items() if name != "_n_iterations")


@pytest.mark.parametrize(("algorithm", "make_model", "precision"), covering(NAMES, (make_gpt2, make_t5), NOISE))
def test_constant_rewards_and_a_kl_of_rounding_make_no_step(algorithm: str, make_model: Any, precision: str) -> None:
    trained = build(algorithm, make_model=make_model, precision=precision, normalize_rewards=True)
    logged = collect(trained)
    assert 0 < abs(logged["rollout/kl"]) < NOISE[precision], "the log has it as it was measured"
    assert logged["rollout/kl_is_rounding"] == logged["rollout/constant_rewards"] == 1
    assert all(not u.returns.any() and not u.advantages.any() for u in rows_of(trained.rollout_buffer))
    assert largest_step(trained) == 0
    assert trained.logger.name_to_value["train/constant_advantages"] == 1


@pytest.mark.parametrize("algorithm", NAMES)
def test_the_same_reward_for_all_replies_moves_no_policy(algorithm: str) -> None:
    """The critic still learns what they earn."""
    settings: dict[str, Any] = {"gamma": 1.0, "gae_lambda": 1.0} if algorithm not in ("rloo", "grpo") else {}
    if algorithm in ("ppo", "nlpo", "a2c"):
        settings["vf_coef"] = 0.0  # by itself: the critic shares the policy's trunk
    trained = build(algorithm, half, **settings)
    logged = collect(trained)
    assert logged["rollout/task_reward"] == pytest.approx(0.7) and logged["rollout/constant_rewards"] == 0
    actor = [parameter.detach().clone() for parameter in trained.policy.actor_parameters()]
    step = largest_step(trained)
    assert all(torch.equal(*pair) for pair in zip(actor, trained.policy.actor_parameters(), strict=True))
    assert trained.logger.name_to_value["train/constant_advantages"] == 1
    assert (step > 0) == (algorithm == "trpo")


@pytest.mark.parametrize(("algorithm", "normalize_rewards"), covering(NAMES, (True, False)))
def test_rewards_that_differ_still_teach(algorithm: str, normalize_rewards: bool) -> None:
    trained = build(algorithm, n_words_reward, normalize_rewards=normalize_rewards)
    logged = collect(trained)
    assert logged["rollout/kl_is_rounding"] == 1 and logged["rollout/constant_rewards"] == 0
    assert largest_step(trained) > 1e-4
    assert trained.logger.name_to_value["train/constant_advantages"] < 1


def test_a_kl_that_is_none_of_rounding_is_paid_for_though_rewards_are_constant() -> None:
    trained = build("ppo", normalize_rewards=True)
    with torch.no_grad():
        for parameter in trained.policy.actor_parameters():
            parameter *= 1.01
    logged = collect(trained)
    assert logged["rollout/kl_is_rounding"] == logged["rollout/constant_rewards"] == 0
    assert np.concatenate([u.rewards for u in rows_of(trained.rollout_buffer)]).std() == pytest.approx(1, abs=1e-3)
    assert largest_step(trained) > 1e-4


def test_rewards_that_differ_by_little_are_normalized_and_those_by_rounding_are_not() -> None:
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
