"""Loads the policy of a turn-level run, or the rule policy of its environment, for use without training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.policies import BasePolicy

from rl4dialog.core.config import TurnLevelConfig
from rl4dialog.core.errors import ConfigError
from rl4dialog.envs.sb3_workers import close
from rl4dialog.inference.saved_run import find_checkpoint, model_folder, read_run_config
from rl4dialog.policies.plain import load_plain_policy
from rl4dialog.training.building.turn_level import build_evaluation_envs, build_turn_level_algorithm
from rl4dialog.training.random_state import random_states_kept
from rl4dialog.training.turn_level.players import RulePlayer, player_names


@dataclass(frozen=True)
class TurnLevelAgent:
    """A policy, with the config of its environment.

    Attributes:
        config: Config of the run.
        name: Name for display and for records; without a policy, that of a player of the environment, such as ``rule``.
        policy: The trained policy; ``None`` for a player of the environment.
    """

    config: TurnLevelConfig
    name: str
    policy: BasePolicy | None = None

    def player(self, envs: Any) -> Any:
        """What acts in these environments, as `evaluate_episodes` expects it.

        Raises:
            ConfigError: If it is a player that the environments do not have.
        """
        if self.policy is not None:
            return self.policy
        names = player_names(envs)
        if self.name not in names:
            has = f"has {', '.join(names)}" if names else "has no rule policy (no method rule_action)"
            raise ConfigError(f"--policy {self.name}: env.id: {self.config.env.id} {has}")
        return RulePlayer(envs, self.name)

    @property
    def is_masked(self) -> bool:
        """Whether the policy chooses among the actions that the environment allows."""
        return isinstance(self.policy, MaskableActorCriticPolicy)

    def envs(self, split: str, n_envs: int | None = None) -> Any:
        """Environments of a split, by default as many as in the run's evaluations."""
        return build_evaluation_envs(self.config, split, n_envs=n_envs)


def load_agent(run: str | Path, checkpoint: str | int | None = None, trust: bool = False) -> BasePolicy:
    """Load the policy of a run in an environment other than ``text_generation``.

    Args:
        run: The run folder, which may have been moved.
        checkpoint: ``None`` for the final policy; otherwise an iteration number, ``"last"`` or ``"best"``.
        trust: Whether to allow the code that the run's config executes, such as its ``imports`` or the module of an
            ``env.id``, and the addresses, keys and files that it names.

    Returns:
        stable-baselines3's policy: ``policy.predict(observation, deterministic=True)`` returns an action.

    Raises:
        RunFolderError: If the folder contains no run, no policy, or no such checkpoint.
        ConfigError: If it is a run of a language model, its config needs ``trust``, or the environment cannot be built.
        ModelError: If the weights do not match.
    """
    folder = Path(run).expanduser()
    config = read_run_config(folder, trust=trust)
    if not isinstance(config, TurnLevelConfig):
        raise ConfigError(f"{folder} is a run of a language model; use rl4dialog.load_policy")
    return load_turn_level_policy(config, folder, checkpoint)


def load_turn_level_policy(config: TurnLevelConfig, run: Path, checkpoint: str | int | None = None) -> BasePolicy:
    """Load the policy of a run whose config was already read; see `load_agent`."""
    folder = model_folder(run, None if checkpoint is None else find_checkpoint(run, checkpoint))
    env = config.env.model_copy(update={"vec_env": "dummy", "n_workers": None})
    in_process = config.model_copy(update={"env": env})
    with random_states_kept():  # stable-baselines3 seeds all generators
        algorithm = build_turn_level_algorithm(in_process, buffer_size=env.n_envs, device="auto")
    close(algorithm.env)
    load_plain_policy(algorithm.policy, folder)
    algorithm.policy.set_training_mode(False)
    return algorithm.policy  # type: ignore[no-any-return]
