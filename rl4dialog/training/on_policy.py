"""One on-policy run from start to end: evaluate, learn with stable-baselines3 callbacks, evaluate, save, tell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.logger import Logger

from rl4dialog.core.config import OnPolicyConfig
from rl4dialog.core.errors import CheckpointError, RewardError
from rl4dialog.envs.block_vec_env import BlockVecEnv
from rl4dialog.envs.sb3_workers import close
from rl4dialog.functional.distributed import gather, wait_for_all
from rl4dialog.policies.hashing import weights_hash
from rl4dialog.policies.sharding import whole_weights
from rl4dialog.runs.plots import plot_reward_curve_or_warn
from rl4dialog.runs.progress import Progress, say
from rl4dialog.runs.provenance import changed_splits, record_contents
from rl4dialog.runs.report.run_report import write_report_or_warn
from rl4dialog.runs.results import write_result
from rl4dialog.runs.run_folder import MODEL_FOLDER
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training.building.algorithm import build_algorithm
from rl4dialog.training.building.callbacks import build_callbacks
from rl4dialog.training.building.language_model import build_language_model
from rl4dialog.training.building.lengths import run_lengths
from rl4dialog.training.building.metrics import build_metrics
from rl4dialog.training.building.policy import build_end_of_turn
from rl4dialog.training.building.rewards import build_reward_columns, build_reward_parts
from rl4dialog.training.building.tokenizer import build_run_tokenizer
from rl4dialog.training.building.toolkit import build_toolkit
from rl4dialog.training.callbacks.checkpoint import CheckpointCallback
from rl4dialog.training.callbacks.configured import ConfiguredCallbacks
from rl4dialog.training.callbacks.evaluation import EvaluationCallback
from rl4dialog.training.callbacks.history import EvaluationResult, recorded_evaluations
from rl4dialog.training.callbacks.tracking import TrackingCallback
from rl4dialog.training.callbacks.watch import WatchCallback
from rl4dialog.training.callbacks.worker_recovery import WorkerRecoveryCallback
from rl4dialog.training.checkpoint import Checkpoint, CheckpointStore, restore_state
from rl4dialog.training.evaluation import Evaluation, Evaluator, metrics_of
from rl4dialog.training.interruption import StopSignals
from rl4dialog.training.processes import has_checkpoints
from rl4dialog.training.random_state import random_states_kept
from rl4dialog.training.resume import go_back_to
from rl4dialog.training.watch.check import RunFacts


class OnPolicyTrainer:
    """Runs a config.

    Args:
        config: Checked.
        tracker: Receives everything that is measured and saved; ``None`` in a process that is not the main one.
        checkpoint: Where to go on from; by default the run begins.
        signals: That may stop the run while it learns.

    Raises:
        CheckpointError: If the checkpoint does not fit the config, or data or reference are not those that the run
            began with; the run folder is then as it was.

    Attributes:
        evaluations: What all evaluations of the run have found, the same in every process.
    """

    def __init__(
        self,
        config: OnPolicyConfig,
        tracker: Tracker | None = None,
        checkpoint: Checkpoint | None = None,
        signals: StopSignals | None = None,
    ) -> None:
        torch.manual_seed(config.seed)
        self._config, self._tracker = config, tracker
        self._checkpoint, self._signals = checkpoint, signals or StopSignals()
        self._watch: WatchCallback | None = None
        run_folder = tracker.run_folder if tracker is not None else None
        self.evaluations: list[EvaluationResult] = []
        self._latest: dict[str, Evaluation] = {}
        self._reward_error: str | None = None  # that of the last evaluation
        self._configured = ConfiguredCallbacks(
            build_callbacks(
                config,
                {"evaluations": self.evaluations, "save_model": self.save_model, "run_folder": run_folder},
            )
        )
        self.tokenizer, self.data = build_run_tokenizer(config)
        if checkpoint is not None and run_folder is not None and (changed := changed_splits(run_folder, self.data)):
            raise CheckpointError(
                f"datapool {config.datapool.id!r} does not give the samples that the run in {run_folder.root} was "
                f"begun with, in that order (split {', '.join(changed)}): give its files as they were, or begin "
                f"another run with another --experiment_name"
            )
        self.lengths = run_lengths(config, self.tokenizer, self.data)
        toolkit = build_toolkit(config, self.tokenizer, self.data)
        metrics = []
        if tracker is not None:
            tracker.log_info(
                "datapool: " + ", ".join(f"{len(pool)} {split} samples" for split, pool in self.data.pools.items())
            )
            metrics = build_metrics(config, toolkit)
        self.reward_parts = build_reward_parts(config, toolkit)
        rewards = build_reward_columns(config, toolkit, self.reward_parts)
        self.evaluator = Evaluator(config, self.data, self.lengths, metrics, tracker, rewards)
        model = build_language_model(config, self.tokenizer, self.data, self.lengths)
        self._reference_hash = weights_hash(model)
        if checkpoint is not None and checkpoint.state["reference_hash"] != self._reference_hash:
            raise CheckpointError(
                f"the model that the run began with, and with it the reference of the KL penalty, is not the one of "
                f"{checkpoint.path} any more: give alg.policy.args.model_name and the warm start's data as they were"
            )
        if tracker is not None:
            record_contents(tracker.run_folder, self.data, self._reference_hash)
        end_of_turn = build_end_of_turn(config, self.tokenizer, self.data, model)
        self.algorithm = build_algorithm(config, self.data, model, end_of_turn, self.lengths, self.reward_parts)
        # Nothing goes to the console but the progress bar; the tracker writes the files.
        self.algorithm.set_logger(Logger(folder=None, output_formats=[]))
        self._before = self._go_on(checkpoint) if checkpoint is not None else None

    def train_and_eval(self) -> tuple[Evaluation, Evaluation] | None:
        """Evaluate, train, evaluate, save and print a summary.

        Returns:
            The test split's evaluations before and after; ``None`` in a process that is not the main one.

        Raises:
            RunInterrupted: If a signal stopped it.
            RewardError: If a reward failed. Where that was in an evaluation between or after iterations, the model, a
                checkpoint and the metrics are saved first.
        """
        n_iters = self._config.n_iters
        try:
            before = self._before or self._evaluate(("val", "test"), 0, reward_must_work=True)
            # Of a resumed run, also where no iteration is left: what follows the last one is still to be done.
            if n_iters or self._checkpoint is not None:
                self._learn(n_iters)
            if self._reward_error is None:
                self._evaluate(self._missing_splits(), self.algorithm.iteration)
            after = {**before, **self._latest}
        finally:
            close(self.algorithm.env)
        self.save_model(MODEL_FOLDER)
        if self._reward_error is not None:
            resume = ", and --resume continues the run" if has_checkpoints() else ""
            raise RewardError(
                f"{self._reward_error} (in the evaluation after iteration {self.algorithm.iteration}; the model as it "
                f"was then is in {MODEL_FOLDER}/{resume})"
            )
        if self._tracker is None:
            return None
        run_path = self._tracker.run_folder.root
        if self.algorithm.iteration:
            plot_reward_curve_or_warn(run_path, run_path / "reward_curve.png")
        write_report_or_warn(run_path)
        write_result(self._tracker.run_folder, self.algorithm.iteration, metrics_of(before), metrics_of(after))
        self._tracker.show()
        self.evaluator.summarize(before["test"], after["test"], self.algorithm.policy, ("before RL", "after RL"))
        if self._watch is not None and self._watch.summary is not None:
            print(self._watch.summary)
        return before["test"], after["test"]

    def save_model(self, folder_name: str) -> Path | None:
        """Write the language model as it is now into a folder of the run; all processes must call it.

        Returns:
            The folder; ``None`` in a process that is not the main one.
        """
        policy = self.algorithm.policy
        weights = whole_weights(policy.language_model) if policy.lockstep else None
        if self._tracker is None:
            return None
        return self._tracker.save_auto_model(policy.language_model, self.tokenizer, policy.lora, weights, folder_name)

    def _go_on(self, checkpoint: Checkpoint) -> dict[str, Evaluation]:
        """Go back to a checkpoint, and in the run folder too; returns the evaluations before training, by split."""
        restore_state(self.algorithm, checkpoint)
        before = {split: self.evaluator.recall(split, 0) for split in ("val", "test")}
        wait_for_all()
        # Only now, as a checkpoint that is refused, by whichever process, leaves the folder as it was.
        if self._tracker is not None:
            go_back_to(checkpoint, self._tracker.run_folder)
            with random_states_kept():  # from what an output may draw
                self._tracker.open()
            self.evaluations += recorded_evaluations(self._tracker.run_folder)
        # In place, as the callbacks hold this list.
        self.evaluations[:] = gather(self.evaluations)[0]
        say(f"Resumed after iteration {checkpoint.iteration} of {self._config.n_iters}", on_terminals=True)
        return before

    def _watch_callback(self, tracker: Tracker) -> WatchCallback:
        facts = RunFacts(
            precision=self._config.precision,
            target_kl=self._config.alg.kl_div.target_kl,
            reward_weights={part.name: part.weight_at(1) for part in self.reward_parts},
        )
        return WatchCallback(facts, tracker.run_folder)

    def _evaluate(self, splits: Sequence[str], iteration: int, reward_must_work: bool = False) -> dict[str, Evaluation]:
        policy = self.algorithm.policy
        found = {split: self.evaluator.run(policy, split, iteration, reward_must_work) for split in splits}
        errors = [str(evaluation.reward_error) for evaluation in found.values() if evaluation.reward_error]
        self._reward_error = next(iter(gather(errors)[0]), None)
        # The main process alone measures, and the others wait for what it has found.
        measured = gather({split: evaluation.metrics for split, evaluation in found.items()})[0]
        self._latest.update(found)
        self.evaluations += [EvaluationResult(iteration, split, metrics) for split, metrics in measured.items()]
        return found

    def _missing_splits(self) -> list[str]:
        """Those that are not evaluated after the present iteration."""
        done = {result.split for result in self.evaluations if result.iteration == self.algorithm.iteration}
        return [split for split in ("val", "test") if split not in done]

    def _learn(self, n_iters: int) -> None:
        n_done = self.algorithm.iteration
        n_timesteps = self.algorithm.n_steps * self.algorithm.env.num_envs
        with Progress("", "iteration", n_iters, initial=n_done) as progress:
            checkpoints = self._checkpoint_callback()
            self._signals.deferred = checkpoints is not None
            self.algorithm.learn(
                (n_iters - n_done) * n_timesteps,
                CallbackList(self._callbacks(progress, checkpoints)),
                log_interval=1,  # the logger forgets between iterations; by default A2C's does so after a hundred
                reset_num_timesteps=self._checkpoint is None,
            )
            self._signals.deferred = False
            if checkpoints is not None:  # a signal may have come in the evaluation after the last iteration
                checkpoints.stop_if_asked()
        if self.algorithm.iteration < n_iters:
            reason = next((reason for reason in gather(self._configured.stopped_by) if reason), "a callback")
            reason = reason if self._reward_error is None else "a reward that failed in an evaluation"
            say(f"stopped after iteration {self.algorithm.iteration} of {n_iters} by {reason}", on_terminals=True)

    def _checkpoint_callback(self) -> CheckpointCallback | None:
        settings = self._config.train_evaluation
        if not has_checkpoints():
            return None
        return CheckpointCallback(
            CheckpointStore(self._tracker.run_folder if self._tracker is not None else None, settings.keep_last),
            self._tracker,
            self._signals,
            self._reference_hash,
            settings.save_every,
            (settings.keep_best.metric, settings.keep_best.mode) if settings.keep_best is not None else None,
            self.evaluations,
        )

    def _callbacks(self, progress: Progress, checkpoints: CheckpointCallback | None) -> list[BaseCallback]:
        """In the order in which they act between iterations."""

        def evaluate(iteration: int) -> None:
            found = self._evaluate(("val",), iteration)
            self.algorithm.stop_requested |= self._reward_error is not None
            if checkpoints is not None:
                checkpoints.evaluated(found["val"].metrics)

        tracking = TrackingCallback(self._tracker, progress) if self._tracker is not None else None
        self._watch = self._watch_callback(self._tracker) if self._tracker is not None else None
        env = self.algorithm.env
        is_recoverable = isinstance(env, BlockVecEnv) and env.max_restarts > 0
        callbacks: list[BaseCallback | None] = [
            WorkerRecoveryCallback(env) if is_recoverable else None,  # first, as tracking writes what it logs
            tracking,
            self._watch,
            checkpoints,
            EvaluationCallback(evaluate, self._config.train_evaluation.eval_every),
            self._configured,
            tracking.last if tracking is not None else None,
        ]
        return [callback for callback in callbacks if callback is not None]
