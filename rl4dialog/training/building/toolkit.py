"""Objects that metrics and rewards can request by parameter name."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

from rl4dialog.catalog import MetricRegistry, RewardFunctionRegistry
from rl4dialog.core.async_calls import AsyncCalls
from rl4dialog.core.config import TextConfig
from rl4dialog.core.registry import Registry
from rl4dialog.core.seeding import derive_seed
from rl4dialog.data.run_data import Data
from rl4dialog.scores.intent import IntentClassifier
from rl4dialog.training.intent_classifier import builtin_intent_classifier, is_builtin_classifier_cached

MISSING_CLASSIFIER = object()


def build_toolkit(
    config: TextConfig, tokenizer: PreTrainedTokenizerBase, data: Data, trains_classifier: bool = True
) -> dict[str, Any]:
    """Build the objects that components can request: ``tokenizer``, ``classifier``, ``async_calls``, ``personas``.

    Args:
        config: Validated config.
        tokenizer: The run's tokenizer.
        data: The run's samples.
        trains_classifier: Whether to train the built-in classifier if it is not cached. Otherwise it is a placeholder,
            with which components can be built but not used.
    """
    toolkit: dict[str, Any] = {"tokenizer": tokenizer, "personas": data.personas}
    if config.reward_fn is not None:
        toolkit["async_calls"] = AsyncCalls(**config.reward_fn.async_calls.model_dump())
    if _needs_builtin_classifier(config):
        samples, seed = data.samples("train"), derive_seed(config.seed, "classifier")
        if not trains_classifier and not is_builtin_classifier_cached(samples, seed):
            return {**toolkit, "classifier": MISSING_CLASSIFIER}
        folder = builtin_intent_classifier(samples, data.samples("val"), seed)
        toolkit["classifier"] = IntentClassifier.from_pretrained(str(folder))
    return toolkit


def offered(toolkit: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
    """Select the objects to offer to a component with these arguments, which may name a classifier."""
    own_classifier = not _names_builtin_classifier(args)
    return {name: value for name, value in toolkit.items() if not (name == "classifier" and own_classifier)}


def _needs_builtin_classifier(config: TextConfig) -> bool:
    return any(
        "classifier" in inspect.signature(registry.resolve(id)).parameters and _names_builtin_classifier(args)
        for registry, id, args, _ in metrics_and_rewards(config)
    )


def _names_builtin_classifier(args: Mapping[str, Any]) -> bool:
    return str(args.get("model_name", args.get("intent_model", "builtin/"))).startswith("builtin/")


def metrics_and_rewards(config: TextConfig) -> Iterator[tuple[Registry, str, dict[str, Any], str]]:
    """Yield all metrics and rewards of a run, including nested ones: registry, id, arguments, path of the arguments."""

    def with_inner(
        registry: Registry, id: str, args: dict[str, Any], where: str
    ) -> Iterator[tuple[Registry, str, dict[str, Any], str]]:
        yield registry, id, args, where
        inner_rewards = getattr(registry.resolve(id), "inner_rewards", None)
        for inner in inner_rewards(args, where) if inner_rewards is not None else ():
            yield from with_inner(RewardFunctionRegistry, *inner)

    for i, metric in enumerate(config.train_evaluation.metrics):
        yield from with_inner(MetricRegistry, metric.id, metric.args, f"train_evaluation.metrics[{i}].args")
    if config.reward_fn is not None and config.uses_reward:
        yield from with_inner(RewardFunctionRegistry, config.reward_fn.id, config.reward_fn.args, "reward_fn.args")
