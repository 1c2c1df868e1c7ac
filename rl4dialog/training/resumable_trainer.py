"""transformers' `Trainer`, resumable without pickles, with a clean progress bar and without side effects.

The state between two steps is JSON and safetensors. transformers' own checkpoints are not used to resume: they contain
pickles, lose the loss since the last log line, and shuffle an unfinished epoch anew with ``group_by_length``.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer import TRAINER_STATE_NAME

from rl4dialog.core.errors import ConfigError
from rl4dialog.functional import distributed
from rl4dialog.policies.saving import load_optimizer
from rl4dialog.runs.progress import Progress, say
from rl4dialog.training.checkpoint import Checkpoint
from rl4dialog.training.random_state import random_state, random_states_kept, set_random_state

_LINE_EVERY_S = 10.0


@contextmanager
def unchanged(model: PreTrainedModel) -> Iterator[None]:
    """Restore what a `Trainer` changes besides weights and device: random states, mode and cache switch."""
    was_training, use_cache = model.training, getattr(model.config, "use_cache", None)
    try:
        with random_states_kept():
            yield
    finally:
        model.train(was_training)
        model.config.use_cache = use_cache


def pad_labelled_texts(tokenizer: PreTrainedTokenizerBase, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Pad texts on the right, (B, longest): decoders read their output off the last token that is not padding."""
    return dict(tokenizer.pad(examples, padding_side="right", return_tensors="pt"))


UNTRAINED: dict[str, Any] = {"step": 0, "epoch": 0.0, "total_loss": 0.0, "unlogged_loss": 0.0, "train_runtime_s": 0.0}
"""State before the first step."""


class TrainingLoop(Protocol):
    """Acts between the steps of a :class:`ResumableTrainer`, when a step is logged and evaluated.

    Attributes:
        checkpoint: Checkpoint to continue from; its weights are already loaded. ``None`` to start.
        first_random: Random state at the start of the first epoch, if there is a checkpoint.
    """

    checkpoint: Checkpoint | None
    first_random: dict[str, Any] | None

    def after_step(self, trainer: ResumableTrainer) -> None:
        """Act after a step that does not finish an epoch."""

    def after_epoch(self, trainer: ResumableTrainer) -> None:
        """Act after an epoch. Setting ``trainer.control.should_training_stop`` ends the training."""


