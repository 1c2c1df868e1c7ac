"""Around transformers' `Trainer`: a clean progress bar, no side effects, and batches of labelled texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, Trainer, TrainerCallback

from rl4dialog.runs.progress import Progress
from rl4dialog.training.random_state import random_states_kept

_LINE_EVERY_S = 10.0


class ProgressBar(TrainerCallback):
    """Progress bar over all steps, with the loss."""

    def __init__(self, description: str) -> None:
        self._description = description
        self._progress: Progress | None = None
        self._n_done = 0
        self._shown: dict[str, str] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._n_done = state.global_step
        self._progress = Progress(
            self._description, "step", state.max_steps, initial=state.global_step, line_every_s=_LINE_EVERY_S
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._progress is not None:
            self._progress.advance(state.global_step - self._n_done, self._shown)
            self._n_done = state.global_step

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self._shown = {"loss": f"{float(logs['loss']):.3f}"}

    def close(self) -> None:
        if self._progress is not None:
            self._progress.close()


def train_with_progress(trainer: Trainer, description: str) -> Any:
    """Run a `Trainer` with the toolkit's progress bar instead of its own output.

    Args:
        trainer: A trainer with ``disable_tqdm``.
        description: Label of the bar.

    Returns:
        The result of ``trainer.train()``.
    """
    trainer.remove_callback(PrinterCallback)
    progress = ProgressBar(description)
    trainer.add_callback(progress)
    try:
        return trainer.train()
    finally:
        progress.close()


@contextmanager
def unchanged(model: PreTrainedModel) -> Iterator[None]:
    """Restore everything except weights that building and running a `Trainer` changes.

    This covers the random states of Python, numpy and torch, the model's mode and its config's cache switch. The model
    stays on the device chosen by the `Trainer`.
    """
    was_training, use_cache = model.training, getattr(model.config, "use_cache", None)
    try:
        with random_states_kept():
            yield
    finally:
        model.train(was_training)
        model.config.use_cache = use_cache


def pad_labelled_texts(tokenizer: PreTrainedTokenizerBase, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Pad texts on the right: decoders read their output off the last token that is not padding.

    Args:
        tokenizer: Tokenizer of the texts.
        examples: ``input_ids`` and ``labels`` of each text.

    Returns:
        ``input_ids`` and ``attention_mask`` of shape (B, longest), and ``labels`` of shape (B,).
    """
    return dict(tokenizer.pad(examples, padding_side="right", return_tensors="pt"))
