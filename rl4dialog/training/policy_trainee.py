"""Base class of runs that train a policy with an algorithm of stable-baselines3's kind."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.logger import Logger

from rl4dialog.core.config import PolicyRunConfig
from rl4dialog.envs.sb3_workers import close
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.saving import save_policy
from rl4dialog.policies.sharding import whole_weights
from rl4dialog.policies.value_guidance import save_value_guidance
from rl4dialog.runs.progress import Progress
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training.building.policy import is_guided
from rl4dialog.training.callbacks.tracking import Derive, TrackingCallback
from rl4dialog.training.callbacks.watch import WatchCallback
from rl4dialog.training.checkpoint import Checkpoint
from rl4dialog.training.evaluation import Evaluation
from rl4dialog.training.reward_columns import TOTAL
from rl4dialog.training.text_trainee import TextTrainee
from rl4dialog.training.watch.check import RunFacts


class PolicyTrainee(TextTrainee):
    """An algorithm that trains a policy in iterations, and its callbacks.

    Subclasses build :attr:`algorithm`, then call :meth:`follow`.

    Args:
        config: Validated config.
        tracker: As for :class:`TextTrainee`.
        checkpoint: Checkpoint to resume from, if any.

    Attributes:
        algorithm: The algorithm.
        derive: Maps an iteration's logged values and duration to further values to log and to display.
    """

    algorithm: Any
    derive: Derive

    def __init__(self, config: PolicyRunConfig, tracker: Tracker | None, checkpoint: Checkpoint | None = None) -> None:
        super().__init__(config, tracker, checkpoint)
        self._is_resumed, self._is_guided = checkpoint is not None, is_guided(config)
        self._watch: WatchCallback | None = None

    def follow(self, facts: RunFacts) -> None:
        """Record and watch what the algorithm logs, and prepare the partner of evaluations."""
        self.evaluator.begin_run(self.algorithm.policy)
        # Only the progress bar writes to the console; the tracker writes the files.
        self.algorithm.set_logger(Logger(folder=None, output_formats=[]))
        if self._tracker is not None:
            self._watch = WatchCallback(facts, self._tracker.run_folder)

    @property
    def iteration(self) -> int:
        return int(self.algorithm.iteration)

    def generator(self) -> LMActorCriticPolicy:
        return self.algorithm.policy  # type: ignore[no-any-return]

    def evaluate(self, split: str, iteration: int, reward_must_work: bool = False) -> Evaluation:
        found = super().evaluate(split, iteration, reward_must_work)
        if iteration == 0 and split == "val" and self._watch is not None:
            self._watch.check_start([each[TOTAL] for each in found.predictions if TOTAL in each])
        return found

    def learn(self, callbacks: Sequence[BaseCallback]) -> None:
        n_left = self.n_iters - self.iteration
        with Progress("", "iteration", self.n_iters, initial=self.iteration) as progress:
            first, last = self.first_callbacks(), []
            if self._tracker is not None and self._watch is not None:
                tracking = TrackingCallback(self._tracker, progress, self.derive)
                first += [tracking, self._watch]
                last = [tracking.last]
            self.algorithm.learn(
                n_left * self.algorithm.timesteps_per_iteration,
                CallbackList([*first, *callbacks, *last]),
                log_interval=1,  # clear the logger after each iteration; A2C's default is every hundred
                reset_num_timesteps=not self._is_resumed,
            )

    def first_callbacks(self) -> list[BaseCallback]:
        """Callbacks that act before all others, because tracking writes the values that they log."""
        return []

    def stop(self) -> None:
        self.algorithm.stop_requested = True

    @property
    def is_within_iteration(self) -> bool:
        return False  # the state at the start of an iteration is kept instead

    def save_state(self, folder: Path | None) -> None:
        save_policy(self.algorithm.policy, folder)

    def save_model(self, folder_name: str) -> Path | None:
        policy = self.algorithm.policy
        weights = whole_weights(policy.language_model) if policy.lockstep else None
        if self._tracker is None:
            return None
        parts = (policy.language_model, self.texts.tokenizer, policy.lora, weights)
        values = partial(save_value_guidance, policy) if self._is_guided else None
        return self._tracker.save_auto_model(*parts, folder_name, values)

    def summarize(self, before: Evaluation, after: Evaluation) -> None:
        super().summarize(before, after)
        if self._watch is not None and self._watch.summary is not None:
            print(self._watch.summary)

    def close(self) -> None:
        close(self.algorithm.env)