class ResumableTrainer(Trainer, TrainerCallback):
    """A `Trainer` that resumes bit-identically, with the toolkit's progress bar. It is a callback of itself.

    Several processes share the examples of every batch, and compute the same as one.

    Attributes:
        description: What the progress bar says.
        last_state: Result of :meth:`capture_state` after the last epoch.
    """

    description = ""
    _progress: Progress | None = None

    def __init__(self, loop: TrainingLoop | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.remove_callback(PrinterCallback)
        self.add_callback(self)
        self.last_state = UNTRAINED if loop is None or loop.checkpoint is None else loop.checkpoint.state
        self._loop, self._checkpoint = loop, loop.checkpoint if loop is not None else None
        self._epoch_ended, self._epoch_random = False, random_state()
        self._unlogged_loss, self._carried_loss = torch.tensor(0.0), 0.0
        self._started, self._seconds_before = time.perf_counter(), self.last_state["train_runtime_s"]

    def train(self, *args: Any, **kwargs: Any) -> Any:
        if self._checkpoint is None:
            return super().train(*args, **kwargs)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / TRAINER_STATE_NAME).write_text(json.dumps(self._checkpoint.state["trainer"]))
            return super().train(folder, *args, **kwargs)

    def capture_state(self) -> dict[str, Any]:
        """Return all state between two steps except weights and the optimizer's tensors, as JSON values."""
        assert self.optimizer is not None and self.lr_scheduler is not None
        self.store_flos()
        scaler = self.accelerator.scaler
        return {
            "step": self.state.global_step,
            "epoch": float(self.state.epoch or 0.0),
            "total_loss": self._total_loss_scalar,
            "unlogged_loss": self._unlogged_loss.item(),
            "last_logged_step": self._globalstep_last_logged,
            "train_runtime_s": self._seconds_before + time.perf_counter() - self._started,
            "trainer": dataclasses.asdict(self.state),
            "param_groups": [
                {key: value for key, value in group.items() if key != "params"} for group in self.optimizer.param_groups
            ],
            "lr_scheduler": self.lr_scheduler.state_dict(),
            "scaler": scaler.state_dict() if scaler is not None else None,
            "random": distributed.all_gather_object(random_state()),
            "epoch_random": self._epoch_random,
        }

    # -- moments of the training loop -----------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restore what transformers resets at the start of ``train()``."""
        self._n_shown, self._loss_shown = state.global_step, dict[str, str]()
        steps = {"initial": state.global_step, "line_every_s": _LINE_EVERY_S}
        self._progress = Progress(self.description, "step", state.max_steps, **steps)
        self._started = time.perf_counter()
        model: Any = self.model
        distributed.broadcast([*model.parameters(), *model.buffers()])
        if self._checkpoint is None:
            return
        assert self._loop is not None and self._loop.first_random is not None
        saved = self._checkpoint.state
        self._total_loss_scalar, self._carried_loss = saved["total_loss"], saved["unlogged_loss"]
        self._globalstep_last_logged = saved["last_logged_step"]
        set_random_state(self._loop.first_random)

    def on_epoch_begin(self, *args: Any, **kwargs: Any) -> None:
        """Keep the random state that decides the order of an epoch's batches, the same in all processes."""
        torch.set_rng_state(distributed.all_gather_object(torch.get_rng_state())[0])
        self._epoch_random = random_state()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self._progress is not None
        self._progress.advance(state.global_step - self._n_shown, self._loss_shown)
        self._n_shown = state.global_step

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self._loss_shown = {"loss": f"{float(logs['loss']):.3f}"}

    def on_epoch_end(self, *args: Any, **kwargs: Any) -> None:
        """Note that the following log and evaluation are those of an epoch."""
        self._epoch_ended = True

    def rows_of(self, batch: dict[str, Tensor], own: Tensor) -> dict[str, Tensor]:
        """Rows of a batch, by their numbers."""
        return {name: rows[own] for name, rows in batch.items()}

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Loss of a batch, whose examples are shared by the processes. The last part of a step sums the gradients."""
        if distributed.n_processes() > 1:
            if num_items_in_batch is None:
                what = f"the loss of {type(self.model).__name__} does not accept the number of labelled tokens"
                raise ConfigError(f"{what}, so it can only be trained in one process")
            own = torch.arange(distributed.process_index(), len(inputs["labels"]), distributed.n_processes())
            if not len(own):  # fewer examples than processes: the gradient of this one is 0
                own, num_items_in_batch = torch.tensor([0]), num_items_in_batch * math.inf
            inputs = self.rows_of(inputs, own)
        loss = distributed.all_reduce(super().training_step(model, inputs, num_items_in_batch))
        if self.accelerator.sync_gradients:
            distributed.all_reduce_gradients(model.parameters())
        # transformers sums this up until the next log line. On resume, the first step carries the sum so far.
        carried, self._carried_loss = self._carried_loss, 0.0
        return loss + carried if carried else loss

    def _maybe_log_save_evaluate(self, tr_loss: Tensor, *args: Any, **kwargs: Any) -> None:
        super()._maybe_log_save_evaluate(tr_loss, *args, **kwargs)
        self._unlogged_loss = tr_loss
        # transformers calls this after each step, and once more after an epoch.
        at_end, self._epoch_ended = self._epoch_ended, False
        if at_end:
            self.last_state = self.capture_state()
        if self._loop is None:
            return
        paused = time.perf_counter()
        if at_end:
            self._loop.after_epoch(self)
        elif self.state.epoch % 1 and not self.control.should_training_stop:
            self._loop.after_step(self)
        self._started += time.perf_counter() - paused

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Build the schedule of the learning rate. A warmup begins at 0, so the only step of a training has none."""
        if num_training_steps == 1:
            self.args.warmup_steps = 0
        elif self.args.get_warmup_steps(num_training_steps) >= num_training_steps:
            peak, n = f"learning_rate: {self.args.learning_rate:g} is not reached", num_training_steps
            say(f"note: {peak}, because the warmup takes all {n:,} optimizer steps; lower it", on_terminals=True)
        return super().create_scheduler(num_training_steps, optimizer)

    # -- what transformers would load from pickles ----------------------------------------------------------------

    def _load_from_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        pass  # the weights are already loaded

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if self._checkpoint is None:
            return
        assert self.optimizer is not None and self.lr_scheduler is not None
        state = self._checkpoint.state
        load_optimizer(self.optimizer, self._checkpoint.path)
        for group, saved in zip(self.optimizer.param_groups, state["param_groups"], strict=True):
            group.update(saved)
        self.lr_scheduler.load_state_dict(dict(state["lr_scheduler"]))

    def _load_scaler(self, checkpoint: str | None) -> None:
        if self._checkpoint is not None and self._checkpoint.state["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(self._checkpoint.state["scaler"])

    def _load_rng_state(self, checkpoint: str | None) -> None:
        # Called once the finished batches of an unfinished epoch are skipped, and otherwise before an epoch begins.
        if self._checkpoint is not None and self._checkpoint.is_unfinished:
            set_random_state(self._checkpoint.of_process("random"))


def run_trainer(
    trainer_class: Callable[..., ResumableTrainer],
    model: PreTrainedModel,
    args: TrainingArguments,
    collator: Any,
    train: Sequence[Any],
    val: Sequence[Any] | None = None,
    *,
    loop: TrainingLoop | None = None,
    description: str,
) -> dict[str, Any]:
    """Run a `Trainer` on a model. Everything but weights is restored afterwards; see :func:`unchanged`."""
    # Who needs a warm-started model may be computing without gradients.
    with unchanged(model), torch.enable_grad():
        try:
            sets = {"data_collator": collator, "train_dataset": train, "eval_dataset": val}
            trainer = trainer_class(loop, model=model, args=args, **sets)
        except (ValueError, TypeError, ImportError) as error:
            raise ConfigError(f"alg.training_args: {error}") from error
        trainer.description = description
        try:
            trainer.train()
        finally:
            if trainer._progress is not None:
                trainer._progress.close()
    return trainer.last_state
