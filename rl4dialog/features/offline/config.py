"""Config of runs that learn from logged conversations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import model_validator

from rl4dialog.core.config import PolicyRunConfig, is_text
from rl4dialog.core.config_blocks import AlgConfig, PolicyConfig, id_of
from rl4dialog.core.features import all_ids
from rl4dialog.core.protocols import PromptPrefix
from rl4dialog.core.registry import import_object

_PACKAGE = "rl4dialog.features.offline"


class OfflineAlgConfig(AlgConfig):
    policy: PolicyConfig
    """Policy. Required unless ``alg.id`` is ``supervised`` or ``reward_model``."""
    rewards: Literal["log", "reward_fn"] | None = None
    """Offline algorithms only: learn from the rewards of the log, or from those that ``reward_fn`` gives its replies.
    Default: those of the log, if the datapool has any.
    """


class OfflineConfig(PolicyRunConfig):
    """Config of a run that learns from logged conversations."""

    trainee = f"{_PACKAGE}.building:OfflineTrainee"
    check = f"{_PACKAGE}.building:check_offline"
    plan = f"{_PACKAGE}.building:offline_rows"
    shipped = "random_walks/llama_{id}"
    algorithms = "rl4dialog.catalog:OfflineAlgorithmRegistry"
    build = f"{_PACKAGE}.building:build_offline_algorithm"
    log = f"{_PACKAGE}.building:build_log"
    measure = f"{_PACKAGE}.evaluation:value_numbers"
    conditions = f"{_PACKAGE}.conditions:own_conditions"
    checks = tuple(
        f"{_PACKAGE}.doctor:{name}" for name in ("logged_conversations", "logged_rewards", "prior_likelihood")
    )
    has_rollouts = False
    not_logged = ("log_infos", "info_fns")
    alg: OfflineAlgConfig
    """Algorithm and policy."""

    @classmethod
    def claims(cls, given: Mapping[str, Any]) -> bool:
        id, alg, ids = id_of(given, "alg"), given.get("alg"), all_ids()
        # A custom algorithm that learns from rollouts has a KL penalty.
        has_none = isinstance(alg, Mapping) and bool(alg.get("policy")) and alg.get("kl_div") is None
        others = (None, *ids["algorithm"], *ids["kind of run"])
        return is_text(given) and (id in ids["offline algorithm"] or (has_none and id not in others))

    @property
    def uses_reward(self) -> bool:
        return self.reward_fn is not None

    @property
    def prompt_prefix(self) -> PromptPrefix | None:
        prefix: PromptPrefix | None = import_object(f"{_PACKAGE}.returns:return_prefix")(self)
        return prefix

    @model_validator(mode="after")
    def _reward_exists(self) -> OfflineConfig:
        if self.alg.rewards == "reward_fn" and self.reward_fn is None:
            raise ValueError("alg.rewards: reward_fn needs the key 'reward_fn'")
        return self
