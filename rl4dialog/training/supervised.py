"""Supervised fine-tuning of a language model with transformers' `Trainer`: warm start, runs, and a loss beside RL.

Prompt and reply are tokenized separately and their ids concatenated. Rollouts also continue the ids of a prompt, so
training and rollouts see the same sequences; tokenizing the joined text could merge tokens across the boundary. The
reply to a dialogue is tokenized as its continuation, so that it has the same ids as in the history of a later reply.
The target includes the end of the reply: the turn marker of the dialogue format, or else the end-of-sequence token.

A sample with a ``continuation`` in its meta data is learned as a whole conversation, in the rows that a rollout would
make of it: all utterances of the agent are targets, and those of its partner are read. Only labelled positions go
through the language model's head, which accounts for most of the computation with a large vocabulary.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal, TypedDict

import torch
from accelerate import DistributedType
from pydantic import Field
from torch import Tensor
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments, get_scheduler

from rl4dialog.core.arguments import Count, LearningRate, NonNegative, check_values, parameters_of
from rl4dialog.core.config_blocks import WarmStartConfig
from rl4dialog.core.errors import ConfigError, DataError, ModelError, nearest_hint
from rl4dialog.core.protocols import Toolbox
from rl4dialog.core.types import AGENT, Frame, Sample, Turn
from rl4dialog.envs.conversation import ConversationRules
from rl4dialog.functional.distributed import n_processes
from rl4dialog.functional.masks import padded
from rl4dialog.functional.replies import Row, joined_rows
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.decoding import EncoderDecoder
from rl4dialog.policies.heads import head_is_plain, lm_logits
from rl4dialog.policies.models import position_limit
from rl4dialog.rollouts.learned_turns import Limits, learned_turns
from rl4dialog.runs.progress import say
from rl4dialog.text.end_of_turn import EndOfTurn, end_of_sequence_ids
from rl4dialog.text.prompts import encode_prompt, encode_reply, encoder_of
from rl4dialog.training.resumable_trainer import ResumableTrainer, TrainingLoop, run_trainer

IGNORED_LABEL = -100


class SupervisedExample(TypedDict):
    """One training sequence."""

    input_ids: list[int]  # prompt and reply, without padding; only the prompt for an encoder-decoder
    # Same length, with `IGNORED_LABEL` at tokens without a loss; only the reply for an encoder-decoder.
    labels: list[int]


@dataclass
class Truncation:
    """Counts of truncated samples."""

    n_examples: int = 0
    n_prompts_cut: int = 0  # examples with a truncated prompt
    n_references_cut: int = 0  # examples with a truncated reference
    # Sample ids of references that exceed the limit on their own and make no example.
    left_out: list[Any] = field(default_factory=list)
    n_empty: int = 0  # empty references, which make no example either

    def __str__(self) -> str:
        """One-line summary; empty if everything fits."""
        parts = []
        if self.n_prompts_cut:
            parts.append(f"{self.n_prompts_cut} with a cut prompt")
        if self.n_references_cut:
            parts.append(f"{self.n_references_cut} without their end, which is then not learned")
        if self.left_out:
            named = ", ".join(map(repr, self.left_out[:5])) + (", ..." if len(self.left_out) > 5 else "")
            parts.append(f"{len(self.left_out)} left out, too long by themselves (samples {named})")
        if self.n_empty:
            parts.append(f"{self.n_empty} left out, empty")
        n_references = self.n_examples + len(self.left_out) + self.n_empty
        return f"of {n_references} references: {'; '.join(parts)}" if parts else ""


@dataclass(frozen=True)
class ExampleSets:
    """Training and validation examples."""

    train: list[SupervisedExample]
    truncation: Truncation
    val: list[SupervisedExample] | None = None  # optional held-out examples for the perplexity at the end
    of_dialogues: bool = False  # whether there are examples of whole dialogues
    pad_token_id: int = 0

    @property
    def sets(self) -> tuple[PaddingCollator, list[SupervisedExample], list[SupervisedExample] | None]:
        """What a `Trainer` makes batches with, and of."""
        return PaddingCollator(self.pad_token_id), self.train, self.val


def build_example_sets(
    model_config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    samples: Iterable[Sample],
    *,
    max_length: int | None = None,
    val_samples: Iterable[Sample] | None = None,
    description: str = "Supervised",
    says_val: bool = True,
    **shape: Any,
) -> ExampleSets:
    """Tokenize examples of at most ``max_length``, or the model's positions, and report truncated ones."""
    shape["max_length"] = min((n for n in (max_length, position_limit(model_config)) if n is not None), default=None)
    shape["in_encoder"] = model_config.is_encoder_decoder
    examples, truncation = build_examples(samples, tokenizer, **shape)
    said, val_examples = {description: truncation}, None
    if val_samples is not None:
        val_examples, of_val = build_examples(val_samples, tokenizer, **shape)
        said |= {f"{description}, val split": of_val} if says_val else {}
    for what, counts in said.items():
        if text := str(counts):
            say(f"{what}: {text}", on_terminals=True)
    return ExampleSets(examples, truncation, val_examples, "frame" in shape, tokenizer.pad_token_id or 0)


