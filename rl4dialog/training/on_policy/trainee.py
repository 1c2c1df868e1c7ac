"""Runs that train the policy on its own replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.logger import Logger

from rl4dialog.core.config import OnPolicyConfig
from rl4dialog.envs.block_vec_env import BlockVecEnv
from rl4dialog.envs.sb3_workers import close
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.saving import save_policy
from rl4dialog.policies.sharding import whole_weights
from rl4dialog.runs.progress import Progress
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training.building.algorithm import build_algorithm
from rl4dialog.training.building.policy import build_end_of_turn
from rl4dialog.training.callbacks.conversation_log import ConversationLogCallback
from rl4dialog.training.callbacks.tracking import TrackingCallback
from rl4dialog.training.callbacks.watch import WatchCallback
from rl4dialog.training.callbacks.worker_recovery import WorkerRecoveryCallback
from rl4dialog.training.checkpoint import Checkpoint
from rl4dialog.training.evaluation import Evaluation
from rl4dialog.training.on_policy.state import capture_state, find_initial_critic, load_initial_critic, restore_state
from rl4dialog.training.text_trainee import TextTrainee
from rl4dialog.training.watch.check import RunFacts


class OnPolicyTrainee(TextTrainee):
    """A stable-baselines3 algorithm over whole replies.

    Args:
        config: Validated config.
        tracker: As for :class:`TextTrainee`.
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
        # Only the progress bar writes to the console; the tracker writes the files.
        self.algorithm.set_logger(Logger(folder=None, output_formats=[]))
        self._is_resumed = checkpoint is not None
        self._logs_conversations = config.logging.conversations
        self._watch: WatchCallback | None = None
        if tracker is not None:
            facts = RunFacts(
                precision=config.precision,
                target_kl=config.alg.kl_div.target_kl,
                reward_weights={part.name: part.weight_at(1) for part in self.scorer.parts},
                max_turns=config.env.args.max_turns,
            )
            self._watch = WatchCallback(facts, tracker.run_folder)

    @property
    def iteration(self) -> int:
        return int(self.algorithm.iteration)

    def generator(self) -> LMActorCriticPolicy:
        return self.algorithm.policy  # type: ignore[no-any-return]

    def learn(self, callbacks: Sequence[BaseCallback]) -> None:
        env, n_left = self.algorithm.env, self.n_iters - self.iteration
        with Progress("", "iteration", self.n_iters, initial=self.iteration) as progress:
            # Worker recovery comes first, because tracking writes its logged values.
            first: list[BaseCallback] = []
            if isinstance(env, BlockVecEnv) and env.max_restarts > 0:
                first.append(WorkerRecoveryCallback(env))
            last: list[BaseCallback] = []
            if self._logs_conversations:
                first.append(ConversationLogCallback(self._tracker))
            if self._tracker is not None and self._watch is not None:
                tracking = TrackingCallback(self._tracker, progress, rates_and_shown)
                first += [tracking, self._watch]
                last = [tracking.last]
            self.algorithm.learn(
                n_left * self.algorithm.timesteps_per_iteration,
                CallbackList([*first, *callbacks, *last]),
                log_interval=1,  # clear the logger after each iteration; A2C's default is every hundred
                reset_num_timesteps=not self._is_resumed,
            )

    def stop(self) -> None:
        self.algorithm.stop_requested = True

    @property
    def is_within_iteration(self) -> bool:
        return False  # weights do not change during a rollout, so the state at its start is kept instead

    @property
    def stops_within_iteration(self) -> bool:
        return True

    def capture_state(self) -> dict[str, Any]:
        return {**capture_state(self.algorithm), "reference_hash": self._reference_hash}

    def save_state(self, folder: Path | None) -> None:
        save_policy(self.algorithm.policy, folder)

    def restore(self, checkpoint: Checkpoint) -> None:
        restore_state(self.algorithm, checkpoint)

    def save_model(self, folder_name: str) -> Path | None:
        policy = self.algorithm.policy
        weights = whole_weights(policy.language_model) if policy.lockstep else None
        if self._tracker is None:
            return None
        parts = (policy.language_model, self.texts.tokenizer, policy.lora, weights)
        return self._tracker.save_auto_model(*parts, folder_name)

    def summarize(self, before: Evaluation, after: Evaluation) -> None:
        super().summarize(before, after)
        if self._watch is not None and self._watch.summary is not None:
            print(self._watch.summary)

    def close(self) -> None:
        close(self.algorithm.env)


def rates_and_shown(rollout: Mapping[str, Any], seconds: float) -> tuple[dict[str, float], dict[str, str]]:
    """Throughput of an iteration, and the values to display in the progress bar."""
    tokens_per_s = rollout["rollout/tokens"] / seconds
    reward, kl = rollout["rollout/task_reward"], rollout["rollout/kl"]
    shown = {"reward": f"{reward:.3f}", "KL": f"{kl:.3f}", "tokens/s": f"{tokens_per_s:.0f}"}
    return {"time/tokens_per_s": tokens_per_s}, shown
