"""Around transformers' `Trainer`: one clean progress bar, and nothing changed that is not meant to be trained."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from tqdm import tqdm
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainerCallback


class ProgressBar(TrainerCallback):
    """One bar over all steps, with rate, remaining time and loss."""

    def __init__(self, description: str) -> None:
        self._description = description
        self._bar: tqdm[Any] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # A file shows every refresh as a line of its own.
        pause = 0.2 if sys.stderr.isatty() else 10.0
        self._bar = tqdm(total=state.max_steps, desc=self._description, unit="step", mininterval=pause)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._bar is not None:
            self._bar.update(state.global_step - self._bar.n)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if self._bar is not None and logs and "loss" in logs:
            self._bar.set_postfix_str(f"loss {float(logs['loss']):.3f}", refresh=False)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def train_with_progress(trainer: Trainer, description: str) -> Any:
    """Run a `Trainer` under a bar of ours, without the lines that it prints by itself.

    Args:
        trainer: With ``disable_tqdm``.
        description: Label of the bar.

    Returns:
        What ``trainer.train()`` returns.
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
    """Restore what a `Trainer` changes beside the weights, by being built and by running.

    These are Python's, numpy's and torch's random states, the model's mode and its config's cache switch. The model
    stays on the device that the `Trainer` chose.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()
    was_training, use_cache = model.training, getattr(model.config, "use_cache", None)
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        model.train(was_training)
        model.config.use_cache = use_cache
