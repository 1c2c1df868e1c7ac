"""Another algorithm by one key: what ``--set alg.id=grpo`` takes from a config that was written for another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl4dialog.algorithms.on_policy.ppo import PPO
from rl4dialog.catalog import AlgorithmRegistry, PolicyRegistry
from rl4dialog.core.arguments import parameters_of, value_problem
from rl4dialog.core.config import OnPolicyConfig
from rl4dialog.core.config_notes import config_notes
from rl4dialog.core.errors import shown
from rl4dialog.functional.distributed import n_processes

OF_PPO = ("critic_lr_factor",)
"""Arguments of policies that only PPO and NLPO read."""
# What an algorithm or a policy lacks if it does not accept the arguments.
_LACKS = {
    "groups of replies": ("n_generations", "kl_in", "kl_estimator", "scale_rewards", "constant_groups"),
    "minibatches of the policy": ("n_epochs", "batch_size", "split_by_length", "micro_batch_size"),
    "clipped ratio": ("clip_range", "clip_range_high", "clip_range_vf", "dual_clip", "ratio", "surrogate"),
    "loss of policy and critic together": ("vf_coef", "ent_coef", "max_grad_norm"),
    "updates of the critic alone": ("n_critic_updates", "critic_epochs", "critic_warmup_iters"),
    "Huber loss of values": ("huber_delta",),
    "RMSprop": ("use_rms_prop", "rms_prop_eps"),
    "conjugate gradient": ("cg_max_steps", "cg_damping", "sub_sampling_factor"),
    "line search": ("line_search_max_iter", "line_search_shrinking_factor"),
    "mask": ("top_mask", "mask_type", "min_tokens_to_keep", "target_update_iterations"),
}
_WITH_TRPO = {"learning_rate": "it is the critic's alone", "target_kl": "every update stays within it"}


def switch_algorithm(config: OnPolicyConfig) -> None:
    """Adapt a config to its overridden ``alg.id``, with notes; other overridden arguments are never removed."""
    before, id = config.switch.before, config.alg.id
    if before is None or not {before, id} <= set(AlgorithmRegistry.ids()):
        return
    stale = config_notes(config, {})
    notes = [*_adapt_policy(config), *_without_meaning(config, "alg.args", config.alg.args), *_adapt_groups(config)]
    if "trpo" in (before, id):
        notes += [f"alg.args.{k} is kept, but with trpo {_WITH_TRPO[k]}" for k in config.alg.args if k in _WITH_TRPO]
    if not _is_chosen(config, "alg.args") and (moved := _moved_defaults(config, before)):
        notes.append(f"alg.id: {id} has other defaults than {before} for what is not set: {', '.join(moved)}")
    fresh = config_notes(config, {})
    kept = [note for note in config.warnings if note not in stale]
    config.warnings[:] = dict.fromkeys([*kept, *fresh, *notes])
    config.switch.before = None


def _is_chosen(config: OnPolicyConfig, path: str) -> bool:
    """Whether a key or the block around it was overridden."""
    return any(path == each or path.startswith((f"{each}.", f"{each}[")) for each in config.switch.chosen)


def _adapt_policy(config: OnPolicyConfig) -> list[str]:
    """Choose the policy with or without a mask, as the algorithm needs, and leave out arguments without a meaning."""
    policy, needs_mask, notes = config.alg.policy, AlgorithmRegistry.resolve(config.alg.id).maskable, []
    plain = policy.id.removeprefix("maskable_")
    fitting = f"maskable_{plain}" if needs_mask else plain
    if fitting != policy.id and fitting in PolicyRegistry and not _is_chosen(config, "alg.policy.id"):
        notes.append(f"alg.policy.id is now {fitting}: {config.alg.id} {'needs a' if needs_mask else 'has no'} mask")
        policy.id = fitting
    if policy.args.critic_from is not None:
        given = {"critic_from": policy.args.critic_from}
        notes += _without_meaning(config, "alg.policy.args", given)
        policy.args.critic_from = given.get("critic_from")
    return [*notes, *_without_meaning(config, "alg.policy.args", policy.args.model_extra or {})]


def _without_meaning(config: OnPolicyConfig, where: str, args: dict[str, Any]) -> list[str]:
    """Remove the arguments without a meaning that were not overridden, and say why."""
    found = {name: _reason(config, where, name, value) for name, value in args.items()}
    removed = [name for name, reason in found.items() if reason and not _is_chosen(config, f"{where}.{name}")]
    for name in removed:
        del args[name]
    return [f"{where}.{name} is left out: {config.alg.id} {found[name]}" for name in removed]


def _reason(config: OnPolicyConfig, where: str, name: str, value: Any) -> str | None:
    """Why an argument has no meaning with the algorithm; ``None`` if it has one."""
    algorithm, of_critic = AlgorithmRegistry.resolve(config.alg.id), ("critic", "critic_from", "critic_reads", *OF_PPO)
    registry, id = AlgorithmRegistry, config.alg.id
    if where == "alg.args" and name in algorithm.no_meaning:
        return str(algorithm.no_meaning[name])
    if where == "alg.policy.args":
        registry, id = PolicyRegistry, config.alg.policy.id
        if name in of_critic and not algorithm.needs_critic:
            return "has no critic"
        if name == "critic" and value == "none":
            return "needs a critic"
        if name in OF_PPO and not issubclass(algorithm, PPO):
            return "does not read it, only ppo and nlpo do"
        if name == "critic_from":
            return None
    if registry.takes(id, name):
        # A value that is wrong for both algorithms is a mistake, and remains an error.
        is_of_other = where == "alg.args" and _takes(config.switch.before, name, value) and not _takes(id, name, value)
        return f"does not take the value {shown(value)}" if is_of_other else None
    return f"has no {next((lack for lack, names in _LACKS.items() if name in names), 'such argument')}"


def _takes(id: str | None, name: str, value: Any) -> bool:
    """Whether the type of an algorithm's argument, if it is known, allows a value."""
    parameter = None if id is None else parameters_of(AlgorithmRegistry.resolve(id)).get(name)
    return parameter is None or value_problem(parameter, value) is None


def _adapt_groups(config: OnPolicyConfig) -> Sequence[str]:
    """Choose the number of replies to a prompt, if the default does not divide the number of environments."""
    default = AlgorithmRegistry.defaults(config.alg.id).get("n_generations")
    n_envs, args = config.env.n_envs // n_processes(), config.alg.args
    divisors = [n for n in range(2, n_envs + 1) if n_envs % n == 0]
    if default is None or "n_generations" in args or default in divisors or not divisors:
        return ()
    args["n_generations"] = min(divisors, key=lambda n: abs(n - default))
    why = f"the default of {default} does not divide env.n_envs = {n_envs}"
    return [f"alg.args.n_generations is {args['n_generations']}: {why}"]


def _moved_defaults(config: OnPolicyConfig, before: str) -> list[str]:
    """Arguments that are not set and whose values are not those of the algorithm before, without what is off."""

    def defaults(id: str) -> dict[str, Any]:
        unread = {*AlgorithmRegistry.resolve(id).no_meaning, *AlgorithmRegistry.provided}
        return {name: value for name, value in AlgorithmRegistry.defaults(id).items() if name not in unread}

    old, new = defaults(before), defaults(config.alg.id)
    unset = {name: value for name, value in new.items() if name not in config.alg.args}
    moved = {n: v for n, v in unset.items() if (old[n] != v if n in old else v not in (None, 0, "none"))}
    return [f"{name} {value}" + (f" (was {old[name]})" if name in old else "") for name, value in moved.items()]
