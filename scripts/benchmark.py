"""Time an iteration of PPO side by side: this toolkit, and stable-baselines3 stepping token by token.

Both train the same tiny GPT-2 on the same environments for the same number of agent tokens; they take turns, and the
median of each is printed with the ratio.

    python scripts/benchmark.py
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from typing import Any

import stable_baselines3
import torch
from rich.console import Console
from rich.table import Table
from stable_baselines3.common.vec_env import DummyVecEnv
from transformers import AutoModelForCausalLM

from rl4dialog.algorithms.on_policy.ppo import PPO
from rl4dialog.core.types import RewardPart, Sample
from rl4dialog.envs.text_generation import TextGenEnv
from rl4dialog.envs.vectorize import make_vec_env
from rl4dialog.policies.causal import CausalLMActorCriticPolicy
from rl4dialog.policies.models import load_language_model
from rl4dialog.rollouts.kl_controllers import FixedKLController
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.text.tokenizer import build_tokenizer

N_ENVS, PROMPT_LENGTH, REPLY_LENGTH, VOCAB_SIZE = 64, 64, 20, 1000
UPDATE = {"n_epochs": 5, "batch_size": 8 * REPLY_LENGTH, "learning_rate": 1e-5, "device": "cpu", "seed": 0}


def share_of_letters(prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
    """A reward that costs next to nothing."""
    return sum(c.isalpha() for c in gen_text) / max(1, len(gen_text))


def make_workload() -> tuple[dict[str, Any], Any]:
    """Arguments of the environments, with prompts of 32 to 64 tokens and replies of exactly 20, and the model."""
    from rl4dialog.data.small_talk import SmallTalk
    from rl4dialog.rewards.parts import as_parts

    texts = [sample.prompt_or_input_text for sample, _ in SmallTalk.prepare("train", context_size=5)]
    tokenizer = build_tokenizer("builtin/tiny-gpt2", corpus=texts, vocab_size=VOCAB_SIZE)
    fitting = [text for text in texts if 32 <= len(tokenizer(text)["input_ids"]) <= PROMPT_LENGTH]
    parts: list[RewardPart] = as_parts(share_of_letters)
    env_kwargs = {
        "end_of_turn": EndOfTurn(tokenizer, ()),
        "samples": [Sample(i, text, [""]) for i, text in enumerate(fitting)],
        "reward_parts": parts,
        "max_prompt_length": PROMPT_LENGTH,
        "max_episode_length": REPLY_LENGTH,
        "vocab_size": len(tokenizer),
    }
    return env_kwargs, load_language_model(
        "builtin/tiny-gpt2", tokenizer, PROMPT_LENGTH, REPLY_LENGTH, AutoModelForCausalLM
    )


def make_contestants(critic: str) -> dict[str, Any]:
    """Algorithms whose ``learn(N_ENVS * REPLY_LENGTH)`` is one iteration."""
    env_kwargs, model = make_workload()
    policy: Any = CausalLMActorCriticPolicy

    def arguments() -> dict[str, Any]:
        kwargs = {"model": copy.deepcopy(model), "end_of_turn": env_kwargs["end_of_turn"], "critic": critic}
        return {**UPDATE, "n_steps": REPLY_LENGTH, "policy_kwargs": kwargs}

    utterances = make_vec_env(env_kwargs, N_ENVS, "dummy")
    tokens = DummyVecEnv([lambda: TextGenEnv(**env_kwargs)] * N_ENVS)
    return {
        "rl4dialog": PPO(policy, utterances, kl_controller=FixedKLController(0.1), **arguments()),
        "stable-baselines3, token by token": stable_baselines3.PPO(policy, tokens, **arguments()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--critic", choices=("separate", "shared"), default="separate")
    parser.add_argument("--repeats", type=int, default=5, help="iterations of each contestant, after one to warm up")
    args = parser.parse_args()
    torch.manual_seed(0)
    contestants = make_contestants(args.critic)
    n_tokens = N_ENVS * REPLY_LENGTH
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for repeat in range(args.repeats + 1):
        for name, algorithm in contestants.items():
            started = time.perf_counter()
            algorithm.learn(n_tokens, reset_num_timesteps=False)
            if repeat:
                seconds[name].append(time.perf_counter() - started)
    table = Table("", "seconds per iteration", "lowest to highest", "agent tokens/s", "time / ours")
    ours = statistics.median(seconds["rl4dialog"])
    for name, values in seconds.items():
        median = statistics.median(values)
        table.add_row(
            name,
            f"{median:.2f}",
            f"{min(values):.2f} to {max(values):.2f}",
            f"{n_tokens / median:.0f}",
            f"{median / ours:.1f}",
        )
    console = Console()
    console.print(f"{n_tokens} agent tokens per iteration, {args.critic} critic, {torch.get_num_threads()} threads")
    console.print(table)


if __name__ == "__main__":
    main()
