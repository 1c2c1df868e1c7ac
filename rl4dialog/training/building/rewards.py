"""Builds the reward of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rl4dialog.catalog import RewardFunctionRegistry
from rl4dialog.core.config import TextConfig
from rl4dialog.core.config_blocks import RewardConfig
from rl4dialog.core.reward_parts import clip_bounds, names_needing
from rl4dialog.rollouts.reward_normalizer import RewardNormalizer
from rl4dialog.scores.parts import as_parts
from rl4dialog.scores.scoring import Scorer
from rl4dialog.training.building.partner import check_rewards
from rl4dialog.training.building.toolkit import offered
from rl4dialog.training.reward_columns import RewardColumns

_logger = logging.getLogger(__name__)


def build_scorer(config: TextConfig, toolkit: Mapping[str, Any]) -> Scorer | None:
    """Build the run's reward, if it uses one."""
    reward = config.reward_fn
    if reward is None or not config.uses_reward:
        return None
    parts = as_parts(reward_builder(toolkit)(reward.id, reward.args), reward.id)
    check_rewards(config, parts)
    each_turn = reward.pay == "turn"
    parts = [replace(part, each_turn=each_turn) if part.each_turn is None else part for part in parts]
    return Scorer(parts, reward.on_error, toolkit["async_calls"], reward.timeout_s, toolkit["tokenizer"])


def build_reward_columns(config: TextConfig, scorer: Scorer | None) -> RewardColumns | None:
    """Build the scorer of evaluation replies, if the run scores them and its reward can score texts."""
    if scorer is None or not config.train_evaluation.score_predictions:
        return None
    if names := names_needing(scorer.parts, "tokens"):
        _logger.warning("evaluations have no metric 'reward': they score texts, but %s needs a reply's tokens", names)
        return None
    return RewardColumns(scorer, max(config.train_evaluation.n_iters or 1, 1))


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
