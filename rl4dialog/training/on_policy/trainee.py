"""Runs that train the policy on its own replies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from rl4dialog.core.config import OnPolicyConfig
from rl4dialog.envs.block_vec_env import BlockVecEnv
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training.building.algorithm import build_algorithm
from rl4dialog.training.building.policy import build_end_of_turn
from rl4dialog.training.callbacks.conversation_log import ConversationLogCallback
from rl4dialog.training.callbacks.worker_recovery import WorkerRecoveryCallback
from rl4dialog.training.checkpoint import Checkpoint
from rl4dialog.training.on_policy.state import (
    capture_state,
    find_initial_critic,
    load_initial_critic,
    restore_state,
    save_partner,
)
from rl4dialog.training.policy_trainee import PolicyTrainee
from rl4dialog.training.watch.check import RunFacts


class OnPolicyTrainee(PolicyTrainee):
    """A stable-baselines3 algorithm over whole replies.

    Args:
        config: Validated config.
        tracker: As for :class:`PolicyTrainee`.
        checkpoint: Checkpoint to resume from, if any.
    """

    labels = ("before RL", "after RL")

    def __init__(self, config: OnPolicyConfig, tracker: Tracker | None, checkpoint: Checkpoint | None = None) -> None:
        # First, because a warm start can take hours.
        critic_from = find_initial_critic(config) if checkpoint is None else None
        super().__init__(config, tracker, checkpoint)
        assert self.scorer is not None
        model = self.build_model(config, checkpoint)
        end_of_turn = build_end_of_turn(config, self.texts.tokenizer, self.texts.data.turn_marker, model)
        self.algorithm = build_algorithm(config, self.texts, model, end_of_turn, self.scorer)
        if critic_from is not None:
            load_initial_critic(self.algorithm.policy, critic_from, self._reference_hash)
        self.derive = rates_and_shown
        self._logs_conversations = config.logging.conversations
        self.follow(
            RunFacts(
                precision=config.precision,
                target_kl=config.alg.kl_div.target_kl,
                reward_weights={part.name: part.weight_at(1) for part in self.scorer.parts},
                max_turns=config.env.args.max_turns,
            )
        )

    def first_callbacks(self) -> list[BaseCallback]:
        env = self.algorithm.env
        callbacks: list[BaseCallback] = []
        if isinstance(env, BlockVecEnv) and env.max_restarts > 0:
            callbacks.append(WorkerRecoveryCallback(env))
        if self._logs_conversations:
            callbacks.append(ConversationLogCallback(self._tracker))
        return callbacks

    @property
    def stops_within_iteration(self) -> bool:
        return True  # weights do not change during a rollout, so it can be repeated

    def capture_state(self) -> dict[str, Any]:
        return {**capture_state(self.algorithm), "reference_hash": self._reference_hash}

    def save_state(self, folder: Path | None) -> None:
        super().save_state(folder)
        save_partner(self.algorithm, folder)

    def restore(self, checkpoint: Checkpoint) -> None:
        restore_state(self.algorithm, checkpoint)


def rates_and_shown(rollout: Mapping[str, Any], seconds: float) -> tuple[dict[str, float], dict[str, str]]:
    """Throughput of an iteration, and the values to display in the progress bar."""
    tokens_per_s = rollout["rollout/tokens"] / seconds
    reward, kl = rollout["rollout/task_reward"], rollout["rollout/kl"]
    shown = {"reward": f"{reward:.3f}", "KL": f"{kl:.3f}", "tokens/s": f"{tokens_per_s:.0f}"}
    return {"time/tokens_per_s": tokens_per_s}, shown