def build_examples(
    samples: Iterable[Sample],
    tokenizer: PreTrainedTokenizerBase,
    *,
    end_of_turn: str | None,
    max_prompt_length: int | None,
    max_reply_length: int | None,
    max_length: int | None = None,
    loss_on: Literal["reply", "all"] = "reply",
    in_encoder: bool = False,
    prompt_truncation_side: str = "left",
    whole_turns: bool = False,
    frame: Frame | None = None,
    rules: ConversationRules | None = None,
    toolbox: Toolbox | None = None,
) -> tuple[list[SupervisedExample], Truncation]:
    """Tokenize samples, one example per reference, and count what is truncated.

    Limits are in tokens, ``None`` for none. A reply longer than ``max_reply_length`` loses its end, and has no end to
    learn. ``max_length`` is that of prompt and reply together, or of each if an encoder reads the prompt: the prompt is
    truncated first, and a reference that exceeds it alone makes no example. With ``whole_turns``, plain prompts
    truncated on the left lose whole turns even without ``end_of_turn``, the text that ends a reply; by default both are
    the end-of-sequence token. ``frame`` is the markup of conversations, the samples with a continuation;
    ``rules.max_turns`` does not apply. The ``toolbox`` recognizes calls in them.
    """
    if in_encoder and loss_on == "all":
        raise ConfigError("loss_on: all is for decoder-only models; an encoder-decoder writes the reply only")
    _check_end(tokenizer, end_of_turn)
    turn_end = end_of_turn or (tokenizer.eos_token if whole_turns else None)
    end = EndOfTurn(tokenizer, end_of_sequence_ids(tokenizer), end_of_turn)
    rows: list[Row] = []
    truncation = Truncation()
    for sample in samples:
        text = sample.prompt_or_input_text
        if (continuation := (sample.meta_data or {}).get("continuation")) and sample.references:
            turns = learned_turns(
                text,
                [Turn(said, AGENT) for said in (sample.references[0], *continuation)],
                end,
                Limits(max_prompt_length, max_reply_length, max_length),
                frame or Frame.plain(end_of_turn),
                rules or ConversationRules(),
                in_encoder=in_encoder,
                toolbox=toolbox,
            )
            turns = [turn for turn in turns if turn.reply]
            truncation.n_prompts_cut += turns[-1].n_dropped > 0
            truncation.n_references_cut += sum(turn.is_cut for turn in turns)
            own = [Row(turn.prompt, turn.reply) for turn in turns]
            rows += own if in_encoder else joined_rows(own)
            continue
        whole_prompt, before = encode_prompt(tokenizer, text, None, end_of_turn=turn_end), "" if in_encoder else text
        for reference in sample.references:
            if not reference.strip():  # otherwise, the model would learn to end its replies at once
                truncation.n_empty += 1
                continue
            whole_reply = reply = encode_reply(tokenizer, reference, end_of_turn, prompt=before)
            if max_reply_length is not None and len(reply) > max_reply_length:
                reply = encode_reply(tokenizer, reference, end_of_turn, max_reply_length, before)
            room = max_length if max_length is None or in_encoder else max_length - len(reply)
            if max_length is not None and (len(reply) > max_length or (room is not None and room < 1)):
                truncation.left_out.append(sample.id)
                continue
            limit = min((n for n in (max_prompt_length, room) if n is not None), default=None)
            prompt = whole_prompt
            if limit is not None and len(prompt) > limit:
                try:
                    prompt = encode_prompt(tokenizer, text, limit, prompt_truncation_side, turn_end)
                except DataError:  # its beginning and the reply leave no room for a turn
                    if limit == max_prompt_length:
                        raise
                    truncation.left_out.append(sample.id)
                    continue
            truncation.n_prompts_cut += len(prompt) < len(whole_prompt)
            truncation.n_references_cut += len(reply) < len(whole_reply)
            rows.append(Row(prompt, reply))
    truncation.n_examples = len(rows)
    if not rows:
        what = "no sample of the datapool has a reference that is not empty"
        if truncation.left_out:
            cure = "choose a model with more positions, or raise tokenizer.max_length"
            limit_of = f"the {max_length} tokens that model and tokenizer take"
            what = f"each of the {len(truncation.left_out)} references has more than {limit_of}; {cure}"
        raise DataError(f"there is nothing to fine-tune on: {what}")
    return [_example(row, in_encoder, loss_on == "all") for row in rows], truncation


