"""Checks of configs of runs that learn from logged conversations."""

from __future__ import annotations

from typing import Any

from rl4dialog.catalog import AlgorithmRegistry, OfflineAlgorithmRegistry
from rl4dialog.core.config import OfflineConfig
from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.distributed import n_processes
from rl4dialog.training.building.callbacks import check_without_rollouts
from rl4dialog.training.building.generation import evaluation_kwargs
from rl4dialog.training.building.policy import check_chosen, own_policy_args, policy_class
from rl4dialog.training.processes import sharding

_POLICIES = {
    "plain": "a plain language model, such as causal_lm_actor_critic_policy",
    "guided": "a policy with values of tokens, such as value_guided_causal_lm_policy",
    "reranked": "a policy with values of replies: value_reranked_causal_lm_policy",
}


def check_offline(config: OfflineConfig) -> None:
    """Check ids and arguments of algorithm and policy."""
    id, policy_id = config.alg.id, config.alg.policy.id
    if id in AlgorithmRegistry and id not in OfflineAlgorithmRegistry:
        raise ConfigError(f"alg.id: {id} learns from rollouts, which needs the key 'alg.kl_div'")
    check_chosen(config, OfflineAlgorithmRegistry)
    algorithm, policy = OfflineAlgorithmRegistry.resolve(id), policy_class(config)
    kind = "reranked" if policy.reranked else "guided" if policy.guided else "plain"
    if policy.maskable or kind not in algorithm.policy_kinds:
        needed = ", or ".join(_POLICIES[each] for each in algorithm.policy_kinds)
        raise ConfigError(f"alg.policy.id: {policy_id} cannot be combined with alg.id: {id}, which needs {needed}")
    args = own_policy_args(config)
    for name in algorithm.policy_arguments():
        if name in args:
            raise ConfigError(f"alg.policy.args.{name} has no effect with alg.id: {id}; remove it")
    if config.alg.policy.args.critic_from is not None:
        raise ConfigError(f"alg.policy.args.critic_from has no meaning with alg.id: {id}; remove it")
    algorithm.check_arguments(config.alg.args)
    algorithm.check_policy(policy, config.alg.args, {**OfflineAlgorithmRegistry.defaults(id), **config.alg.args})
    policy.check_arguments({**args, **algorithm.policy_arguments(), "lora": config.lora})
    if algorithm.reads_returns and config.warm_start is not None:
        raise ConfigError(
            f"warm_start imitates all references behind one return, but alg.id: {id} imitates each conversation behind "
            f"its own; remove warm_start"
        )
    if policy.guided:
        _check_candidates(config, policy)
    if sharding() is not None:
        raise ConfigError(f"alg.id: {id} is not supported with FSDP or DeepSpeed; start it with plain data parallelism")
    if n_processes() > 1 and not algorithm.data_parallel:
        raise ConfigError(f"alg.id: {id} trains in one process only, not in {n_processes()}")
    for i, component in enumerate(config.callbacks):
        check_without_rollouts(component.id, component.args, f"callbacks[{i}]")


def _check_candidates(config: OfflineConfig, policy: Any) -> None:
    """Check that evaluations can sample several replies to a prompt, if the policy ranks them."""
    guidance = policy.guidance_class.from_settings(own_policy_args(config).get("guidance"))
    kwargs, where = evaluation_kwargs(config), config.evaluation_block.where
    if guidance.n_candidates > 1 and not kwargs["do_sample"]:
        raise ConfigError(
            f"alg.policy.args.guidance.n_candidates is {guidance.n_candidates}, but evaluations decode greedily, which "
            f"gives the same reply every time; set {where}.do_sample: true, or n_candidates: 1"
        )
