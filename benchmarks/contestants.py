"""This toolkit, and stable-baselines3 stepping the same environment token by token."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv

from benchmarks.task import TableEndOfTurn, share_of_letters
from benchmarks.workloads import Workload, build_model, build_prompts
from rl4dialog.core.config import OnPolicyConfig, RunConfig, parse_config
from rl4dialog.data.pool import Data
from rl4dialog.envs.text_generation import TextGenEnv
from rl4dialog.policies.base import Precision
from rl4dialog.policies.models import embedding_rows
from rl4dialog.scores.parts import as_parts
from rl4dialog.scores.scoring import Scorer
from rl4dialog.training.assembly import Assembly
from rl4dialog.training.building.policy import policy_class
from rl4dialog.training.building.texts import Lengths

PHASES = ("rollout", "score", "evaluate", "update")
LEARNING_RATE, KL_COEFF, N_GENERATIONS = 1e-5, 0.1, 4
LORA: dict[str, Any] = {"r": 16, "lora_alpha": 32, "task_type": "CAUSAL_LM"}
"""Adapters of every contestant, at peft's default modules: queries and values of most models."""


@dataclass(frozen=True)
class Setting:
    """What a contestant trains."""

    workload: str
    kind: str = "causal"  # or seq2seq
    critic: str = "separate"  # or shared, or none for RLOO and GRPO
    algorithm: str = "ppo"
    device: str = "cpu"
    lora: bool = False  # with the settings of LORA
    precision: Precision = "fp32"  # or bf16 for autocast; frozen weights under adapters are then bfloat16
    backend: str = "auto"  # of our generation

    def __str__(self) -> str:
        critic, adapters = f"critic: {self.critic}", ["LoRA"] if self.lora else []
        return ", ".join([self.workload, self.kind, self.algorithm, critic, *adapters, self.precision])


@dataclass
class Timing:
    """One iteration: seconds in all and by phase, and how many agent tokens it had."""

    total: float
    phases: dict[str, float]
    n_tokens: int


class Contestant(Protocol):
    """Somebody who can do an iteration."""

    def iterate(self) -> Timing:
        """Collect one rollout and train on it."""

    def close(self) -> None:
        """Stop worker processes."""


def config_of(
    setting: Setting, workload: Workload, alg: dict[str, Any], env: Mapping[str, Any] = {}, **blocks: Any
) -> RunConfig:
    """The workload as the YAML of a run would say it, with further keys of ``alg`` and ``env``, and further blocks."""
    lengths = {"max_prompt_length": workload.max_prompt_length, "max_episode_length": workload.max_reply_length}
    alg["args"] |= {"learning_rate": LEARNING_RATE, "device": setting.device}
    alg["policy"]["args"]["model_name"] = "builtin/tiny-gpt2"
    config = {
        "precision": setting.precision,
        "tokenizer": {"model_name": "builtin/tiny-gpt2"},
        "datapool": {"id": "small_talk"},
        "env": {**env, "args": lengths},
        "alg": {"id": setting.algorithm, **alg},
        "train_evaluation": {"n_iters": 1},
    }
    return parse_config({**config, **blocks}, "the benchmark's config")


def run_config(setting: Setting, workload: Workload, n_episodes: int) -> OnPolicyConfig:
    """The config of an algorithm with rollouts."""
    policy = {"id": f"{setting.kind}_lm_actor_critic_policy", "args": {"critic": setting.critic}}
    args: dict[str, Any] = {
        "n_steps": workload.n_tokens // workload.n_episodes,
        "batch_size": round(workload.batch_size * workload.n_tokens / workload.n_episodes),
        "n_epochs": workload.n_epochs,
        **({} if setting.algorithm == "ppo" else {"n_generations": N_GENERATIONS}),
    }
    alg = {"args": args, "kl_div": {"coeff": KL_COEFF}, "policy": policy}
    env = {"n_envs": n_episodes, "vec_env": "dummy"}
    reward, lora = {"id": "share_of_letters"}, LORA if setting.lora else None
    backend = {"backend": setting.backend}
    config = config_of(setting, workload, alg, env, reward_fn=reward, lora=lora, generation=backend)
    assert isinstance(config, OnPolicyConfig)
    return config


