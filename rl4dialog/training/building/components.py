"""Checks all ids and arguments of a config before anything is loaded."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback

from rl4dialog import catalog
from rl4dialog.core.config import (
    OnPolicyConfig,
    RunConfig,
    SupervisedConfig,
    TextConfig,
)
from rl4dialog.core.config_blocks import ComponentConfig, inner_component
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.plugins import load_entry_points, load_imports
from rl4dialog.core.registry import import_object
from rl4dialog.data.mixture import Mixture, PoolShare, checked_pools
from rl4dialog.functional.distributed import n_processes
from rl4dialog.policies.generation import NOT_IN_ROLLOUTS, GenerationSettings
from rl4dialog.policies.lora import check_settings
from rl4dialog.runs.experiment_trackers import check_outputs
from rl4dialog.training.building.conditions import conditions_met
from rl4dialog.training.building.conversations import check_partner
from rl4dialog.training.building.policy import (
    build_post_processor,
    check_chosen,
    check_fits,
    own_policy_args,
    policy_class,
)
from rl4dialog.training.building.rewards import metrics_and_rewards
from rl4dialog.training.building.switching import switch_algorithm
from rl4dialog.training.callbacks.base import IterationCallback
from rl4dialog.training.processes import refuse_deepspeed
from rl4dialog.training.supervised import IGNORED_ARGS, check_training_args, warm_start_args


def check_callback(id: str, args: Mapping[str, Any], where: str, is_inner: bool = False) -> None:
    """Check a callback of the config, without building it."""
    catalog.CallbackRegistry.check(id, args, where)
    component = catalog.CallbackRegistry.resolve(id)
    if inspect.isclass(component) and not issubclass(component, BaseCallback):
        raise ConfigError(f"callback {id!r} must derive from stable_baselines3.common.callbacks.BaseCallback")
    if not _is_ours(component):
        return
    if is_inner:
        raise ConfigError(f"callback {id!r} does not act in _on_step, so another callback cannot call it")
    for inner in getattr(component, "inner_callbacks", lambda _: ())(args):
        chosen = inner_component(inner, f"{where}.callback")
        check_callback(chosen.id, chosen.args, f"{where}.callback.args", is_inner=True)


def check_without_rollouts(id: str, args: Mapping[str, Any], where: str) -> None:
    """Check that a callback is useful in a supervised run."""
    component = catalog.CallbackRegistry.resolve(id)
    if not _is_ours(component) or component.reads_rollouts(args):
        others = "early_stopping, save_best_model or others that act between epochs, with a metric of the val split"
        raise ConfigError(f"{where}: callback {id!r} acts on rollouts, and this run makes none; use {others}")


def _is_ours(component: Any) -> bool:
    return inspect.isclass(component) and issubclass(component, IterationCallback)


def check_between_epochs(config: RunConfig) -> None:
    """Check the callbacks of a run without rollouts."""
    for i, component in enumerate(config.callbacks):
        check_without_rollouts(component.id, component.args, f"callbacks[{i}]")


def build_callbacks(config: RunConfig, toolkit: Mapping[str, Any]) -> list[tuple[str, BaseCallback]]:
    """Build the callbacks, by id; they request objects of the toolkit, such as ``evaluations``, by name."""

    def build(id: str, args: dict[str, Any] | None = None) -> BaseCallback:
        built = catalog.CallbackRegistry.get(id, args, **toolkit, build_callback=build)
        return built if isinstance(built, BaseCallback) else ConvertCallback(built)

    return [(callback.id, build(callback.id, callback.args)) for callback in config.callbacks]


def import_and_check(config: RunConfig, config_path: str | Path) -> None:
    """Load plugins and a config's imports, and check all ids and arguments."""
    load_entry_points()
    load_imports(config.imports, Path(config_path).resolve().parent)
    check_components(config)


