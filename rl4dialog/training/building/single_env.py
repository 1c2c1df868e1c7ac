"""The environment of a config alone, for stable-baselines3 and everything else that takes gymnasium's environments."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl4dialog.core.config import OnPolicyConfig, RunConfig, load_config, parse_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.protocols import (
    BatchedConversationReward,
    ConversationReward,
    ObservationLike,
    Partner,
    RewardFunction,
)
from rl4dialog.core.reward_parts import FinishedReplies, RewardPart
from rl4dialog.core.types import Dialogue
from rl4dialog.core.yaml_loader import apply_overrides
from rl4dialog.envs.text_generation import TextGenEnv
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.scores.scoring import Scorer
from rl4dialog.training.assembly import Assembly
from rl4dialog.training.building.algorithm import partner_and_env_kwargs
from rl4dialog.training.building.components import import_and_check
from rl4dialog.training.building.policy import OF_REFERENCE, policy_class, policy_kwargs


class ConfiguredEnv(TextGenEnv):
    """A :class:`TextGenEnv` that also knows the policy of its config.

    Attributes:
        policy_class: Class of the policy, for an algorithm of stable-baselines3.
        policy_kwargs: Its arguments, with the language model.
    """

    policy_class: type[LMActorCriticPolicy]
    policy_kwargs: dict[str, Any]


class _OneReply(RewardFunction):
    """A reward of batches, paid for one reply at a time."""

    def __init__(self, scorer: Scorer, part: RewardPart) -> None:
        self._scorer, self._part = replace(scorer, parts=[part], on_error="raise"), part

    def __call__(
        self,
        prev_observation: ObservationLike,
        action: int,
        current_observation: ObservationLike,
        done: bool,
        meta_info: dict[str, Any] | None = None,
    ) -> float:
        if not done:
            return 0.0
        now = current_observation
        texts = [now.prompt_or_input_text], [now.context_text], [now.target_or_reference_texts]
        return self._scorer.values(FinishedReplies(*texts, [meta_info or {}]))[self._part.name][0]


class _OneConversation(ConversationReward):
    """A reward of batches of conversations; what it pays for earlier turns is paid with the last one."""

    def __init__(self, scorer: Scorer, part: RewardPart) -> None:
        self._scorer, self._part = replace(scorer, parts=[part], on_error="raise"), part

    def __call__(self, dialogue: Dialogue, over: bool) -> float:
        replies = FinishedReplies([""], [""], [[]], dones=[over], dialogues=[dialogue])
        (value,) = self._scorer.values(replies)[self._part.name]
        return value + sum(replies.earlier[self._part.name][0])


def make_env(
    config: str | Path | Mapping[str, Any] | RunConfig, overrides: Mapping[str, Any] | None = None
) -> ConfiguredEnv:
    """Build the environment of a run with ``env.id: text_generation``: a step is a token, an episode a conversation.

    Rewards of batches, such as those with a model, are computed for each reply. The penalty for the KL divergence, and
    what normalizes rewards, belong to rl4dialog's algorithms, and are left out.

    Args:
        config: A YAML file (``task_configs/...`` is a shipped one), its content, or a config that has been loaded.
        overrides: Values by config key, such as ``{"env.args.max_episode_length": 20}``.

    Returns:
        A :class:`~rl4dialog.envs.text_generation.TextGenEnv` with the attributes ``policy_class`` and
        ``policy_kwargs``: the policy of the config, for an algorithm of stable-baselines3.

    Raises:
        RL4DialogError: If the config has a mistake, or no such environment.
    """
    settings = [f"{key}={json.dumps(value)}" for key, value in (overrides or {}).items()]
    if isinstance(config, (str, Path)):
        checked = load_config(config, settings)
    else:
        given = config.model_dump(mode="json") if isinstance(config, RunConfig) else copy.deepcopy(dict(config))
        checked = parse_config(apply_overrides(given, settings), "the config")
    if not isinstance(checked, OnPolicyConfig):
        problem = f"a run with {checked.selection} has no environment whose steps are tokens"
        raise ConfigError(f"{problem}; start from task_configs/small_talk/gpt2_ppo.yml")
    import_and_check(checked, config if isinstance(config, (str, Path)) else Path("config.yml"))
    parts = Assembly(checked)
    partner, kwargs = partner_and_env_kwargs(parts, checked)
    if partner is not None and not isinstance(partner, Partner):
        chosen = checked.env.args.conversation_partner
        assert chosen is not None
        problem = f"partner {chosen.id!r} speaks with a language model of the run, not inside of an environment"
        raise ConfigError(f"{problem}; use another partner, or rl4dialog.train")
    assert parts.scorer is not None
    kwargs["reward_parts"] = [_alone(parts.scorer, part) for part in parts.scorer.parts]
    env = ConfiguredEnv(**kwargs)
    env.policy_class, env.policy_kwargs = policy_class(checked), policy_kwargs(parts, checked)
    if not env.policy_class.maskable:  # no KL penalty, so no reference
        kept = {name: value for name, value in env.policy_kwargs.items() if name not in OF_REFERENCE}
        env.policy_kwargs = {**kept, "reference": "none"}
    return env


def _alone(scorer: Scorer, part: RewardPart) -> RewardPart:
    if not part.in_main_process:
        return part
    alone = _OneConversation if isinstance(part.function, BatchedConversationReward) else _OneReply
    return replace(part, function=alone(scorer, part), in_main_process=False)