def _example(row: Row, in_encoder: bool, learns_all: bool) -> SupervisedExample:
    if in_encoder:
        return SupervisedExample(input_ids=row.prompt, labels=row.response)
    learned = [learns_all] * len(row.prompt) + [is_agents or learns_all for is_agents in row.is_agents]
    labels = [id if is_learned else IGNORED_LABEL for id, is_learned in zip(row.ids, learned, strict=True)]
    return SupervisedExample(input_ids=row.ids, labels=labels)


class PaddingCollator:
    """Pads examples on the right. The mask is computed from the lengths, as the pad id may also be a real token's."""

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, examples: Sequence[SupervisedExample]) -> dict[str, Tensor]:
        """Make a batch: ``input_ids``, ``attention_mask`` and ``labels``, each int64 and padded on the right."""
        ids, mask = padded([example["input_ids"] for example in examples], value=self.pad_token_id)
        labels, _ = padded([example["labels"] for example in examples], value=IGNORED_LABEL)
        return {"input_ids": ids, "attention_mask": mask.long(), "labels": labels}


def _check_end(tokenizer: PreTrainedTokenizerBase, end_of_turn: str | None) -> None:
    """Check that the tokenizer can encode the end of a reply; otherwise the model could not learn it."""
    if end_of_turn is None:
        if tokenizer.eos_token_id is None:
            raise ModelError("the tokenizer has no end-of-sequence token, and the datapool no end_of_turn text")
    elif end_of_turn not in tokenizer.decode(encoder_of(tokenizer).ids(end_of_turn), skip_special_tokens=False):
        raise ModelError(f"the tokenizer cannot write {end_of_turn!r}, the text that ends a reply in this datapool")


class SupervisedTrainer(ResumableTrainer):
    """A trainer that computes logits at labelled positions only."""

    def __init__(self, loop: TrainingLoop | None = None, **kwargs: Any) -> None:
        super().__init__(loop, **kwargs)
        self._head_is_plain = head_is_plain(kwargs["model"])

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        # A wrapped model (several devices) must be called as a whole, and label smoothing needs all logits.
        is_whole = model is not self.model or self.label_smoother is not None
        if is_whole or return_outputs or num_items_in_batch is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        with self.accelerator.autocast():
            return summed_loss(model, inputs, self._head_is_plain)[0] / num_items_in_batch


