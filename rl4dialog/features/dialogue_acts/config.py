"""Config of turn-level runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from rl4dialog.core.config import is_text
from rl4dialog.core.config_blocks import (
    TEXT_GENERATION,
    AlgConfig,
    ComponentConfig,
    EnvironmentsConfig,
    RunConfig,
    TrainEvaluationConfig,
    id_of,
)

DIALOGUE_ACTS = "dialogue_acts"
"""Id of the environment whose agent speaks in acts, and with a person in words."""
TURN_GOALS = "turn_goals"
"""Id of the environment whose agent chooses a goal for each of its turns."""


class TurnLevelAlgConfig(AlgConfig):
    policy: ComponentConfig = Field(default_factory=lambda: ComponentConfig(id="mlp_policy"))
    """Policy."""


class TurnLevelEnvConfig(EnvironmentsConfig):
    vec_env: Literal["blocks", "subproc", "dummy"] = "dummy"
    """Placement of the environments, as on text."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of each environment; those of ``gymnasium.make`` for an id registered with gymnasium."""

    @model_validator(mode="after")
    def _workers_are_used(self) -> TurnLevelEnvConfig:
        if self.n_workers is not None and self.vec_env != "blocks":
            raise ValueError(f"n_workers has a meaning only with vec_env: blocks, not with {self.vec_env}")
        return self


class TurnLevelEvaluationConfig(TrainEvaluationConfig):
    n_iters: int = Field(ge=0)
    """Number of iterations."""
    n_eval_episodes: int = Field(default=20, ge=1)
    """``env.id`` other than ``text_generation`` only: number of episodes of an evaluation."""
    deterministic: bool = True
    """``env.id`` other than ``text_generation`` only: evaluate the most likely actions instead of sampled ones."""
    also_sampled: bool = False
    """``env.id`` other than ``text_generation`` only: also evaluate sampled actions, as metrics ``sampled/...``."""


class TurnLevelConfig(RunConfig):
    """Config of a stable-baselines3 or sb3-contrib run in an environment with plain gymnasium spaces."""

    trainee = "rl4dialog.features.dialogue_acts.trainee:TurnLevelTrainee"
    check = "rl4dialog.features.dialogue_acts.environments:check_turn_level"
    plan = "rl4dialog.features.dialogue_acts.environments:turn_level_rows"
    shipped = "town_guide/{id}"
    similar = "cart_pole/ppo"
    has_rollouts = True
    not_logged = ("log_infos", "info_fns", "conversations")
    agent = "rl4dialog.features.dialogue_acts.agent:chosen_agent"
    conditions = "rl4dialog.features.dialogue_acts.conditions:own_conditions"
    alg: TurnLevelAlgConfig
    """Algorithm and policy."""
    env: TurnLevelEnvConfig
    """Environments."""
    task: ComponentConfig | None = None
    """World of task-oriented dialogues. Required for ``env.id: dialogue_acts``, ``datapool.id: task_dialogues`` and the
    partner ``agenda_user``.
    """
    reward_fn: ComponentConfig | None = None
    """Reward of a turn, for ``env.id: dialogue_acts``, or a reward of conversations, for ``turn_goals``."""
    datapool: ComponentConfig | None = None
    """``env.id: turn_goals`` only: personas, and how conversations begin."""
    speaker: ComponentConfig | None = None
    """``env.id: turn_goals`` only: what puts the agent's goals into words."""
    partner: ComponentConfig | None = None
    """``env.id: turn_goals`` only: conversation partner."""
    estimator: ComponentConfig | None = None
    """``env.id: turn_goals`` only: estimate of the partner's state for the policy. Default: ``bag_of_words``."""
    nlu: ComponentConfig | None = None
    """``env.id: dialogue_acts`` only: understanding of the user's words. Default: acts reach the agent as acts."""
    tracker: ComponentConfig | None = None
    """``env.id: dialogue_acts`` only: tracker of constraints and bookings. Default: fixed rules."""
    nlg: ComponentConfig | None = None
    """``env.id: dialogue_acts`` only: words of the agent's acts. Default: acts reach the user as acts."""
    warm_start: ComponentConfig | None = None
    """Training before the first iteration, such as ``id: bc``."""
    train_evaluation: TurnLevelEvaluationConfig
    """Training length, evaluations and checkpoints."""

    @classmethod
    def claims(cls, given: Mapping[str, Any]) -> bool:
        return not is_text(given)

    @classmethod
    def selected_by(cls, given: Mapping[str, Any]) -> str | None:
        return f"env.id: {id_of(given, 'env')}"

    @classmethod
    def hint(cls, given: Mapping[str, Any]) -> str:
        of_text = {"tokenizer"} if id_of(given, "env") == TURN_GOALS else {"tokenizer", "datapool"}
        return f"language models are trained with env.id: {TEXT_GENERATION}, the default" if of_text & {*given} else ""

    @property
    def can_talk(self) -> bool:
        return self.env.id == DIALOGUE_ACTS

    @property
    def instead(self) -> str:
        talk = "" if not self.can_talk else "; to talk to it, use rl4dialog chat, or rl4dialog ui without other modes"
        return f"in Python, rl4dialog.load_agent loads its policy{talk}"
