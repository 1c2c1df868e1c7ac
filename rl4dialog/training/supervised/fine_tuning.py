"""Supervised fine-tuning of a language model with transformers' `Trainer`: warm start, and `alg.id: supervised`.

The `examples` module selects the labelled tokens, and the `trainer` module computes their loss.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from rl4dialog.core.errors import ConfigError, nearest_hint
from rl4dialog.core.types import is_number, is_whole_number
from rl4dialog.policies.lm_head import head_is_plain
from rl4dialog.training.resumable_trainer import TrainingLoop, run_trainer
from rl4dialog.training.supervised.examples import IGNORED_LABEL, ExampleSets, PaddingCollator, SupervisedExample
from rl4dialog.training.supervised.trainer import SupervisedTrainer, summed_loss

# Argument names of the transformers versions that RL4LMs' configs were written for.
_RENAMED_ARGS = {"evaluation_strategy": "eval_strategy", "warmup_ratio": "warmup_steps", "no_cuda": "use_cpu"}
IGNORED_ARGS = (
    *("output_dir", "overwrite_output_dir", "save_safetensors", "logging_dir", "disable_tqdm"),
    *("resume_from_checkpoint", "ignore_data_skip"),
)
"""Arguments without effect in this toolkit."""
RISE = 0.02
"""Relative rise of the held-out loss, on the same texts, from which on a model counts as having memorised its data."""
# Of other values, transformers reports some only in training, and trains with the rest.
_NOT_NEGATIVE = ("learning_rate", "weight_decay", "adam_epsilon", "max_grad_norm", "num_train_epochs")
_COUNTS = ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps")


def train_supervised(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: ExampleSets,
    *,
    training_args: Mapping[str, Any],
    seed: int,
    description: str = "Supervised",
    loop: TrainingLoop | None = None,
) -> dict[str, float]:
    """Fine-tune a language model in place.

    Batches hold examples of similar length unless ``train_sampling_strategy`` is set otherwise. Whole dialogues are
    shuffled, as the length of a dialogue may depend on its outcome, and batches of the same outcome disturb training.

    Args:
        model: The model to train.
        tokenizer: The model's.
        examples: Result of :func:`~rl4dialog.training.supervised.examples.build_example_sets`.
        training_args: Fields of ``transformers.TrainingArguments``. Nothing is saved or reported by default.
        seed: Seed of data order and dropout.
        description: Label of the progress bar.
        loop: Acts between steps.

    Returns:
        The metrics of :func:`supervised_metrics`.
    """
    with tempfile.TemporaryDirectory() as folder:
        with_val, by_length = examples.val is not None, not examples.of_dialogues
        args = build_training_arguments(training_args, folder, seed, with_val, by_length)
        state = run_supervised_trainer(model, tokenizer, examples, args, loop=loop, description=description)
    return supervised_metrics(model, tokenizer, examples, args, state)


def run_supervised_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: ExampleSets,
    args: TrainingArguments,
    *,
    loop: TrainingLoop | None = None,
    description: str = "Supervised",
) -> dict[str, Any]:
    """Run a `Trainer` on a language model; see :func:`~rl4dialog.training.resumable_trainer.run_trainer`."""
    return run_trainer(
        SupervisedTrainer,
        model,
        args,
        _collator(tokenizer),
        examples.train,
        examples.val,
        loop=loop,
        description=description,
    )


def supervised_metrics(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: ExampleSets,
    args: TrainingArguments,
    state: Mapping[str, Any],
) -> dict[str, float]:
    """Summarize supervised training.

    Args:
        model: The trained model.
        tokenizer: The model's.
        examples: The examples.
        args: The training arguments.
        state: State of the trainer after the last epoch; all numbers are those of the whole run.

    Returns:
        ``train_loss`` (mean over all steps, in nats per labelled token), ``tokens_per_s`` (without padding),
        ``train_runtime_s``, ``n_examples``, ``n_steps``; ``n_prompts_cut``, ``n_references_cut`` and ``n_left_out``
        (see :class:`~rl4dialog.training.supervised.examples.Truncation`); with held-out examples ``eval_loss`` and
        ``eval_perplexity``.
    """
    n_tokens = sum(len(example["input_ids"]) for example in examples.train)
    metrics = {
        "train_loss": finite_loss(state, args),
        "tokens_per_s": state["epoch"] * n_tokens / state["train_runtime_s"] if state["step"] else 0.0,
        "train_runtime_s": state["train_runtime_s"],
        "n_examples": len(examples.train),
        "n_prompts_cut": examples.truncation.n_prompts_cut,
        "n_references_cut": examples.truncation.n_references_cut,
        "n_left_out": len(examples.truncation.left_out),
        "n_steps": state["step"],
    }
    if examples.val is not None:
        metrics["eval_loss"] = mean_loss(model, examples.val, _collator(tokenizer), args.per_device_eval_batch_size)
        metrics["eval_perplexity"] = math.exp(min(metrics["eval_loss"], 700.0))
    return metrics


def finite_loss(state: Mapping[str, Any], args: TrainingArguments) -> float:
    """Return the mean loss over all steps; for supervised training, in nats per labelled token."""
    loss = float(state["total_loss"] + state["unlogged_loss"]) / max(state["step"], 1)
    if not math.isfinite(loss):
        raise ConfigError(
            f"the training diverged: the loss is {loss}; lower learning_rate (it was {args.learning_rate:g})"
        )
    return loss


def _collator(tokenizer: PreTrainedTokenizerBase) -> PaddingCollator:
    return PaddingCollator(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0)


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
) -> dict[str, Any]:
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
        The metrics of :func:`supervised_metrics`, and ``held_out_losses``: the loss of held-out examples, if there are
        any, before training and after each epoch. Measuring it does not change the training.
    """
    losses: list[float] = []

    def measure(trainer: Any = None) -> None:
        if examples.val is not None:
            losses.append(mean_loss(model, examples.val, _collator(tokenizer), batch_size))

    measure()
    loop: Any = SimpleNamespace(checkpoint=None, after_step=lambda trainer: None, after_epoch=measure)
    arguments = {
        "num_train_epochs": n_epochs,
        "per_device_train_batch_size": batch_size,
        "per_device_eval_batch_size": batch_size,
        "learning_rate": learning_rate,
        "weight_decay": weight_decay,
        "warmup_ratio": warmup_ratio,
        "lr_scheduler_type": lr_scheduler_type,
    }
    metrics = train_supervised(
        model, tokenizer, examples, training_args=arguments, seed=seed, description="Warm start", loop=loop
    )
    return {**metrics, "held_out_losses": losses}


