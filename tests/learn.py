"""Training loops for tests of learning: any algorithm, any architecture, a reward per token, no trainer around it."""

import pytest
from collected import collect, make
from tiny import make_gpt2, make_t5, make_tokenizer

from rl4dialog.algorithms.on_policy.critic_free import GRPO, RLOO, Reinforce
from rl4dialog.algorithms.on_policy.ppo import A2C, NLPO, PPO
from rl4dialog.algorithms.on_policy.trpo import TRPO
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.core.types import Sample
from rl4dialog.text.end_of_turn import EndOfTurn

TOKENIZER = make_tokenizer()
W = {f"w{i}": 3 + i for i in range(12)}
"""Ids of the words."""

SEEDS = pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])

_CLIPPED = {"n_epochs": 4, "ent_coef": 0.01}
ALGORITHMS = {
    "ppo": (PPO, {**_CLIPPED, "gamma": 1.0}),
    "nlpo": (NLPO, {**_CLIPPED, "gamma": 1.0}),
    "a2c": (A2C, {"gamma": 1.0, "ent_coef": 0.01, "use_rms_prop": False, "normalize_advantage": True}),
    "trpo": (TRPO, {"gamma": 1.0, "target_kl": 0.03, "n_critic_updates": 4, "cg_max_steps": 8}),
    "rloo": (RLOO, _CLIPPED),
    "reinforce": (Reinforce, _CLIPPED),
    "grpo": (GRPO, _CLIPPED),
}
ARCHITECTURES = {
    "gpt2": lambda seed: make_gpt2(TOKENIZER, seed, initializer_range=0.05),
    "t5": lambda seed: make_t5(TOKENIZER, seed, n_spare=0),
}


def learn(
    reward,
    seed,
    n_iters,
    algorithm="ppo",
    architecture="gpt2",
    prompts=None,
    max_length=5,
    kl_coeff=0.0,
    ends=(0,),
    learning_rate=2e-3,
    enough=None,
    variant=None,
    **env_kwargs,
):
    """Mean reward and KL per iteration, of which there are fewer once the last three reach ``enough`` on average.

    ``variant`` holds further arguments of the algorithm.
    """
    model = ARCHITECTURES[architecture](seed)
    cls, settings = ALGORITHMS[algorithm]
    samples = [Sample(i, text, [""]) for i, text in enumerate(prompts or ["w0", "w1 w2", "w3"])]
    end_of_turn = EndOfTurn(TOKENIZER, ends)
    vocab_size = model.get_input_embeddings().weight.shape[0]

    of_env = {"end_of_turn": end_of_turn, "samples": samples, "reward_parts": [RewardPart("r", 1.0, reward)]}
    of_env |= {"max_prompt_length": 20, "max_episode_length": max_length, "vocab_size": vocab_size, **env_kwargs}
    masking = {"top_mask": 0.95, "target_update_iterations": 5} if cls.maskable else {}
    critic = "separate" if cls.needs_critic else "none"
    if algorithm != "a2c":
        settings = {**settings, "batch_size": 8 * max(max_length, 4), **(variant or {})}
    n_steps = max(max_length, 4)
    trained = make(
        cls,
        critic,
        n_steps,
        of_env,
        model,
        32,
        masking,
        kl_coeff,
        **{"learning_rate": learning_rate, "seed": seed, **settings},
    )
    rewards, kls = [], []
    for i in range(n_iters):
        collect(trained, reset=i == 0)
        rewards.append(trained.logger.name_to_value["rollout/task_reward"])
        kls.append(trained.logger.name_to_value["rollout/kl"])
        if enough is not None and len(rewards) > 3 and sum(rewards[-3:]) / 3 > enough:
            break
        trained.train()
    return rewards, kls


def share_of_target(previous, action, current, done, meta):
    """Paid for every ``w7``; 1 for a reply of five."""
    return (action == W["w7"]) / 5
