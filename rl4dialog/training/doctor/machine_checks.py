"""Checks of memory and disk space."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from rl4dialog.core.process_memory import available_mib, resident_mib
from rl4dialog.training.doctor.finding import Finding, judged
from rl4dialog.training.doctor.subject import Subject
from rl4dialog.training.memory import MIB

# The prediction is off by up to a quarter (tests/end_to_end/test_memory.py).
MEMORY_SHARE = 0.8


def memory(subject: Subject) -> Finding:
    """Compare predicted peak memory with available memory."""
    needed = subject.memory_plan.total / MIB
    device = _device(subject)
    if device == "cuda":
        there, where = (torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()) / MIB, "on the GPU"
    else:
        there, where = available_mib() + resident_mib(), "in main memory"
    how_well = "about" if subject.memory_plan.activations is not None else "more than"
    measured = f"{how_well} {needed:,.0f} MiB needed, {there:,.0f} MiB available {where}"
    advice = "lower micro_batch_size, or use critic: shared, lora, gradient_checkpointing or precision: bf16"
    return judged(needed / there, measured, advice, warn_above=MEMORY_SHARE, fail_above=1.0)


def disk(subject: Subject) -> Finding:
    """Compare the size of the run's checkpoints and models with free disk space."""
    plan, settings = subject.memory_plan, subject.config.train_evaluation
    n_checkpoints = 1  # after the last iteration
    if settings.save_every is not None or settings.keep_best is not None:
        # The most recent ones, the best one, and one being written.
        n_checkpoints = settings.keep_last + (settings.keep_best is not None) + 1
    has_best_model = any(callback.id == "save_best_model" for callback in subject.config.callbacks)
    n_models = 4 if has_best_model else 2  # best_model/ is written before the old one is removed
    needed = (n_checkpoints * (plan.weights + plan.optimizer) + n_models * plan.weights) / MIB
    folder = _existing(subject.results_path)
    free = shutil.disk_usage(folder).free / MIB
    kept = ("1 checkpoint" if n_checkpoints == 1 else f"{n_checkpoints} checkpoints") + (
        ", best_model/ and the model" if has_best_model else " and the model"
    )
    measured = f"up to {needed:,.0f} MiB for {kept}, {free:,.0f} MiB free in {folder}"
    advice = "lower train_evaluation.keep_last, or choose another --base_path_to_store_results"
    return judged(needed / free if free else 2.0, measured, advice, warn_above=MEMORY_SHARE, fail_above=1.0)


def _device(subject: Subject) -> str:
    """Device of the run, selected by the same rule as in stable-baselines3."""
    wanted = subject.config.alg.args.get("device", "auto")
    return "cuda" if torch.cuda.is_available() and wanted != "cpu" else "cpu"


def _existing(path: Path) -> Path:
    """The nearest existing parent folder."""
    path = path.expanduser().absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())
