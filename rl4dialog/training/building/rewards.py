"""Builds the reward of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from rl4dialog.catalog import RewardFunctionRegistry
from rl4dialog.core.config import TextConfig
from rl4dialog.core.config_blocks import RewardConfig
from rl4dialog.core.types import RewardPart, clip_bounds
from rl4dialog.rewards.parts import as_parts
from rl4dialog.rollouts.reward_normalizer import RewardNormalizer
from rl4dialog.training.building.toolkit import async_calls, offered
from rl4dialog.training.reward_columns import RewardColumns

_logger = logging.getLogger(__name__)


def build_reward_parts(config: TextConfig, toolkit: Mapping[str, Any]) -> list[RewardPart]:
    """Build the reward as a list of weighted parts."""
    assert config.reward_fn is not None
    reward = reward_builder(toolkit)(config.reward_fn.id, config.reward_fn.args)
    return as_parts(reward, config.reward_fn.id)


def build_reward_columns(
    config: TextConfig, toolkit: Mapping[str, Any], parts: list[RewardPart] | None = None
) -> RewardColumns | None:
    """Build the scorer of evaluation replies, if they are to be scored by the training reward.

    Args:
        config: The run's config.
        toolkit: Result of :func:`build_toolkit`.
        parts: The reward, if it has been built already.
    """
    if config.reward_fn is None or not config.train_evaluation.score_predictions:
        return None
    parts = parts if parts is not None else build_reward_parts(config, toolkit)
    if of_tokens := [repr(part.name) for part in parts if getattr(part.function, "needs_tokens", False)]:
        _logger.warning(
            "evaluations have no metric 'reward': they score texts, and %s needs a reply's tokens", ", ".join(of_tokens)
        )
        return None
    last = max(config.train_evaluation.n_iters or 1, 1)
    reward = config.reward_fn
    return RewardColumns(parts, reward.on_error, async_calls(reward), last, reward.timeout_s, toolkit["tokenizer"])


def build_reward_normalizer(config: RewardConfig) -> RewardNormalizer | None:
    """Build the normalizer that is applied before the KL penalty, if any."""
    if config.normalize == "none" and config.clip is None:
        return None
    return RewardNormalizer(config.normalize, None if config.clip is None else clip_bounds(config.clip))


def reward_builder(toolkit: Mapping[str, Any]) -> Callable[[str, dict[str, Any]], Any]:
    """Return a function that builds a reward from id and arguments, and passes itself to composite rewards."""

    def build(id: str, args: dict[str, Any]) -> Any:
        return RewardFunctionRegistry.get(id, args, **offered(toolkit, args), build_part=build)

    return build