def memorised(held_out_losses: Sequence[float]) -> str | None:
    """Describe a rise of the held-out loss, before training and after each epoch; ``None`` if there is none."""
    if not held_out_losses or not held_out_losses[-1] > (1 + RISE) * (lowest := min(held_out_losses)):
        return None
    best, n_epochs = held_out_losses.index(lowest), len(held_out_losses) - 1
    when = f"after epoch {best} of {n_epochs}" if best else "before training"
    return (
        f"the warm start memorises its data: the loss of val replies was lowest {when} ({lowest:.3g} nats per token) "
        f"and has risen to {held_out_losses[-1]:.3g}"
    )


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
        total += float(summed_loss(model, batch, is_plain))
        first_label = 0 if model.config.is_encoder_decoder else 1
        n_tokens += int((batch["labels"][:, first_label:] != IGNORED_LABEL).sum())
    model.train(was_training)
    return total / max(n_tokens, 1)


def known_training_args(training_args: Mapping[str, Any]) -> dict[str, Any]:
    """Validate arguments for ``TrainingArguments`` and translate names of older transformers versions.

    Returns:
        The arguments under their current names, without :data:`IGNORED_ARGS`.
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
        if name in _NOT_NEGATIVE and not 0 <= value < math.inf:
            raise ConfigError(f"alg.training_args.{name} must be a finite number of at least 0, not {value!r}")
        if name in _COUNTS and not is_whole_number(value, at_least=1):
            raise ConfigError(f"alg.training_args.{name} must be a whole number of at least 1, not {value!r}")
        known[current] = value
    return known


def build_training_arguments(
    training_args: Mapping[str, Any], output_dir: str | Path, seed: int, with_val: bool, by_length: bool = True
) -> TrainingArguments:
    """Build ``TrainingArguments``, with this toolkit's defaults for arguments that are not set.

    Args:
        training_args: Fields of ``transformers.TrainingArguments``.
        output_dir: Folder for checkpoints.
        seed: Seed of data order and dropout.
        with_val: Whether there are held-out examples.
        by_length: Whether batches hold examples of similar length, which reduces padding.
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
        "train_sampling_strategy": "group_by_length" if by_length else "random",
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
