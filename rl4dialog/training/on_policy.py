"""One on-policy run from start to end: evaluate, learn with stable-baselines3 callbacks, evaluate, save, tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import safe_mean
from tqdm import tqdm

from rl4dialog.core.config import RunConfig
from rl4dialog.functional.distributed import wait_for_all
from rl4dialog.policies.sharding import whole_weights
from rl4dialog.training import builders
from rl4dialog.training.evaluation import Evaluation, Evaluator
from rl4dialog.training.memory import peak_mib
from rl4dialog.training.plots import plot_reward_curve
from rl4dialog.training.tracking import Tracker


class TrackingCallback(BaseCallback):
    """Writes what the algorithm logs, an iteration at a time, and moves the progress bar."""

    def __init__(self, tracker: Tracker, bar: tqdm) -> None:
        super().__init__()
        self._tracker, self._bar = tracker, bar
        self.iteration = self._n_flushed = 0
        self._started = time.perf_counter()

    def _on_rollout_start(self) -> None:
        self._flush_training_infos()
        self._started = time.perf_counter()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.iteration += 1
        logged = {k: v for k, v in self.logger.name_to_value.items() if k.startswith(("rollout/", "time/"))}
        logged["rollout/ep_rew_mean"] = safe_mean([episode["r"] for episode in self.model.ep_info_buffer or []])
        self._tracker.log_rollout_infos({"iteration": self.iteration, **logged})
        self._rollout, self._rollout_ended = logged, time.perf_counter()

    def _on_training_end(self) -> None:
        self._flush_training_infos()

    def _flush_training_infos(self) -> None:
        """What ``train()`` logged after the last rollout; stable-baselines3 would only dump it after the next."""
        if self.iteration == self._n_flushed:
            return
        self._n_flushed = self.iteration
        now = time.perf_counter()
        logged = {k: v for k, v in self.logger.name_to_value.items() if k.startswith("train/")}
        logged["time/update_s"] = now - self._rollout_ended
        logged["time/tokens_per_s"] = self._rollout["rollout/tokens"] / (now - self._started)
        logged["memory/peak_mib"] = peak_mib(self.model.device)
        self._tracker.log_training_infos({"iteration": self.iteration, **logged})
        self._bar.set_postfix(
            {
                "reward": f"{self._rollout['rollout/task_reward']:.3f}",
                "KL": f"{self._rollout['rollout/kl']:.3f}",
                "tokens/s": f"{logged['time/tokens_per_s']:.0f}",
            },
            refresh=False,
        )
        self._bar.update(1)


class EvaluationCallback(BaseCallback):
    """Calls back after every ``every`` iterations, once their training is done (but not after the last)."""

    def __init__(self, on_iteration: Callable[[int], Any], every: int) -> None:
        super().__init__()
        self._on_iteration, self._every = on_iteration, every
        self._n_done = 0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self._n_done and self._n_done % self._every == 0:
            self._on_iteration(self._n_done)
        self._n_done += 1


class OnPolicyTrainer:
    """Runs a config.

    Args:
        config: Checked.
        tracker: Receives everything that is measured and saved; ``None`` in a process that is not the main one.
    """

    def __init__(self, config: RunConfig, tracker: Tracker | None = None) -> None:
        torch.manual_seed(config.seed)
        self._config, self._tracker = config, tracker
        self.tokenizer, self.data = builders.build_run_tokenizer(config)
        self.lengths = builders.run_lengths(config)
        toolkit = builders.build_toolkit(config, self.tokenizer, self.data)
        metrics = []
        if tracker is not None:
            tracker.log_info(
                "datapool: " + ", ".join(f"{len(pool)} {split} samples" for split, pool in self.data.pools.items())
            )
            metrics = builders.build_metrics(config, toolkit)
        self.evaluator = Evaluator(config, self.data, self.lengths, metrics, tracker)
        self.reward_parts = builders.build_reward_parts(config, toolkit)
        model = builders.build_language_model(config, self.tokenizer, self.data, self.lengths)
        end_of_turn = builders.build_end_of_turn(config, self.tokenizer, self.data, model)
        self.algorithm = builders.build_algorithm(
            config, self.data, model, end_of_turn, self.lengths, self.reward_parts
        )
        # Nothing goes to the console but the progress bar; the tracker writes the files.
        self.algorithm.set_logger(Logger(folder=None, output_formats=[]))

    def train_and_eval(self) -> tuple[Evaluation, Evaluation] | None:
        """Evaluate, train, evaluate, save and print a summary.

        Returns:
            The test split's evaluations before and after; ``None`` in a process that is not the main one.
        """
        n_iters = self._config.train_evaluation.n_iters or 0
        try:
            before = self._evaluate(("val", "test"), 0)
            if n_iters:
                self._learn(n_iters)
            after = self._evaluate(("val", "test"), n_iters)
        finally:
            self.algorithm.env.close()
        policy = self.algorithm.policy
        weights = whole_weights(policy.language_model) if policy.lockstep else None
        if self._tracker is None:
            return None
        self._tracker.save_auto_model(policy.language_model, self.tokenizer, policy.lora, weights)
        run_path = self._tracker.run_folder.root
        if n_iters:
            plot_reward_curve(run_path, run_path / "reward_curve.png")
        self.evaluator.summarize(before["test"], after["test"], policy, ("before RL", "after RL"))
        return before["test"], after["test"]

    def _evaluate(self, splits: Sequence[str], iteration: int) -> dict[str, Evaluation]:
        found = {split: self.evaluator.run(self.algorithm.policy, split, iteration) for split in splits}
        wait_for_all()  # for the main process, which alone measures
        return found

    def _learn(self, n_iters: int) -> None:
        n_timesteps = self.algorithm.n_steps * self.algorithm.env.num_envs
        # Closed also by an error, whose message then begins a line of its own.
        with tqdm(total=n_iters, desc="Training", unit="iteration", disable=self._tracker is None) as bar:
            callbacks: list[BaseCallback] = [
                EvaluationCallback(
                    lambda iteration: self._evaluate(("val",), iteration), self._config.train_evaluation.eval_every
                )
            ]
            if self._tracker is not None:
                callbacks.insert(0, TrackingCallback(self._tracker, bar))
            self.algorithm.learn(n_iters * n_timesteps, CallbackList(callbacks))