class Rl4dialog:
    """This toolkit, built and run as a trainer does it."""

    def __init__(self, setting: Setting, workload: Workload) -> None:
        config = run_config(setting, workload, workload.n_episodes)
        tokenizer, samples = build_prompts(workload)
        pools: Any = {"train": [(sample, 1.0) for sample in samples]}
        model = build_model(workload, setting.kind, tokenizer, setting.device)
        self._timer = _PhaseTimer()
        parts, end = Assembly(config), TableEndOfTurn(tokenizer, workload.reply_lengths)
        lengths = Lengths(workload.max_prompt_length, workload.max_reply_length)
        vars(parts).update(tokenizer=tokenizer, data=Data(pools, None), lengths=lengths)
        vars(parts).update(initial_model=model, end_of_turn=end, scorer=Scorer(as_parts(share_of_letters)))
        self.algorithm = parts.algorithm
        self.algorithm.set_logger(Logger(folder=None, output_formats=[]))

    def iterate(self) -> Timing:
        n_timesteps = self.algorithm.n_steps * self.algorithm.env.num_envs
        started = time.perf_counter()
        self.algorithm.learn(n_timesteps, self._timer, reset_num_timesteps=False)
        synchronize(self.algorithm.device)
        total = time.perf_counter() - started
        logged = self._timer.logged
        seconds = [logged[f"time/{name}_s"] for name in ("generate", "score", "evaluate")]
        phases = dict(zip(PHASES, [*seconds, time.perf_counter() - self._timer.rollout_ended], strict=True))
        return Timing(total, phases, int(logged["rollout/tokens"]))

    def close(self) -> None:
        self.algorithm.env.close()


class _PhaseTimer(BaseCallback):
    """Keeps what the rollout logged, and when it ended."""

    logged: dict[str, float]
    rollout_ended: float

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.logged = dict(self.logger.name_to_value)
        self.rollout_ended = time.perf_counter()


class VanillaSB3:
    """Unmodified stable-baselines3 PPO on the token-level environment: a forward pass per token."""

    def __init__(self, setting: Setting, workload: Workload) -> None:
        config = run_config(setting, workload, workload.n_episodes)
        tokenizer, samples = build_prompts(workload)
        model = build_model(workload, setting.kind, tokenizer, setting.device)
        end_of_turn = TableEndOfTurn(tokenizer, workload.reply_lengths)
        env_kwargs: dict[str, Any] = {
            "end_of_turn": end_of_turn,
            "samples": samples,
            "reward_parts": as_parts(share_of_letters),
            "max_prompt_length": workload.max_prompt_length,
            "max_episode_length": workload.max_reply_length,
            "vocab_size": embedding_rows(model),
        }
        self._n_tokens = config.alg.args["n_steps"] * workload.n_episodes
        self.algorithm: Any = stable_baselines3.PPO(
            policy_class(config),  # type: ignore[arg-type]
            DummyVecEnv([lambda: TextGenEnv(**env_kwargs)] * workload.n_episodes),
            policy_kwargs={"model": model, "end_of_turn": end_of_turn, "critic": setting.critic},
            seed=0,
            **config.alg.args,
        )
        self._timer = _PhaseTimer()

    def iterate(self) -> Timing:
        started = time.perf_counter()
        self.algorithm.learn(self._n_tokens, self._timer, reset_num_timesteps=False)
        synchronize(self.algorithm.device)
        ended = time.perf_counter()
        phases = {"rollout": self._timer.rollout_ended - started, "update": ended - self._timer.rollout_ended}
        return Timing(ended - started, phases, self._n_tokens)

    def close(self) -> None:
        self.algorithm.env.close()


def synchronize(device: torch.device | str) -> None:
    """Wait for what a GPU still has to do."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
