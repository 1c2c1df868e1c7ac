"""The config of runs whose policy takes whole actions in an environment, instead of writing text token by token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from rl4dialog.core.config_blocks import ComponentConfig, EnvironmentsConfig, TrainEvaluationConfig
from rl4dialog.core.run_config import AlgConfig, RunConfig, id_of

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

    has_rollouts = True
    alg: TurnLevelAlgConfig
    """Algorithm and policy."""
    env: TurnLevelEnvConfig
    """Environments."""
    task: ComponentConfig | None = None
    """World of task-oriented dialogues. Required for ``env.id: dialogue_acts``, ``datapool.id: task_dialogues`` and the
    partner ``agenda_user``.
    """
    reward_fn: ComponentConfig | None = None
    """Reward of a turn, for environments that take one: ``dialogue_acts``, or a reward of conversations for
    ``turn_goals``.
    """
    datapool: ComponentConfig | None = None
    """``env.id: turn_goals`` only: personas, and how conversations begin."""
    speaker: ComponentConfig | None = None
    """``env.id: turn_goals`` only: what puts the agent's goals into words."""
    partner: ComponentConfig | None = None
    """``env.id: turn_goals`` only: conversation partner."""
    estimator: ComponentConfig | None = None
    """``env.id: turn_goals`` only: estimate of the partner's state, which the policy observes. Default:
    ``bag_of_words``.
    """
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
    def selected_by(cls, given: Mapping[str, Any]) -> str | None:
        return f"env.id: {id_of(given, 'env')}"

    @model_validator(mode="after")
    def _log_infos_are_of_text(self) -> TurnLevelConfig:
        for key in ("log_infos", "conversations"):
            if getattr(self.logging, key):
                raise ValueError(f"logging.{key} has no meaning with env.id: {self.env.id}")
        return self
