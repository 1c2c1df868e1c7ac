"""Checks of arguments of algorithm and policy that concern other blocks of the config."""

from __future__ import annotations

from rl4dialog.catalog import AlgorithmRegistry
from rl4dialog.core.config import OnPolicyConfig
from rl4dialog.core.errors import ConfigError
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.training.building.policy import own_policy_args
from rl4dialog.training.processes import sharding


def check_algorithm(config: OnPolicyConfig) -> None:
    """Check combinations of arguments, each of which is valid.

    Raises:
        ConfigError: If an argument has no effect with the others, or contradicts them. Keys that a config for
            another algorithm or coefficient may leave behind are only noted in the config's warnings.
    """
    args = config.alg.args
    if args.get("mask_truncated") and not config.env.args.terminate_on_eos:
        raise ConfigError(
            "alg.args.mask_truncated leaves out all replies with env.args.terminate_on_eos: false, because none of "
            "them ends before the length limit; remove one of the two"
        )
    if args.get("critic_warmup_iters") and sharding() is not None:
        raise ConfigError(
            "alg.args.critic_warmup_iters is not supported with FSDP or DeepSpeed; train the critic in a run without "
            "them, and set alg.policy.args.critic_from to its folder"
        )
    if args.get("supervised_coef") and sharding() is not None:
        raise ConfigError("alg.args.supervised_coef is not supported with FSDP or DeepSpeed; remove it")
    if 0 < config.n_iters < args.get("critic_warmup_iters", 0):
        raise ConfigError(
            f"alg.args.critic_warmup_iters is {args['critic_warmup_iters']}, more than the {config.n_iters} iterations "
            f"of train_evaluation.n_iters, so the policy is never trained; lower it, or make both equal to train only "
            f"the critic"
        )
    if not AlgorithmRegistry.resolve(config.alg.id).needs_critic:
        why = f"has no effect: alg.id: {config.alg.id} has no critic"
        if config.alg.policy.args.critic_from is not None:
            raise ConfigError(f"alg.policy.args.critic_from {why}; remove it")
        if own_policy_args(config).get("critic", "none") != "none":
            _note(config, f"alg.policy.args.critic {why}")
    if config.alg.kl_div.target_kl is not None and not config.alg.kl_div.coeff:
        _note(config, "alg.kl_div.target_kl has no effect: alg.kl_div.coeff is 0, and stays 0 when it is multiplied")
    if args.get("importance_correction", "none") != "none":
        _check_correction(config)
    _check_reference(config)


def _note(config: OnPolicyConfig, note: str) -> None:
    if note not in config.warnings:
        config.warnings.append(note)


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


def _check_reference(config: OnPolicyConfig) -> None:
    policy_args = own_policy_args(config)
    if policy_args.get("reference") == "none" and config.alg.kl_div.coeff:
        raise ConfigError(
            f"alg.kl_div.coeff is {config.alg.kl_div.coeff:g}, but alg.policy.args.reference is none, so there is no "
            f"KL to penalize; set the coefficient to 0, or reference to initial"
        )
    if policy_args.get("reference") == "none" and policy_args.get("offload_reference"):
        raise ConfigError(
            "alg.policy.args.offload_reference is true, but alg.policy.args.reference is none, so there is nothing to "
            "offload; remove one of them"
        )
    if policy_args.get("reference") in ("ema", "reset") and not config.alg.kl_div.coeff:
        raise ConfigError(
            f"alg.policy.args.reference: {policy_args['reference']} has no effect on training with "
            f"alg.kl_div.coeff: 0; remove it"
        )
