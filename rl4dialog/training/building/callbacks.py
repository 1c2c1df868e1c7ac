"""Builds the callbacks of a config."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback

from rl4dialog.catalog import CallbackRegistry
from rl4dialog.core.config import RunConfig
from rl4dialog.core.config_blocks import inner_component
from rl4dialog.core.errors import ConfigError
from rl4dialog.training.callbacks.base import IterationCallback


def check_callback(id: str, args: Mapping[str, Any], where: str, is_inner: bool = False) -> None:
    """Check a callback of the config, without building it.

    Args:
        id: Id of the callback.
        args: Its arguments.
        where: Path of ``args`` in the config.
        is_inner: Whether it is called by another callback.
    """
    CallbackRegistry.check(id, args, where)
    component = CallbackRegistry.resolve(id)
    if inspect.isclass(component) and not issubclass(component, BaseCallback):
        raise ConfigError(f"callback {id!r} must derive from stable_baselines3.common.callbacks.BaseCallback")
    if not (inspect.isclass(component) and issubclass(component, IterationCallback)):
        return
    if is_inner:
        raise ConfigError(f"callback {id!r} does not act in _on_step, so another callback cannot call it")
    for inner in getattr(component, "inner_callbacks", lambda _: ())(args):
        chosen = inner_component(inner, f"{where}.callback")
        check_callback(chosen.id, chosen.args, f"{where}.callback.args", is_inner=True)


def check_without_rollouts(id: str, args: Mapping[str, Any], where: str) -> None:
    """Check that a callback is useful in a supervised run."""
    component = CallbackRegistry.resolve(id)
    is_ours = inspect.isclass(component) and issubclass(component, IterationCallback)
    if not is_ours or component.reads_rollouts(args):
        raise ConfigError(
            f"{where}: callback {id!r} acts on rollouts, and alg.id: supervised makes none; use a callback that acts "
            f"between epochs, such as early_stopping or save_best_model with a metric of the val split"
        )


def build_callbacks(config: RunConfig, toolkit: Mapping[str, Any]) -> list[tuple[str, BaseCallback]]:
    """Build the config's callbacks; returns id and object of each.

    Args:
        config: Validated config.
        toolkit: Objects that callbacks can request by parameter name: ``evaluations``, ``save_model``, ``run_folder``.
    """

    def build(id: str, args: dict[str, Any] | None = None) -> BaseCallback:
        built = CallbackRegistry.get(id, args, **toolkit, build_callback=build)
        return built if isinstance(built, BaseCallback) else ConvertCallback(built)

    return [(callback.id, build(callback.id, callback.args)) for callback in config.callbacks]
