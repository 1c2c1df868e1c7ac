"""Checks of arguments of algorithm and policy that concern other blocks of the config."""

from __future__ import annotations

from rl4dialog.core.config import OnPolicyConfig
from rl4dialog.core.errors import ConfigError
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.training.processes import sharding


def check_algorithm(config: OnPolicyConfig) -> None:
    """Check combinations of arguments, each of which is valid."""
    args = config.alg.args
    if args.get("critic_warmup_iters") and sharding() is not None:
        raise ConfigError(
            "alg.args.critic_warmup_iters is not supported with FSDP or DeepSpeed; train the critic in a run without "
            "them, and set alg.policy.args.critic_from to its folder"
        )
    if args.get("supervised_coef") and sharding() is not None:
        raise ConfigError("alg.args.supervised_coef is not supported with FSDP or DeepSpeed; remove it")
    if args.get("importance_correction", "none") != "none":
        _check_correction(config)


def _check_correction(config: OnPolicyConfig) -> None:
    block = config.own_generation_block
    settings = GenerationSettings.from_kwargs(block.kwargs, block.where)
    if not settings.do_sample:
        raise ConfigError(
            f"alg.args.importance_correction needs {block.where}.do_sample: true; greedy replies have no distribution"
        )
    if config.generation.backend == "transformers" and not settings.truncates:
        raise ConfigError(
            f"alg.args.importance_correction has no effect: without filters such as {block.where}.top_k, replies are "
            f"drawn from the policy's own distribution; remove it"
        )