def summed_loss(model: PreTrainedModel, batch: Mapping[str, Tensor], is_plain: bool) -> tuple[Tensor, Tensor]:
    """Total negative log-likelihood of all labelled tokens of a batch, in nats, and the number of these tokens."""
    ids, mask, labels = batch["input_ids"], batch["attention_mask"], batch["labels"]
    if model.config.is_encoder_decoder:
        hidden = EncoderDecoder(model, share_prompts=False)(ids, mask.bool(), labels[:, :-1].clamp(min=0))
    else:
        hidden = model.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state[:, :-1]
        labels = labels[:, 1:]
    learned = labels != IGNORED_LABEL
    logits = lm_logits(model, hidden[learned], is_plain)
    return functional.cross_entropy(logits.float(), labels[learned], reduction="sum"), learned.sum()


class SupervisedLoss:
    """Mean loss per labelled token, in nats, of examples drawn uniformly with torch's global random state."""

    def __init__(self, examples: Sequence[SupervisedExample], pad_token_id: int) -> None:
        self._examples, self._collator = examples, PaddingCollator(pad_token_id)

    def __call__(self, policy: LMActorCriticPolicy, batch_size: int) -> Tensor:
        """Compute the loss of ``batch_size`` examples. Shape ()."""
        model = policy.language_model
        chosen = [self._examples[i] for i in torch.randint(len(self._examples), (batch_size,)).tolist()]
        batch = {name: tensor.to(policy.device) for name, tensor in self._collator(chosen).items()}
        with torch.autocast(policy.device.type, torch.bfloat16, enabled=policy.precision == "bf16"):
            total, n_tokens = summed_loss(model, batch, head_is_plain(model))
        return total / n_tokens.clamp(min=1)


# Argument names of the transformers versions that RL4LMs' configs were written for.
_RENAMED_ARGS = {"evaluation_strategy": "eval_strategy", "warmup_ratio": "warmup_steps", "no_cuda": "use_cpu"}
IGNORED_ARGS = (
    *("output_dir", "overwrite_output_dir", "save_safetensors", "logging_dir", "disable_tqdm"),
    *("resume_from_checkpoint", "ignore_data_skip"),
)
"""Arguments without effect in this toolkit."""
RISE = 0.02
"""Relative rise of the held-out loss, on the same texts, from which on a model counts as having memorised its data."""
PATIENCE = 5
"""Epochs without a lower held-out loss after which a warm start that keeps the best one ends."""
LEARNED = 0.005
"""Held-out loss, in nats per token, at which such a warm start ends: its replies are those of the data."""
# Of other values, transformers reports some only in training, and trains with the rest.
_NOT_NEGATIVE = ("weight_decay", "adam_epsilon", "max_grad_norm")
_COUNTS = ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps")
_BOUNDS: dict[str, Any] = dict.fromkeys(_NOT_NEGATIVE, NonNegative) | dict.fromkeys(_COUNTS, Count)
_BOUNDS["learning_rate"] = LearningRate
_BOUNDS["num_train_epochs"] = Annotated[float, Field(ge=0, le=10_000)]
_BOUNDS["warmup_ratio"] = Annotated[float, Field(ge=0, lt=1)]


def train_supervised(
    model: PreTrainedModel,
    examples: ExampleSets,
    *,
    training_args: Mapping[str, Any],
    seed: int,
    description: str = "Supervised",
    loop: TrainingLoop | None = None,
) -> dict[str, float]:
    """Fine-tune a language model in place; returns :func:`supervised_metrics`.

    Batches hold examples of similar length unless ``train_sampling_strategy`` is set otherwise. Whole dialogues are
    shuffled, as the length of a dialogue may depend on its outcome, and batches of the same outcome disturb training.
    """
    with tempfile.TemporaryDirectory() as folder:
        with_val, by_length = examples.val is not None, not examples.of_dialogues
        args = build_training_arguments(training_args, folder, seed, with_val, by_length)
        state = run_trainer(SupervisedTrainer, model, args, *examples.sets, loop=loop, description=description)
    return supervised_metrics(model, examples, args, state)