def check_components(config: RunConfig) -> None:
    """Check all ids and arguments before anything is loaded, and note settings that cannot do what they are for.

    Raises:
        ConfigError: If an id or an argument is unknown, a required argument is missing, or arguments contradict each
            other.
    """
    refuse_deepspeed()
    check_outputs(config.logging.outputs)
    for i, component in enumerate(config.callbacks):
        check_callback(component.id, component.args, f"callbacks[{i}].args")
    for i, component in enumerate(config.logging.info_fns):
        catalog.InfoFnRegistry.check(component.id, component.args, f"logging.info_fns[{i}].args")
        if component.id in (each.id for each in config.logging.info_fns[:i]):
            raise ConfigError(f"logging.info_fns[{i}]: {component.id} is listed twice; remove one")
    import_object(config.check)(config)
    for message, level in conditions_met(config).items():
        if level == "error":
            raise ConfigError(message)
        if message not in config.warnings:
            config.warnings.append(message)
    if isinstance(config, TextConfig) and (check := config.generation.chosen.check):
        import_object(check)(config)


def without_prompts(pool_class: Any) -> str:
    """Why a run cannot use a datapool, if its samples have no prompts."""
    return "" if getattr(pool_class, "has_prompts", True) else "has no prompts; it is for alg.id: reward_model"


def check_pool(
    pool: ComponentConfig | PoolShare, where: str = "datapool", why_not: Callable[[Any], str] = without_prompts
) -> None:
    """Check a datapool and, if it is a mixture, its parts."""
    id, args, pool_class = pool.id, pool.args, catalog.DataPoolRegistry.resolve(pool.id)
    if "split" in args:
        raise ConfigError(f"{where}.args.split: every run reads all three splits; remove it")
    catalog.DataPoolRegistry.check(id, args, f"{where}.args")
    if why := why_not(pool_class):
        raise ConfigError(f"{where}.id: {id} {why}")
    if inspect.isclass(pool_class) and issubclass(pool_class, Mixture):
        for number, inner in enumerate(checked_pools(args["pools"])):
            place = f"{where}.args.pools[{number}]"
            if catalog.DataPoolRegistry.takes(inner.id, "world"):
                raise ConfigError(f"{place}.id: {inner.id} needs a task, so it cannot be part of a mixture")
            check_pool(inner, place, why_not)


def check_text(config: TextConfig) -> None:
    """Check what all runs on text have."""
    check_pool(config.datapool)
    check_partner(config)
    if config.task is not None:
        catalog.TaskRegistry.check(config.task.id, config.task.args, "task.args")
    for registry, id, args, where in metrics_and_rewards(config):
        registry.check(id, args, where)
        config.warnings.extend(note for note in registry.without_effect(id, args) if note not in config.warnings)
    if config.warm_start is not None:
        check_training_args(warm_start_args(config.warm_start), "warm_start")
    for block in config.generation_blocks:
        refused = NOT_IN_ROLLOUTS if block.where.startswith("alg.policy") else None
        GenerationSettings.from_kwargs(block.kwargs, block.where, refused)
        build_post_processor(block)


def check_supervised(config: SupervisedConfig) -> None:
    check_text(config)
    if config.lora is not None:
        check_settings(config.lora)
    check_epochs(config, config.alg.training_args, config.training_args)


def check_epochs(config: RunConfig, given: Mapping[str, Any], training_args: Mapping[str, Any]) -> None:
    """Check a run that transformers' `Trainer` trains with the given ``alg.training_args``."""
    check_between_epochs(config)
    check_training_args(training_args, "alg.training_args")
    ignored = [name for name in IGNORED_ARGS if name in given]
    config.warnings.extend(f"alg.training_args.{name} has no effect here and is ignored" for name in ignored)


def check_on_policy(config: OnPolicyConfig) -> None:
    run = f"env.id: {config.env.id}"
    check_fits("alg.id", config.alg.id, catalog.AlgorithmRegistry, catalog.TurnAlgorithmRegistry, run)
    check_fits("alg.policy.id", config.alg.policy.id, catalog.PolicyRegistry, catalog.TurnPolicyRegistry, run)
    switch_algorithm(config)
    check_text(config)
    check_chosen(config)
    algorithm, policy = catalog.AlgorithmRegistry.resolve(config.alg.id), policy_class(config)
    if config.env.n_envs % n_processes() == 0:
        algorithm.check_arguments(config.alg.args, config.env.n_envs // n_processes())
    policy.check_arguments({**own_policy_args(config), "lora": config.lora})
