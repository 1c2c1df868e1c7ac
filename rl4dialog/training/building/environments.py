"""The environments of a run."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.vec_env import VecEnv
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rl4dialog.core.config import OnPolicyConfig
from rl4dialog.core.config_blocks import EnvConfig
from rl4dialog.core.types import RewardPart
from rl4dialog.data.run_data import Data
from rl4dialog.envs.partners import ScriptedPartner
from rl4dialog.envs.vectorize import check_workers, make_vec_env
from rl4dialog.functional.distributed import n_processes
from rl4dialog.policies.models import embedding_rows
from rl4dialog.rewards.parts import is_batched
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.training.building.lengths import Lengths
from rl4dialog.training.building.policy import build_end_of_turn


def build_environments(
    config: OnPolicyConfig,
    data: Data,
    model: PreTrainedModel,
    end_of_turn: EndOfTurn,
    lengths: Lengths,
    reward_parts: list[RewardPart],
) -> VecEnv:
    """This process's share of the environments."""
    env = config.env
    return make_vec_env(
        _env_kwargs(env, data, model, end_of_turn, lengths, reward_parts),
        env.n_envs // n_processes(),
        env.vec_env,
        env.n_workers,
        env.max_restarts if env.on_worker_death == "restart" else 0,
        config.reward_fn.timeout_s,
    )


def check_env_workers(
    config: OnPolicyConfig,
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    model: PreTrainedModel,
    lengths: Lengths,
    reward_parts: list[RewardPart],
) -> None:
    """Check that the environments can be given to worker processes, where a run has any, without starting one.

    Args:
        config: Of an RL run.
        tokenizer: Of the run.
        data: Of the run.
        model: Of the run; it need not have weights.
        lengths: Of the run.
        reward_parts: Of :func:`build_reward_parts`.

    Raises:
        EnvWorkerError: If they cannot; see :func:`~rl4dialog.envs.vectorize.check_workers`.
    """
    end_of_turn = build_end_of_turn(config, tokenizer, data, model)
    check_workers(_env_kwargs(config.env, data, model, end_of_turn, lengths, reward_parts), config.env.vec_env)


def _env_kwargs(
    env: EnvConfig,
    data: Data,
    model: PreTrainedModel,
    end_of_turn: EndOfTurn,
    lengths: Lengths,
    reward_parts: list[RewardPart],
) -> dict[str, Any]:
    return {
        "end_of_turn": end_of_turn,
        "samples": list(data.pools["train"]),
        "reward_parts": [part for part in reward_parts if not is_batched(part.function)],
        "max_prompt_length": lengths.prompt,
        "max_episode_length": lengths.reply,
        "vocab_size": embedding_rows(model),
        "prompt_truncation_side": lengths.truncation_side,
        "max_turns": env.args.max_turns,
        "priority_scale": env.args.priority_scale,
        "between_turns": getattr(data.pools["train"], "between_turns", None),
        "partner": ScriptedPartner(env.args.partner_replies) if env.args.partner_replies is not None else None,
    }
