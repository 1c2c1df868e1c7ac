"""Training loops for tests of learning: any algorithm, any architecture, a reward per token, no trainer around it."""

from __future__ import annotations

from typing import Any

import pytest
from stable_baselines3.common.vec_env import DummyVecEnv
from tiny import make_gpt2, make_t5, make_tokenizer, maskable_class_of, policy_class_of

from rl4dialog.algorithms.on_policy.critic_free import GRPO, RLOO
from rl4dialog.algorithms.on_policy.ppo import A2C, NLPO, PPO
from rl4dialog.algorithms.on_policy.trpo import TRPO
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.core.types import Sample
from rl4dialog.envs.text_generation import TextGenEnv
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.rollouts.kl_controllers import FixedKLController
from rl4dialog.text.end_of_turn import EndOfTurn

TOKENIZER = make_tokenizer()
W = {f"w{i}": 3 + i for i in range(12)}
"""Ids of the words."""

SEEDS = pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])

_CLIPPED = {"n_epochs": 4, "ent_coef": 0.01}
ALGORITHMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ppo": (PPO, {**_CLIPPED, "gamma": 1.0}),
    "nlpo": (NLPO, {**_CLIPPED, "gamma": 1.0}),
    "a2c": (A2C, {"gamma": 1.0, "ent_coef": 0.01, "use_rms_prop": False, "normalize_advantage": True}),
    "trpo": (TRPO, {"gamma": 1.0, "target_kl": 0.03, "n_critic_updates": 4, "cg_max_steps": 8}),
    "rloo": (RLOO, _CLIPPED),
    "grpo": (GRPO, _CLIPPED),
}
ARCHITECTURES = {
    "gpt2": lambda seed: make_gpt2(TOKENIZER, seed, initializer_range=0.05),
    "t5": lambda seed: make_t5(TOKENIZER, seed, n_spare=0),
}


def learn(
    reward: Any,
    seed: int,
    n_iters: int,
    algorithm: str = "ppo",
    architecture: str = "gpt2",
    prompts: list[str] | None = None,
    max_length: int = 5,
    kl_coeff: float = 0.0,
    ends: tuple[int, ...] = (0,),
    learning_rate: float = 2e-3,
    enough: float | None = None,
    variant: dict[str, Any] | None = None,
    **env_kwargs: Any,
) -> tuple[list[float], list[float]]:
    """Mean reward and KL per iteration, of which there are fewer once the last three reach ``enough`` on average.

    ``variant`` holds further arguments of the algorithm.
    """
    model = ARCHITECTURES[architecture](seed)
    cls, settings = ALGORITHMS[algorithm]
    samples = [Sample(i, text, [""]) for i, text in enumerate(prompts or ["w0", "w1 w2", "w3"])]
    end_of_turn = EndOfTurn(TOKENIZER, ends)
    vocab_size = model.get_input_embeddings().weight.shape[0]

    def make() -> UtteranceView:
        parts = [RewardPart("r", 1.0, reward)]
        return UtteranceView(TextGenEnv(end_of_turn, samples, parts, 20, max_length, vocab_size, **env_kwargs))

    policy_class: Any = policy_class_of(model)
    policy_kwargs: dict[str, Any] = {"model": model, "end_of_turn": end_of_turn}
    if cls.maskable:
        policy_class = maskable_class_of(model)
        policy_kwargs |= {"top_mask": 0.95, "target_update_iterations": 5}
    if not cls.needs_critic:
        policy_kwargs["critic"] = "none"
    if algorithm != "a2c":
        settings = {**settings, "batch_size": 8 * max(max_length, 4), **(variant or {})}
    trained = cls(
        policy_class,
        DummyVecEnv([make for _ in range(32)]),
        n_steps=max(max_length, 4),
        learning_rate=learning_rate,
        policy_kwargs=policy_kwargs,
        kl_controller=FixedKLController(kl_coeff),
        seed=seed,
        device="cpu",
        **settings,
    )
    rewards, kls = [], []
    _, callback = trained._setup_learn(10**9)
    for _ in range(n_iters):
        trained.collect_rollouts(trained.env, callback, trained.rollout_buffer, trained.n_steps)
        rewards.append(trained.logger.name_to_value["rollout/task_reward"])
        kls.append(trained.logger.name_to_value["rollout/kl"])
        if enough is not None and len(rewards) > 3 and sum(rewards[-3:]) / 3 > enough:
            break
        trained.train()
    return rewards, kls


def share_of_target(previous: Any, action: int, current: Any, done: bool, meta: Any) -> float:
    """Paid for every ``w7``; 1 for a reply of five."""
    return (action == W["w7"]) / 5