def supervised_metrics(
    model: PreTrainedModel, examples: ExampleSets, args: TrainingArguments, state: Mapping[str, Any]
) -> dict[str, float]:
    """Summary of the whole supervised training.

    ``train_loss`` is the mean over all steps, in nats per labelled token, and ``tokens_per_s`` is without padding; with
    held-out examples there are ``eval_loss`` and ``eval_perplexity``.
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
        collator, size = PaddingCollator(examples.pad_token_id), args.per_device_eval_batch_size
        metrics["eval_loss"] = mean_loss(model, examples.val, collator, size)
        metrics["eval_perplexity"] = math.exp(min(metrics["eval_loss"], 700.0))
    return metrics


def finite_loss(state: Mapping[str, Any], args: TrainingArguments) -> float:
    """Return the mean loss over all steps; for supervised training, in nats per labelled token."""
    loss = float(state["total_loss"] + state["unlogged_loss"]) / max(state["step"], 1)
    if not math.isfinite(loss):
        cure = f"lower learning_rate (it was {args.learning_rate:g})"
        raise ConfigError(f"the training diverged: the loss is {loss}; {cure}")
    return loss


def warm_start(model: PreTrainedModel, examples: ExampleSets, settings: WarmStartConfig, seed: int) -> dict[str, Any]:
    """Fine-tune before RL; also returns ``held_out_losses``, if there are any examples, before and after each epoch."""
    losses: list[float] = []
    best: dict[str, Tensor] = {}
    if settings.keep_best and examples.val is None:
        raise ConfigError("warm_start.keep_best compares losses of val replies, but there are none; remove it")

    def measure(trainer: Any = None) -> None:
        if examples.val is not None:
            collator = PaddingCollator(examples.pad_token_id)
            losses.append(mean_loss(model, examples.val, collator, settings.batch_size))
            if settings.keep_best and losses[-1] == min(losses):
                best.update({name: tensor.clone() for name, tensor in model.state_dict().items()})
            is_over = losses[-1] < LEARNED or len(losses) > losses.index(min(losses)) + PATIENCE
            if settings.keep_best and trainer is not None and is_over:
                trainer.control.should_training_stop = True

    measure()
    loop: Any = SimpleNamespace(checkpoint=None, after_step=lambda trainer: None, after_epoch=measure)
    said: dict[str, Any] = {"description": "Warm start", "loop": loop}
    metrics = train_supervised(model, examples, training_args=warm_start_args(settings), seed=seed, **said)
    if settings.keep_best:
        model.load_state_dict(best)
        losses = losses[: losses.index(min(losses)) + 1]
        say(f"Warm start: kept epoch {len(losses) - 1}, loss of val replies {losses[-1]:.3f}", on_terminals=True)
    return {**metrics, "held_out_losses": losses}


def warm_start_args(settings: WarmStartConfig) -> dict[str, Any]:
    """The settings of a warm start by the names of ``TrainingArguments``."""
    return {
        "num_train_epochs": settings.n_epochs,
        "per_device_train_batch_size": settings.batch_size,
        "per_device_eval_batch_size": settings.batch_size,
        **settings.model_dump(include={"learning_rate", "weight_decay", "warmup_ratio", "lr_scheduler_type"}),
    }


def memorised(held_out_losses: Sequence[float]) -> str | None:
    """Describe a rise of the held-out loss, before training and after each epoch, and what to do; ``None`` without."""
    if not held_out_losses or not held_out_losses[-1] > (1 + RISE) * (lowest := min(held_out_losses)):
        return None
    best, n_epochs = held_out_losses.index(lowest), len(held_out_losses) - 1
    if best:
        when, does = f"after epoch {best} of {n_epochs}", "memorises its data"
        cure = "set warm_start.keep_best: true, or lower n_epochs"
    else:
        when, does = "before training", "harms the model"
        cure = "lower warm_start.learning_rate, or raise n_epochs if it was 1"
    risen = f"was lowest {when} ({lowest:.3g} nats per token) and has risen to {held_out_losses[-1]:.3g}"
    return f"the warm start {does}: the loss of val replies {risen}; {cure}"


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
        loss, n = summed_loss(model, batch, is_plain)
        total, n_tokens = total + float(loss), n_tokens + int(n)
    model.train(was_training)
    return total / max(n_tokens, 1)


def known_training_args(training_args: Mapping[str, Any]) -> dict[str, Any]:
    """Valid arguments for ``TrainingArguments`` by their current names, without :data:`IGNORED_ARGS`."""
    parameters, known = parameters_of(TrainingArguments), dict[str, Any]()
    for name, value in training_args.items():
        if name in IGNORED_ARGS:
            continue
        if name == "group_by_length":
            known["train_sampling_strategy"] = "group_by_length" if value else "random"
            continue
        current = _RENAMED_ARGS.get(name, name)
        if current not in parameters:
            hint = nearest_hint(name, parameters)
            raise ConfigError(f"alg.training_args has no key {name!r}{hint} (keys are those of TrainingArguments)")
        kind = _BOUNDS.get(name, parameters[current].annotation)
        check_values({name: parameters[current].replace(annotation=kind)}, {name: value}, "alg.training_args.")
        known[current] = value
    return known


def check_training_args(training_args: Mapping[str, Any], where: str) -> None:
    """Check the arguments of a training, and that its schedule of the learning rate gets what it needs."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            args = build_training_arguments(training_args, folder, 0, with_val=True)
            chosen, kwargs = args.lr_scheduler_type, args.lr_scheduler_kwargs
            optimizer = torch.optim.SGD([torch.zeros(1)], lr=args.learning_rate)
            get_scheduler(chosen, optimizer, args.get_warmup_steps(100), 100, kwargs)  # type: ignore[arg-type]
        except ConfigError as error:
            raise ConfigError(str(error).replace("alg.training_args", where)) from error
        except (TypeError, ValueError) as error:
            cure = "choose another, such as cosine"
            name = getattr(chosen, "value", chosen)
            raise ConfigError(f"{where}.lr_scheduler_type: {name} cannot be used: {error}; {cure}") from error


