"""The algorithm of an RL run, with its environments and its policy."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from rl4dialog.catalog import AlgorithmRegistry
from rl4dialog.core.config import OnPolicyConfig
from rl4dialog.core.errors import ConfigError, GenerationError
from rl4dialog.core.types import RewardPart
from rl4dialog.data.run_data import Data
from rl4dialog.envs.sb3_workers import close
from rl4dialog.policies import vllm_engine
from rl4dialog.policies.base import GenerationBackend, LMActorCriticPolicy
from rl4dialog.policies.vllm_backend import VLLMBackend
from rl4dialog.rewards.scoring import BatchScorer
from rl4dialog.rollouts.collector import RolloutCollector
from rl4dialog.rollouts.kl_controllers import build_kl_controller
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.training.building.environments import build_environments
from rl4dialog.training.building.lengths import Lengths
from rl4dialog.training.building.policy import own_policy_args, policy_class
from rl4dialog.training.building.rewards import build_reward_normalizer
from rl4dialog.training.building.toolkit import async_calls
from rl4dialog.training.processes import sharding


def build_algorithm(
    config: OnPolicyConfig,
    data: Data,
    model: PreTrainedModel,
    end_of_turn: EndOfTurn,
    lengths: Lengths,
    reward_parts: list[RewardPart],
) -> Any:
    """The environments, the policy and the algorithm."""
    vec_env = build_environments(config, data, model, end_of_turn, lengths, reward_parts)
    kl, reward = config.alg.kl_div, config.reward_fn
    algorithm, policy_args = AlgorithmRegistry.resolve(config.alg.id), own_policy_args(config)
    if not algorithm.needs_critic:
        policy_args["critic"] = "none"
    try:
        built = algorithm(
            policy_class(config),
            vec_env,
            policy_kwargs={
                **policy_args,
                "model": model,
                "end_of_turn": end_of_turn,
                "precision": config.precision,
                "lora": config.lora,
            },
            seed=config.seed,
            kl_controller=build_kl_controller(kl.coeff, kl.target_kl, kl.type, kl.horizon),
            collector=RolloutCollector(
                BatchScorer(reward_parts, reward.on_error, async_calls(reward), reward.timeout_s),
                mask_failed_rewards=reward.on_error == "mask",
                bootstrap_truncated=config.env.args.bootstrap_truncated,
                normalizer=build_reward_normalizer(reward),
                log_infos=config.logging.log_infos,
            ),
            normalize_rewards=kl.norm_reward,
            sharding=sharding(),
            **config.alg.args,
        )
        built.policy.backend = _build_backend(config, built.policy, lengths)
    except (AssertionError, TypeError, ValueError) as error:
        close(vec_env)
        raise ConfigError(f"alg.args do not fit {config.alg.id!r}: {error}") from error
    except GenerationError:
        close(vec_env)
        raise
    return built


def _build_backend(config: OnPolicyConfig, policy: LMActorCriticPolicy, lengths: Lengths) -> GenerationBackend | None:
    """What generates in the policy's place, if anything does."""
    settings = config.generation.model_dump()
    if settings.pop("backend") == "transformers":
        return None
    engine = vllm_engine.VLLMEngine(
        policy.language_model,
        policy.end_of_turn,
        lengths.prompt + lengths.reply,
        {"fp32": "float32", "bf16": "bfloat16"}[config.precision],
        config.seed,
        **settings,
    )
    return VLLMBackend(engine)
