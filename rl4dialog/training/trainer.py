"""Complete run: evaluate, train, evaluate, save, summarize. The trainee implements the training."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from rl4dialog.core.config_blocks import KeepBestConfig, RunConfig
from rl4dialog.core.errors import CheckpointError, RewardError
from rl4dialog.core.registry import import_object
from rl4dialog.core.run_format import naming_writer
from rl4dialog.functional.distributed import all_gather_object, barrier
from rl4dialog.runs.plots import plot_reward_curve_or_warn
from rl4dialog.runs.progress import duration, say
from rl4dialog.runs.report.pages import write_report_or_warn
from rl4dialog.runs.run_folder import MODEL_FOLDER, ROLLOUT_INFO_FILE
from rl4dialog.runs.summary import is_headline
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training.building.components import build_callbacks
from rl4dialog.training.building.conditions import refuse_useless
from rl4dialog.training.callbacks.base import ConfiguredCallbacks, EvaluationResult, MetricHistory, recorded_evaluations
from rl4dialog.training.callbacks.run import CheckpointCallback, EvaluationCallback
from rl4dialog.training.checkpoint import Checkpoint, CheckpointStore, describe, go_back_to
from rl4dialog.training.evaluation import Evaluation, metrics_of
from rl4dialog.training.interruption import StopSignals
from rl4dialog.training.random_state import random_states_kept
from rl4dialog.training.trainee import Trainee

SPLITS = ("val", "test")


class Trainer:
    """Runs a config.

    Args:
        config: Validated config.
        tracker: Records all results and models; ``None`` in all processes but the main one.
        checkpoint: Checkpoint to resume from; by default a new run starts.
        signals: Signals that stop the run during training.

    Raises:
        ConfigError: If a setting of a new run cannot do what it is for.
        CheckpointError: If the checkpoint does not match the config, or the data or the reference differ from those at
            the start of the run. The run folder is left unchanged.

    Attributes:
        evaluations: Results of all evaluations of the run, identical in every process.
    """

    def __init__(
        self,
        config: RunConfig,
        tracker: Tracker | None = None,
        checkpoint: Checkpoint | None = None,
        signals: StopSignals | None = None,
    ) -> None:
        if checkpoint is None:
            refuse_useless(config)
        torch.manual_seed(config.seed)
        self._config, self._tracker = config, tracker
        self._checkpoint, self._signals = checkpoint, signals or StopSignals()
        self.evaluations: list[EvaluationResult] = []
        self._latest: dict[str, Evaluation] = {}
        self._reward_error: str | None = None  # from the last evaluation
        toolkit = {
            "evaluations": self.evaluations,
            "save_model": lambda folder_name: self.trainee.save_model(folder_name),
            "run_folder": tracker.run_folder if tracker is not None else None,
        }
        self._configured = ConfiguredCallbacks(build_callbacks(config, toolkit))
        self.trainee: Trainee = import_object(config.trainee)(config, tracker, checkpoint)
        self._before = self._resume(checkpoint) if checkpoint is not None else None

    def train_and_eval(self) -> tuple[Evaluation, Evaluation] | None:
        """Evaluate, train, evaluate, save and print a summary.

        Returns:
            The test split's evaluations before and after training; ``None`` in all processes but the main one.

        Raises:
            RunInterrupted: If a signal stopped the run.
            RewardError: If a reward failed. If it failed in an evaluation between or after iterations, the model, a
                checkpoint and the metrics are saved first.
        """
        try:
            before = self._before or self._evaluate(SPLITS, 0, reward_must_work=True)
            if self._tracker is not None:
                self._tracker.run_folder.discard_replaced()
            # A resumed run may have no iterations left, but the steps after the last one remain to be done.
            if self.trainee.n_iters or self._checkpoint is not None:
                self._learn()
            # Save before the evaluation, which may fail.
            self.trainee.save_model(MODEL_FOLDER)
            if self._reward_error is None:
                n_done = self.trainee.iteration
                known = {result.split for result in self.evaluations if result.iteration == n_done}
                self._evaluate([split for split in SPLITS if split not in known], n_done)
            after = {**before, **self._latest}
        finally:
            self.trainee.close()
        n_done = self.trainee.iteration
        if self._reward_error is not None:
            saved = f"its model is in {MODEL_FOLDER}/, and --resume continues the run"
            raise RewardError(f"{self._reward_error} (in the evaluation after iteration {n_done}; {saved})")
        self.trainee.measure_references()
        if self._tracker is None:
            return None
        run_path = self._tracker.run_folder.root
        if self._config.has_rollouts and (run_path / ROLLOUT_INFO_FILE).is_file():
            plot_reward_curve_or_warn(run_path, run_path / "reward_curve.png")
        write_report_or_warn(run_path, n_done)
        self._tracker.log_result(n_done, metrics_of(before), metrics_of(after))
        self._tracker.show()
        self.trainee.summarize(before["test"], after["test"])
        return before["test"], after["test"]

    def _resume(self, checkpoint: Checkpoint) -> dict[str, Evaluation]:
        """Restore a checkpoint and the run folder; returns the evaluations before training, by split."""
        try:
            with naming_writer(checkpoint.path.parents[1]):
                self.trainee.restore(checkpoint)
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            if "out of memory" in str(error):
                raise
            what = f"the checkpoint {checkpoint.path} cannot be restored, because its state is not what a run writes"
            raise CheckpointError(f"{what} ({error!r:.200}); remove it to resume from the one before") from error
        before = {split: self.trainee.recall(split, 0) for split in SPLITS}
        barrier()
        # After the barrier: if any process rejects the checkpoint, the folder must be left unchanged.
        if self._tracker is not None:
            go_back_to(checkpoint, self._tracker.run_folder)
            with random_states_kept():  # outputs may use random numbers
                self._tracker.open()
            self.evaluations += recorded_evaluations(self._tracker.run_folder)
        # In place, because the callbacks hold this list.
        self.evaluations[:] = all_gather_object(self.evaluations)[0]
        say(f"Resumed {describe(checkpoint.state)} of {self.trainee.n_iters}", on_terminals=True)
        return before

    def _evaluate(self, splits: Sequence[str], iteration: int, reward_must_work: bool = False) -> dict[str, Evaluation]:
        found = {}
        for split in splits:
            started = time.perf_counter()
            found[split] = self.trainee.evaluate(split, iteration, reward_must_work)
            shown = "".join(f"{key} {value:.3f}, " for key, value in found[split].metrics.items() if is_headline(key))
            say(f"evaluation of {split} after iteration {iteration}: {shown}{duration(time.perf_counter() - started)}")
        errors = [str(evaluation.reward_error) for evaluation in found.values() if evaluation.reward_error]
        self._reward_error = next(iter(all_gather_object(errors)[0]), None)
        # Only the main process computes metrics; the others receive its results.
        measured = all_gather_object(metrics_of(found))[0]
        self._latest.update(found)
        self.evaluations += [EvaluationResult(iteration, split, metrics) for split, metrics in measured.items()]
        return found

    def _learn(self) -> None:
        settings = self._config.train_evaluation
        store = CheckpointStore(self._tracker.run_folder if self._tracker is not None else None, settings.keep_last)
        checkpoints = self._checkpoint_callback(store)

        def evaluate(iteration: int) -> None:
            self._evaluate(("val",), iteration)
            if self._reward_error is not None:
                self.trainee.stop()
            checkpoints.evaluated()

        evaluation = EvaluationCallback(evaluate, self._config.train_evaluation.eval_every)
        self._signals.deferred = True
        # In the order in which they act between iterations.
        self.trainee.learn([checkpoints, evaluation, self._configured])
        self._signals.deferred = False
        checkpoints.stop_if_asked()  # a signal may have arrived during the evaluation after the last iteration
        if self.trainee.iteration < (n_iters := self.trainee.n_iters):
            reason = next((reason for reason in all_gather_object(self._configured.stopped_by) if reason), "a callback")
            reason = reason if self._reward_error is None else "a reward that failed in an evaluation"
            say(f"stopped after iteration {self.trainee.iteration} of {n_iters} by {reason}", on_terminals=True)
        if settings.keep_best is not None and settings.keep_best.restore and self._reward_error is None:
            self._return_to_best(store, settings.keep_best)

    def _return_to_best(self, checkpoints: CheckpointStore, settings: KeepBestConfig) -> None:
        """Return to the best iteration, whose evaluations are then those after training."""
        n_done = self.trainee.iteration
        if (best := checkpoints.best()) is None or best.iteration == n_done:
            return
        self.trainee.restore(best)
        known = {each.split: each.metrics for each in self.evaluations if each.iteration == best.iteration}
        self._latest.update({split: self.trainee.recall(split, best.iteration) for split in known})
        which = f"after iteration {best.iteration}" if best.iteration else "before training"
        value = known["val"][settings.metric]
        kept = f"kept the model {which}, of {n_done} iterations: its {settings.metric} on val was the best, {value:.4g}"
        say(kept, on_terminals=True)

    def _checkpoint_callback(self, store: CheckpointStore) -> CheckpointCallback:
        settings, keep_best = self._config.train_evaluation, None
        if (best := settings.keep_best) is not None:
            keep_best = MetricHistory(self.evaluations, best.metric, best.mode, "train_evaluation.keep_best")
        may_keep_start = best is not None and best.restore
        run = (self._tracker, self._signals, self.trainee)
        return CheckpointCallback(store, *run, settings.save_every, keep_best, may_keep_start)
