"""PPO learns something, on tasks whose best answer is known. Thresholds hold over three seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.vec_env import DummyVecEnv
from tiny import make_gpt2, make_tokenizer

from rl4dialog.algorithms.on_policy.ppo import PPO
from rl4dialog.core.protocols import Partner
from rl4dialog.core.types import RewardPart, Sample
from rl4dialog.envs.text_generation import TextGenEnv
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.policies.causal import CausalLMActorCriticPolicy
from rl4dialog.rewards.increasing_numbers import IncreasingNumbersReward
from rl4dialog.rollouts.kl_controllers import FixedKLController
from rl4dialog.text.end_of_turn import EndOfTurn

pytestmark = pytest.mark.learning
SEEDS = pytest.mark.parametrize("seed", [0, 1, 2])
TOKENIZER = make_tokenizer()
W = {f"w{i}": 3 + i for i in range(12)}


def train(
    reward: Any,
    seed: int,
    n_iters: int,
    prompts: list[str] | None = None,
    max_length: int = 5,
    kl_coef: float = 0.0,
    ends: tuple[int, ...] = (0,),
    learning_rate: float = 2e-3,
    **env_kwargs: Any,
) -> tuple[list[float], list[float]]:
    """Mean reward and KL per iteration."""
    samples = [Sample(i, text, [""]) for i, text in enumerate(prompts or ["w0", "w1 w2", "w3"])]
    end_of_turn = EndOfTurn(TOKENIZER, ends)

    def make() -> UtteranceView:
        return UtteranceView(
            TextGenEnv(
                end_of_turn, samples, [RewardPart("r", 1.0, reward)], 20, max_length, len(TOKENIZER), **env_kwargs
            )
        )

    algorithm = PPO(
        CausalLMActorCriticPolicy,
        DummyVecEnv([make for _ in range(32)]),
        n_steps=max(max_length, 4),
        batch_size=8 * max(max_length, 4),
        n_epochs=4,
        learning_rate=learning_rate,
        gamma=1.0,
        ent_coef=0.01,
        policy_kwargs={"model": make_gpt2(TOKENIZER, seed, initializer_range=0.05), "end_of_turn": end_of_turn},
        kl_controller=FixedKLController(kl_coef),
        seed=seed,
        device="cpu",
    )
    rewards, kls = [], []
    _, callback = algorithm._setup_learn(10**9)
    for _ in range(n_iters):
        algorithm.collect_rollouts(algorithm.env, callback, algorithm.rollout_buffer, algorithm.n_steps)
        rewards.append(algorithm.logger.name_to_value["rollout/task_reward"])
        kls.append(algorithm.logger.name_to_value["rollout/kl"])
        algorithm.train()
    return rewards, kls


def share_of_target(previous: Any, action: int, current: Any, done: bool, meta: Any) -> float:
    return (action == W["w7"]) / 5


@SEEDS
def test_ppo_learns_to_emit_a_token(seed: int) -> None:
    rewards, _ = train(share_of_target, seed, 30)
    assert rewards[0] < 0.2
    assert np.mean(rewards[-3:]) > 0.9


@SEEDS
def test_ppo_learns_to_copy_the_prompt(seed: int) -> None:
    def copies(previous: Any, action: int, current: Any, done: bool, meta: Any) -> float:
        return float(action == current.prompt_ids[0])

    rewards, _ = train(copies, seed, 60, prompts=["w0", "w1", "w2", "w3"], max_length=1, learning_rate=5e-4)
    assert rewards[0] < 0.3
    assert np.mean(rewards[-5:]) > 0.9


@SEEDS
def test_ppo_learns_a_length(seed: int) -> None:
    def near_three(previous: Any, action: int, current: Any, done: bool, meta: Any) -> float:
        return 1.0 - abs(len(current.context_ids) - 3) / 5 if done else 0.0

    rewards, _ = train(near_three, seed, 40, ends=(0, W["w1"], W["w2"], W["w3"], W["w4"]))
    assert np.mean(rewards[-3:]) > max(0.93, rewards[0])


@SEEDS
def test_ppo_learns_increasing_numbers(seed: int) -> None:
    rewards, _ = train(IncreasingNumbersReward(min_tokens=5), seed, 100)
    assert rewards[0] < 0.3
    assert np.mean(rewards[-5:]) > 0.8


class Echo(Partner):
    """Repeats what the agent said."""

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        pass

    def reply(self, history: list[str]) -> str | None:
        return history[-1] or "w0"


@SEEDS
def test_ppo_learns_that_the_first_turn_decides_the_reward_of_the_second(seed: int) -> None:
    def bandit(previous: Any, action: int, current: Any, done: bool, meta: Any) -> float:
        if not done:
            return 0.0
        return float(W["w5"] in current.prompt_ids[1:])  # what was said first, paid only at the end

    rewards, _ = train(bandit, seed, 40, max_length=1, prompts=["w0"], learning_rate=5e-4, max_turns=2, partner=Echo())
    assert rewards[0] < 0.25
    assert np.mean(rewards[-5:]) > 0.9


@SEEDS
def test_large_kl_coefficient_keeps_the_policy_and_zero_lets_it_go(seed: int) -> None:
    _, free = train(share_of_target, seed, 20)
    rewards, bound = train(share_of_target, seed, 20, kl_coef=5.0)
    assert free[-1] > 0.5
    assert abs(bound[-1]) < 0.1
    assert rewards[-1] < 0.5
