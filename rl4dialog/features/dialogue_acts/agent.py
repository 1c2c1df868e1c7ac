"""The policy of a turn-level run, or a player of its environment: loading, evaluation by episodes, and simulation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.policies import BasePolicy

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.files import write_json
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import AGENT, SPEAKERS
from rl4dialog.data.conversations.record import ROLES, VERSION
from rl4dialog.data.pool import check_split
from rl4dialog.features.dialogue_acts.config import TurnLevelConfig
from rl4dialog.features.dialogue_acts.environments import build_evaluation_envs, build_turn_level_algorithm
from rl4dialog.features.dialogue_acts.policies import load_plain_policy
from rl4dialog.features.dialogue_acts.trainee import (
    RETURN,
    RulePlayer,
    episodes_of_split,
    evaluate_episodes,
    mean_scores,
    player_names,
    player_scores,
)
from rl4dialog.inference.loading import Agent, find_checkpoint, model_folder
from rl4dialog.inference.offline_evaluation import check_is_new, make_folder, print_metrics
from rl4dialog.inference.simulation import write_simulated
from rl4dialog.runs.reading import TURNS_KEY
from rl4dialog.runs.report.metrics import sample_estimate
from rl4dialog.training.random_state import random_states_kept

_BATCH = 100
_ROLES = {name: ROLES[speaker] for speaker, name in SPEAKERS.items()}


@dataclass(frozen=True)
class TurnLevelAgent(Agent):
    """A policy, with the config of its environment."""

    config: TurnLevelConfig
    # Name for display and for records; without a policy, that of a player of the environment, such as ``rule``.
    name: str
    policy: BasePolicy | None = None  # the trained policy; ``None`` for a player of the environment

    def player(self, envs: Any) -> Any:
        """What acts in these environments, as `evaluate_episodes` expects it."""
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

    def evaluate(self, split: str, folder: Path, about: Mapping[str, Any]) -> dict[str, float]:
        """Evaluate an agent, write ``metrics.json`` and ``predictions.json``, and print a table.

        For the final policy of a run, the metrics are identical to those that the run logged. Beside them stand 95 %
        intervals over episodes, if there are at least ``MIN_SAMPLES``, and the metrics of the rule policy, if there is
        one.
        """
        check_split(split)
        check_is_new(folder)
        envs = self.envs(split)
        found = episodes_of_split(self.config, self.player(envs), envs, split)
        episodes = [{"split_name": split, **episode} for episode in found]
        metrics = mean_scores(episodes)
        players = player_scores(self.config, envs, split) if self.policy is not None else {}
        envs.close()
        scores = {key: np.array([episode.get(key, math.nan) for episode in episodes], float) for key in metrics}
        known = {key: sample_estimate(column).interval for key, column in scores.items()}
        intervals = {key: interval for key, interval in known.items() if interval is not None}
        make_folder(folder)
        write_json(folder / "predictions.json", episodes)
        counts = {"split": split, "n_samples": len(episodes)}
        limits = {key: [interval.low, interval.high] for key, interval in intervals.items()}
        write_json(
            folder / "metrics.json", {**about, **counts, "metrics": metrics, "intervals": limits, "players": players}
        )
        print_metrics(split, len(episodes), metrics, {}, folder, players=players, intervals=intervals)
        return metrics

    def simulate(self, split: str, n: int, seed: int, path: Path) -> int:
        """Write dialogues as a log, which the datapools ``conversations`` and ``conversational`` read; print a table.

        Each line has the ``messages``, also with the acts; the ``rewards`` of the assistant's; ``return``, their sum;
        and all else that `rl4dialog.features.dialogue_acts.tasks.outcome.transcript` returns.
        """
        envs = self.envs(split)
        player, deterministic = self.player(envs), self.config.train_evaluation.deterministic

        def about(number: int) -> dict[str, Any]:
            return {"sample_id": number, "seed": derive_seed(seed, "simulation", split), "system": self.name}

        def lines(numbers: range) -> Iterator[dict[str, Any]]:
            of_batch = derive_seed(seed, "simulation", split, numbers.start)
            for episode in evaluate_episodes(player, envs, len(numbers), deterministic, of_batch):
                if TURNS_KEY not in episode:
                    raise ConfigError(f"env.id: {self.config.env.id} has no dialogues; simulate needs some")
                yield _line(episode)

        return write_simulated(path, n, _BATCH, about, lines, getattr(envs, "is_rated", True))


def chosen_agent(config: TurnLevelConfig, name: str, run: Path | None, checkpoint: str | int | None) -> TurnLevelAgent:
    """The policy of a run whose config was already read, or without a run the environment's player of this name."""
    if run is None:
        return TurnLevelAgent(config, name)
    folder = model_folder(run, None if checkpoint is None else find_checkpoint(run, checkpoint))
    env = config.env.model_copy(update={"vec_env": "dummy", "n_workers": None})
    in_process = config.model_copy(update={"env": env})
    with random_states_kept():  # stable-baselines3 seeds all generators
        algorithm = build_turn_level_algorithm(in_process, buffer_size=env.n_envs, device="auto")
    algorithm.env.close()
    load_plain_policy(algorithm.policy, folder)
    algorithm.policy.set_training_mode(False)
    return TurnLevelAgent(config, name, algorithm.policy)


def _line(episode: Mapping[str, Any]) -> dict[str, Any]:
    messages, rewards, n_given = [], [], 0
    for turn in map(dict, episode[TURNS_KEY]):
        message = {"role": _ROLES[turn.pop("speaker")], "content": turn.pop("text")}
        if "reward" in turn:
            rewards.append(turn.pop("reward"))
        n_given += bool(turn.pop("given", False))
        messages.append({**message, **turn})
    kept = ("outcome", "ended_by", "failures", "goal", "goal_text", "persona", "partner_persona")
    fixed = {"version": VERSION, "agent": ROLES[AGENT], "n_given": n_given}
    said = {"messages": messages, "rewards": rewards, "return": episode.get(RETURN)}
    return {**fixed, **said, **{key: episode[key] for key in kept if key in episode}}
