"""Conversion of samples to padded batches for supervised fine-tuning.

Prompt and reply are tokenized separately and their ids concatenated. Rollouts also continue the ids of a prompt, so
training and rollouts see the same sequences; tokenizing the joined text could merge tokens across the boundary. The
reply to a dialogue is tokenized as its continuation, so that it has the same ids as in the history of a later reply.
The target includes the end of the reply: the turn marker of the dialogue format, or else the end-of-sequence token.

A sample with a ``continuation`` in its meta data is learned as a whole conversation, in the rows that a rollout would
make of it: all utterances of the agent are targets, and those of its partner are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict

from torch import Tensor
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from rl4dialog.core.errors import ConfigError, DataError, ModelError
from rl4dialog.core.types import AGENT, Frame, Sample, Turn
from rl4dialog.envs.conversation import ConversationRules
from rl4dialog.functional.masks import padded
from rl4dialog.functional.replies import Row, joined_rows
from rl4dialog.policies.models import position_limit
from rl4dialog.rollouts.conversation_log import Limits, learned_turns
from rl4dialog.runs.progress import say
from rl4dialog.text.end_of_turn import EndOfTurn, end_of_sequence_ids
from rl4dialog.text.prompts import encode_prompt, encode_reply, encoder_of

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
    """Tokenize all examples for supervised training, and report truncated samples.

    A text has at most ``max_length`` tokens, and as many as the model has positions. ``shape`` are further arguments of
    :func:`build_examples`.
    """
    shape["max_length"] = min((n for n in (max_length, position_limit(model_config)) if n is not None), default=None)
    shape["in_encoder"] = model_config.is_encoder_decoder
    examples, truncation = build_examples(samples, tokenizer, **shape)
    _say_truncation(description, truncation)
    sets = ExampleSets(examples, truncation, of_dialogues="frame" in shape)
    if val_samples is None:
        return sets
    val_examples, val_truncation = build_examples(val_samples, tokenizer, **shape)
    if says_val:
        _say_truncation(f"{description}, val split", val_truncation)
    return replace(sets, val=val_examples)


def _say_truncation(what: str, truncation: Truncation) -> None:
    if text := str(truncation):
        say(f"{what}: {text}", on_terminals=True)


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
) -> tuple[list[SupervisedExample], Truncation]:
    """Tokenize samples, one example per reference, and count what is truncated.

    Limits are in tokens, ``None`` for none. A reply longer than ``max_reply_length`` loses its end, and has no end to
    learn. ``max_length`` is that of prompt and reply together, or of each if an encoder reads the prompt: the prompt is
    truncated first, and a reference that exceeds it alone makes no example. With ``whole_turns``, plain prompts
    truncated on the left lose whole turns even without ``end_of_turn``, the text that ends a reply; by default both are
    the end-of-sequence token. ``frame`` is the markup of conversations, the samples with a continuation;
    ``rules.max_turns`` does not apply.
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
            what = (
                f"each of the {len(truncation.left_out)} references has more than the {max_length} tokens that model "
                f"and tokenizer take; choose a model with more positions, or raise tokenizer.max_length"
            )
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