def build_training_arguments(
    training_args: Mapping[str, Any], output_dir: str | Path, seed: int, with_val: bool, by_length: bool = True
) -> TrainingArguments:
    """Build ``TrainingArguments``, with this toolkit's defaults for arguments that are not set."""
    has_cuda = torch.cuda.is_available()
    chosen: dict[str, Any] = {
        "seed": seed,
        "use_cpu": not has_cuda,
        "dataloader_pin_memory": has_cuda,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 10,
        # The filter would hide a diverged run and synchronizes on every loss.
        "logging_nan_inf_filter": False,
        "train_sampling_strategy": "group_by_length" if by_length else "random",
        **known_training_args(training_args),
        **({} if with_val else {"eval_strategy": "no"}),
        **{"output_dir": str(output_dir), "disable_tqdm": True, "remove_unused_columns": False},
    }
    try:
        args = TrainingArguments(**chosen)
    except (ValueError, TypeError, ImportError) as error:
        raise ConfigError(f"alg.training_args: {error}") from error
    if n_processes() > 1:
        # transformers sees one process: `ResumableTrainer` shares the batches and sums the gradients. Otherwise, the
        # last batch of an epoch would be filled up, and batches of similar length would be other ones.
        args.distributed_state.distributed_type, args.distributed_state.num_processes = DistributedType.NO, 1
    return args
