"""Builds the environments of ``env.id: turn_goals``: samples, both sides of the conversations, reward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rl4dialog.catalog import (
    DataPoolRegistry,
    EstimatorRegistry,
    PartnerRegistry,
    RewardFunctionRegistry,
    SpeakerRegistry,
)
from rl4dialog.core.config import TURN_GOALS, TurnLevelConfig
from rl4dialog.core.config_blocks import ComponentConfig
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.protocols import Partner
from rl4dialog.data.pool import SPLITS
from rl4dialog.data.run_data import Data
from rl4dialog.rollouts.turn_goals.players import greedy_order
from rl4dialog.rollouts.turn_goals.vec_env import TurnGoalVecEnv
from rl4dialog.scores.persona_ranking import PersonaRanking
from rl4dialog.tasks.turn_goals.goals import chosen_goals
from rl4dialog.training.building.partner import check_partners_data, resolve_partner
from rl4dialog.training.building.pools import build_pool

_N_FOR_ORDER = 200  # conversations in which the goals of each turn are compared to find a fixed order
_DEFAULT_ESTIMATOR = ComponentConfig(id="bag_of_words")


@dataclass(frozen=True)
class GoalParts:
    """What the environments of all splits share: the functions load models once, at their first call."""

    data: Data
    speaker: Callable[..., Any]
    partner: Callable[..., Any]
    estimator: Callable[[], Any]
    reward: Any


def check_turn_goals(config: TurnLevelConfig) -> None:
    """Check goals, datapool, partner and reward. Nothing is loaded."""
    run, env = f"env.id: {TURN_GOALS}", config.env
    assert config.datapool is not None and config.partner is not None and config.speaker is not None
    assert config.reward_fn is not None
    if env.vec_env != "dummy":
        raise ConfigError(
            f"env.vec_env: {env.vec_env} cannot be combined with {run}: all conversations run in the main process, "
            f"where the models are; remove it"
        )
    goals = chosen_goals(env.args["goals"], "env.args.goals")
    if config.speaker.id == "scripted":
        SpeakerRegistry.get("scripted").check(goals)
    pool, partner, reward = config.datapool, config.partner, config.reward_fn
    if "split" in pool.args:
        raise ConfigError("datapool.args.split: every run reads all three splits; remove it")
    for key, registry, chosen, argument in (
        ("datapool", DataPoolRegistry, pool, "world"),
        ("partner", PartnerRegistry, partner, "world"),
        ("partner", PartnerRegistry, partner, "own_side"),
    ):
        registry.check(chosen.id, chosen.args, f"{key}.args")
        if registry.takes(chosen.id, argument):
            what = "needs a task" if argument == "world" else "speaks with the model that a run trains"
            raise ConfigError(f"{key}.id: {chosen.id} cannot be combined with {run}: it {what}, and there is none")
    RewardFunctionRegistry.check(reward.id, reward.args, "reward_fn.args")
    if not RewardFunctionRegistry.takes(reward.id, "pays_now"):
        raise ConfigError(
            f"reward_fn.id: {reward.id} cannot be combined with {run}, whose rewards are of conversations and are due "
            f"after every turn (they have an argument pays_now); use persona_ranking"
        )


def build_goal_parts(config: TurnLevelConfig) -> GoalParts:
    """Load the samples.

    The functions of the parts raise as the components do, and a ``DataError`` for a sample that does not suit the
    partner.
    """
    pool, partner, speaker, reward = config.datapool, config.partner, config.speaker, config.reward_fn
    assert pool is not None and partner is not None and speaker is not None and reward is not None
    data = Data({split: build_pool(pool.id, {**pool.args, "split": split}) for split in SPLITS}, None)
    estimator = config.estimator or _DEFAULT_ESTIMATOR
    personas = data.personas("partner_persona")

    def build_partner(**lengths: int) -> Any:
        built = resolve_partner(partner, **lengths)
        if isinstance(built, Partner) and built.checks_samples:
            check_partners_data(built, data, data.pools)
        return built

    return GoalParts(
        data,
        functools.cache(functools.partial(SpeakerRegistry.get, speaker.id, speaker.args)),
        functools.cache(build_partner),
        functools.cache(functools.partial(EstimatorRegistry.get, estimator.id, estimator.args, personas=personas)),
        RewardFunctionRegistry.get(reward.id, reward.args, personas=data.personas, pays_now=True),
    )


def build_goal_envs(
    config: TurnLevelConfig, split: str, n_envs: int, parts: GoalParts, is_evaluation: bool = False
) -> TurnGoalVecEnv:
    """Build the environments of a split.

    Args:
        config: Validated config.
        split: Split of the samples.
        n_envs: Number of conversations.
        parts: What the environments of all splits share.
        is_evaluation: Whether episodes are numbered, with transcripts and the player ``best_order``.
    """
    build: Callable[..., TurnGoalVecEnv] = functools.partial(
        TurnGoalVecEnv,
        **config.env.args,
        speaker=parts.speaker,
        partner=parts.partner,
        estimator=parts.estimator,
        turn_reward=parts.reward,
        outcomes=parts.reward.ranks if isinstance(parts.reward, PersonaRanking) else None,
    )

    @functools.cache
    def best_order() -> list[int]:
        samples = parts.data.samples("train")
        env = build(samples=samples, n_envs=min(_N_FOR_ORDER, len(samples)), is_numbered=True)
        return greedy_order(env)

    evaluating: dict[str, Any] = (
        {"is_numbered": True, "keeps_transcripts": True, "best_order": best_order} if is_evaluation else {}
    )
    envs = build(samples=parts.data.samples(split), n_envs=n_envs, **evaluating)
    envs.parts = parts
    return envs
