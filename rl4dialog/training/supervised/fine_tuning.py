"""Supervised fine-tuning of a language model with transformers' `Trainer`: warm start, and `alg.id: supervised`.

The `examples` module selects the labelled tokens. Only labelled positions go through the language model's head, which
accounts for most of the computation with a large vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from rl4dialog.core.errors import ConfigError, nearest_hint
from rl4dialog.core.types import is_number
from rl4dialog.policies.lm_head import head_is_plain, lm_logits
from rl4dialog.policies.seq2seq import EncoderDecoder
from rl4dialog.training.supervised.examples import IGNORED_LABEL, ExampleSets, PaddingCollator, SupervisedExample
from rl4dialog.training.trainer_support import train_with_progress, unchanged

# Argument names of the transformers versions that RL4LMs' configs were written for.
_RENAMED_ARGS = {"evaluation_strategy": "eval_strategy", "warmup_ratio": "warmup_steps", "no_cuda": "use_cpu"}
IGNORED_ARGS = ("output_dir", "overwrite_output_dir", "save_safetensors", "logging_dir", "disable_tqdm")
"""Arguments without effect in this toolkit."""


def train_supervised(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: ExampleSets,
    *,
    training_args: Mapping[str, Any],
    seed: int,
    output_dir: str | Path | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    description: str = "Supervised",
) -> dict[str, float]:
    """Fine-tune a language model in place.

    Batches hold examples of similar length unless ``train_sampling_strategy`` is set otherwise. The random states of
    Python, numpy and torch, the model's mode and its config are restored afterwards. The model stays on the device
    chosen by `Trainer`.

    Args:
        model: The model to train.
        tokenizer: The model's.
        examples: Result of :func:`~rl4dialog.training.supervised.examples.build_example_sets`.
        training_args: Fields of ``transformers.TrainingArguments``. Nothing is saved or reported by default.
        seed: Seed of data order and dropout.
        output_dir: Folder for checkpoints, if ``training_args`` enable them.
        callbacks: Additional callbacks of the `Trainer`.
        description: Label of the progress bar.

    Returns:
        ``train_loss`` (mean over all steps, in nats per labelled token), ``tokens_per_s`` (without padding),
        ``train_runtime_s``, ``n_examples``, ``n_steps``; ``n_prompts_cut``, ``n_references_cut`` and ``n_left_out``
        (see :class:`~rl4dialog.training.supervised.examples.Truncation`); with held-out examples ``eval_loss`` and
        ``eval_perplexity``.

    Raises:
        ConfigError: If a training argument is unknown or invalid, or the final loss is not finite.
    """
    pad_token_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    collator = PaddingCollator(pad_token_id)
    # Who needs a warm-started model may be computing without gradients.
    with _output_folder(output_dir) as folder, unchanged(model), torch.enable_grad():
        args = build_training_arguments(training_args, folder, seed, with_val=examples.val is not None)
        trainer = _build_trainer(model, args, examples, collator, callbacks)
        start = time.perf_counter()
        output = train_with_progress(trainer, description)
        seconds = time.perf_counter() - start
    n_epochs = float(trainer.state.epoch or 0.0)
    metrics = {
        "train_loss": float(output.training_loss),
        "tokens_per_s": n_epochs * sum(len(example["input_ids"]) for example in examples.train) / seconds,
        "train_runtime_s": seconds,
        "n_examples": len(examples.train),
        "n_prompts_cut": examples.truncation.n_prompts_cut,
        "n_references_cut": examples.truncation.n_references_cut,
        "n_left_out": len(examples.truncation.left_out),
        "n_steps": int(output.global_step),
    }
    if not math.isfinite(metrics["train_loss"]):
        raise ConfigError(
            f"supervised training diverged: the loss is {metrics['train_loss']}; lower learning_rate "
            f"(it was {trainer.args.learning_rate:g})"
        )
    if examples.val is not None:
        metrics["eval_loss"] = mean_loss(model, examples.val, collator, trainer.args.per_device_eval_batch_size)
        metrics["eval_perplexity"] = math.exp(min(metrics["eval_loss"], 700.0))
    return metrics


def warm_start(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: ExampleSets,
    *,
    n_epochs: float = 3,
    batch_size: int = 32,
    learning_rate: float = 1e-3,
    weight_decay: float = 0.0,
    warmup_ratio: float = 0.05,
    lr_scheduler_type: str = "linear",
    seed: int = 0,
) -> dict[str, float]:
    """Fine-tune a model before RL, with a small set of :func:`train_supervised`'s options.

    Args:
        model: The model to train, in place.
        tokenizer: The model's.
        examples: As in :func:`train_supervised`.
        n_epochs: Passes over the examples.
        batch_size: Examples per step.
        learning_rate: Peak learning rate.
        weight_decay: Weight decay of AdamW.
        warmup_ratio: Fraction of steps used for learning rate warmup.
        lr_scheduler_type: Name of a learning rate schedule in transformers.
        seed: Seed of data order and dropout.

    Returns:
        The metrics of `train_supervised`.
    """
    arguments = {
        "num_train_epochs": n_epochs,
        "per_device_train_batch_size": batch_size,
        "per_device_eval_batch_size": batch_size,
        "learning_rate": learning_rate,
        "weight_decay": weight_decay,
        "warmup_ratio": warmup_ratio,
        "lr_scheduler_type": lr_scheduler_type,
    }
    return train_supervised(model, tokenizer, examples, training_args=arguments, seed=seed, description="Warm start")


@torch.no_grad()
def mean_loss(
    model: PreTrainedModel, examples: Sequence[SupervisedExample], collator: PaddingCollator, batch_size: int
) -> float:
    """Mean negative log-likelihood of all labelled tokens, in nats, without dropout."""
    was_training = model.training
    model.eval()
    # Sort by length to reduce padding; the mean does not depend on the order.
    ordered = sorted(examples, key=lambda example: len(example["input_ids"]))
    is_plain = head_is_plain(model)
    total, n_tokens = 0.0, 0
    for first in range(0, len(ordered), batch_size):
        batch = {name: value.to(model.device) for name, value in collator(ordered[first : first + batch_size]).items()}
        total += float(_summed_loss(model, batch, is_plain))
        first_label = 0 if model.config.is_encoder_decoder else 1
        n_tokens += int((batch["labels"][:, first_label:] != IGNORED_LABEL).sum())
    model.train(was_training)
    return total / max(n_tokens, 1)


def known_training_args(training_args: Mapping[str, Any]) -> dict[str, Any]:
    """Validate arguments for ``TrainingArguments`` and translate names of older transformers versions.

    Returns:
        The arguments under their current names, without :data:`IGNORED_ARGS`.

    Raises:
        ConfigError: If an argument is unknown or of the wrong type. The message suggests the nearest name.
    """
    fields = {field.name: field for field in dataclasses.fields(TrainingArguments)}
    known: dict[str, Any] = {}
    for name, value in training_args.items():
        if name in IGNORED_ARGS:
            continue
        if name == "group_by_length":
            known["train_sampling_strategy"] = "group_by_length" if value else "random"
            continue
        if name == "warmup_ratio" and not (is_number(value) and 0 <= value < 1):
            raise ConfigError(f"alg.training_args.warmup_ratio must be at least 0 and less than 1, not {value!r}")
        current = _RENAMED_ARGS.get(name, name)
        if current not in fields:
            raise ConfigError(
                f"alg.training_args has no key {name!r}{nearest_hint(name, fields)} "
                f"(keys are the fields of transformers.TrainingArguments)"
            )
        default = fields[current].default
        if isinstance(default, bool) and not isinstance(value, bool):
            raise ConfigError(f"alg.training_args.{name} must be true or false, not {value!r}")
        if is_number(default) and not is_number(value):
            raise ConfigError(f"alg.training_args.{name} must be a number, not {value!r}")
        known[current] = value
    return known


def build_training_arguments(
    training_args: Mapping[str, Any], output_dir: str | Path, seed: int, with_val: bool
) -> TrainingArguments:
    """Build ``TrainingArguments``, with this toolkit's defaults for arguments that are not set.

    Args:
        training_args: Fields of ``transformers.TrainingArguments``.
        output_dir: Folder for checkpoints.
        seed: Seed of data order and dropout.
        with_val: Whether there are held-out examples.

    Raises:
        ConfigError: If an argument is unknown or its value is invalid.
    """
    has_cuda = torch.cuda.is_available()
    defaults = {
        "seed": seed,
        "use_cpu": not has_cuda,
        "dataloader_pin_memory": has_cuda,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 10,
        # The filter would hide a diverged run and synchronizes on every loss.
        "logging_nan_inf_filter": False,
        "train_sampling_strategy": "group_by_length",
    }
    chosen = {**defaults, **known_training_args(training_args)}
    if not with_val:
        chosen["eval_strategy"] = "no"
    try:
        return TrainingArguments(
            **{**chosen, "output_dir": str(output_dir), "disable_tqdm": True, "remove_unused_columns": False}
        )
    except (ValueError, TypeError, ImportError) as error:
        raise ConfigError(f"alg.training_args: {error}") from error


def _build_trainer(
    model: PreTrainedModel,
    args: TrainingArguments,
    examples: ExampleSets,
    collator: PaddingCollator,
    callbacks: Sequence[TrainerCallback],
) -> Trainer:
    try:
        trainer = _LabelledOnlyTrainer(
            model=model,
            args=args,
            data_collator=collator,
            train_dataset=examples.train,
            eval_dataset=examples.val,
            callbacks=list(callbacks),
        )
    except (ValueError, TypeError, ImportError) as error:
        raise ConfigError(f"alg.training_args: {error}") from error
    trainer.head_is_plain = head_is_plain(model)
    return trainer


class _LabelledOnlyTrainer(Trainer):
    """A `Trainer` that computes logits at labelled positions only."""

    head_is_plain = False

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        # A wrapped model (several devices) must be called as a whole, and label smoothing needs all logits.
        is_whole = model is not self.model or self.accelerator.num_processes > 1 or self.label_smoother is not None
        if is_whole or return_outputs or num_items_in_batch is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        with self.accelerator.autocast():
            return _summed_loss(model, inputs, self.head_is_plain) / num_items_in_batch


def _summed_loss(model: PreTrainedModel, batch: Mapping[str, Tensor], is_plain: bool) -> Tensor:
    """Total negative log-likelihood of all labelled tokens of a batch, in nats."""
    ids, mask, labels = batch["input_ids"], batch["attention_mask"], batch["labels"]
    learned = labels != IGNORED_LABEL
    if model.config.is_encoder_decoder:
        hidden = EncoderDecoder(model, share_prompts=False)(ids, mask.bool(), labels[:, :-1].clamp(min=0))
    else:
        hidden = model.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state[:, :-1]
        labels, learned = labels[:, 1:], learned[:, 1:]
    logits = lm_logits(model, hidden[learned], is_plain)
    return functional.cross_entropy(logits.float(), labels[learned], reduction="sum")


@contextmanager
def _output_folder(output_dir: str | Path | None) -> Iterator[Path]:
    """Provide the output folder that `Trainer` requires, and remove it if it stays empty."""
    if output_dir is None:
        with tempfile.TemporaryDirectory() as scratch:
            yield Path(scratch)
        return
    folder = Path(output_dir)
    yield folder
    if folder.is_dir() and not any(folder.iterdir()):
        shutil.rmtree(folder)
