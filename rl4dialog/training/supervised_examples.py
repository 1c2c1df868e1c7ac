"""From samples to padded batches for supervised fine-tuning of a language model.

Prompt and reply are tokenized apart and joined as ids. In a rollout the model also continues a prompt's own ids, so it
is trained on exactly what it will see; one tokenization of the joined text would merge tokens over the seam. A reply is
learned with its end: the turn marker of the dialogue format where there is one, else the end-of-sequence token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypedDict

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rl4dialog.core.errors import ConfigError, DataError, ModelError
from rl4dialog.core.types import Sample
from rl4dialog.text.tokenizer import encode_prompt

IGNORED_LABEL = -100
LOSS_ON = ("reply", "all")


class SupervisedExample(TypedDict):
    """One training sequence.

    Attributes:
        input_ids: Prompt and reply, without padding; for an encoder-decoder the prompt.
        labels: The same length, with `IGNORED_LABEL` where a token is not to be learned; for an encoder-decoder the
            reply.
    """

    input_ids: list[int]
    labels: list[int]


def build_examples(
    samples: Iterable[Sample],
    tokenizer: PreTrainedTokenizerBase,
    *,
    end_of_turn: str | None,
    max_prompt_length: int,
    max_reply_length: int,
    loss_on: str = "reply",
    in_encoder: bool = False,
    prompt_truncation_side: str = "left",
) -> list[SupervisedExample]:
    """Tokenize samples, one example per reference.

    Args:
        samples: Prompts with references.
        tokenizer: The model's.
        end_of_turn: Text that ends a reply; without it the tokenizer's end-of-sequence token does.
        max_prompt_length: In tokens; longer prompts lose their beginning.
        max_reply_length: In tokens, with the end. A longer reply is cut, and has no end to learn.
        loss_on: ``reply``, or ``all`` for prompt and reply.
        in_encoder: Prompts go into an encoder and replies into a decoder.
        prompt_truncation_side: Which end of a long prompt is dropped.

    Raises:
        ConfigError: If ``loss_on`` is unknown, or ``all`` where an encoder reads the prompt.
        DataError: If no sample has a reference.
        ModelError: If the tokenizer cannot write the end of a reply.
    """
    if loss_on not in LOSS_ON:
        raise ConfigError(f"loss_on must be one of {', '.join(LOSS_ON)}, not {loss_on!r}")
    if in_encoder and loss_on == "all":
        raise ConfigError("loss_on: all is for decoder-only models; an encoder-decoder writes the reply only")
    _check_end(tokenizer, end_of_turn)
    examples = []
    for sample in samples:
        prompt = encode_prompt(tokenizer, sample.prompt_or_input_text, max_prompt_length, prompt_truncation_side)
        for reference in sample.references:
            reply = encode_reply(tokenizer, reference, end_of_turn, max_reply_length)
            if in_encoder:
                examples.append(SupervisedExample(input_ids=prompt, labels=reply))
                continue
            labels = prompt + reply if loss_on == "all" else [IGNORED_LABEL] * len(prompt) + reply
            examples.append(SupervisedExample(input_ids=prompt + reply, labels=labels))
    if not examples:
        raise DataError("there is nothing to fine-tune on: no sample of the datapool has a reference")
    return examples


class PaddingCollator:
    """Pads examples on the right. The mask comes from the lengths: the pad id may well be a real token's."""

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, examples: Sequence[SupervisedExample]) -> dict[str, Tensor]:
        """Make a batch: ``input_ids``, ``attention_mask`` and ``labels``, each int64 and padded on the right."""
        ids, labels = [e["input_ids"] for e in examples], [e["labels"] for e in examples]
        return {
            "input_ids": _padded(ids, self.pad_token_id),
            "attention_mask": _padded([[1] * len(row) for row in ids], 0),
            "labels": _padded(labels, IGNORED_LABEL),
        }


def _padded(rows: list[list[int]], value: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [value] * (longest - len(row)) for row in rows])


def encode_reply(tokenizer: PreTrainedTokenizerBase, text: str, end_of_turn: str | None, max_length: int) -> list[int]:
    """Token ids of a reply with its end, or the first ``max_length`` of a longer one, which has no end then."""
    whole: list[int] = _encode(tokenizer, text + (end_of_turn or ""))
    if end_of_turn is None:
        whole = [*whole, tokenizer.eos_token_id]
    if len(whole) <= max_length:
        return whole
    # Cut without the end, of which a part could be left otherwise.
    return _encode(tokenizer, text)[:max_length]


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
    return ids


def _check_end(tokenizer: PreTrainedTokenizerBase, end_of_turn: str | None) -> None:
    """A reply whose end is never seen could never be learned to end."""
    if end_of_turn is None:
        if tokenizer.eos_token_id is None:
            raise ModelError("the tokenizer has no end-of-sequence token, and the datapool no end_of_turn text")
    elif end_of_turn not in tokenizer.decode(_encode(tokenizer, end_of_turn), skip_special_tokens=False):
        raise ModelError(f"the tokenizer cannot write {end_of_turn!r}, the text that ends a reply in this datapool")
