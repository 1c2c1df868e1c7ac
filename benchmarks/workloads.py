"""What is timed: a model with random weights, prompts, and how long each reply is. The same for every contestant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    T5Config,
    T5ForConditionalGeneration,
)

from rl4dialog.core.types import Sample
from rl4dialog.data.small_talk.pool import SmallTalk
from rl4dialog.policies.models import load_language_model
from rl4dialog.text.tokenizer import build_tokenizer

# Tokens of GPT-2's vocabulary in DailyDialog's train split: the 2.5 %, 7.5 %, ..., 97.5 % quantiles of prompts of five
# utterances and of replies.
_DAILY_DIALOG_PROMPTS = (51, 57, 61, 64, 68, 71, 75, 78, 82, 86, 90, 93, 98, 103, 108, 115, 124, 135, 151, 183)
_DAILY_DIALOG_REPLIES = (4, 5, 6, 7, 8, 9, 10, 11, 12, 12, 13, 15, 16, 18, 19, 21, 24, 28, 34, 47)

MODEL_KINDS = ("causal", "seq2seq")
_LLAMA: dict[str, dict[str, Any]] = {
    "135m": {  # the shape of SmolLM2 135M
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
    },
    "1b": {  # the shape of Llama 3.2 1B
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
    },
    "8b": {  # the shape of Llama 3.1 8B
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
        "dtype": torch.bfloat16,
    },
}
_SIZES = ("tiny", "small", "medium", "135m", "1b", "8b")


@dataclass(frozen=True)
class Workload:
    """An iteration's worth of work."""

    model: str  # its size or name; see `build_model`
    prompt_lengths: Sequence[int] = field(default=tuple(range(32, 65)), repr=False)  # in tokens, used in turn
    # In tokens. One is chosen for each reply by its first token, so that a model with random weights draws from them,
    # whoever samples.
    reply_lengths: Sequence[int] = field(default=(20,), repr=False)
    n_episodes: int = 64  # replies per iteration
    n_epochs: int = 5
    batch_size: int = 8  # replies
    vocab_size: int = 1000  # of the tokenizer; a pretrained model has its own

    @property
    def max_prompt_length(self) -> int:
        """The longest prompt, in tokens."""
        return max(self.prompt_lengths)

    @property
    def max_reply_length(self) -> int:
        """The longest reply, in tokens."""
        return max(self.reply_lengths)

    @property
    def n_tokens(self) -> int:
        """Agent tokens that an iteration has on average."""
        return round(self.n_episodes * float(np.mean(self.reply_lengths)))


WORKLOADS: dict[str, Workload] = {
    "tiny": Workload("tiny"),
    "small": Workload("small", n_epochs=1),
    "ragged": Workload("tiny", _DAILY_DIALOG_PROMPTS, _DAILY_DIALOG_REPLIES),
    "medium": Workload("medium", n_epochs=1),
    "135m": Workload("135m", n_epochs=1),
    "1b": Workload("1b", n_epochs=1),
    "8b": Workload("8b", n_epochs=1),
}
"""``medium`` and larger ones are meant for a GPU, and ``8b`` for adapters in bf16."""


def build_prompts(workload: Workload) -> tuple[PreTrainedTokenizerBase, list[Sample]]:
    """A tokenizer, and prompts of the wanted lengths."""
    texts = [sample.prompt_or_input_text for sample, _ in SmallTalk.prepare("train", context_size=5)][:2000]
    text = " ".join(texts)
    name = "builtin/tiny-gpt2" if workload.model in _SIZES else workload.model
    tokenizer = build_tokenizer(name, corpus=texts, vocab_size=workload.vocab_size)
    encoded = tokenizer(text, return_offsets_mapping=True, verbose=False)
    starts = [start for start, _ in encoded["offset_mapping"]]
    samples: list[Sample] = []
    position = 0
    while len(samples) < 4 * workload.n_episodes:
        end = position + workload.prompt_lengths[len(samples) % len(workload.prompt_lengths)]
        if end >= len(starts):
            position = 0
            continue
        samples.append(Sample(len(samples), text[starts[position] : starts[end]], [""]))
        position = end
    order = np.random.default_rng(0).permutation(len(samples))
    return tokenizer, [samples[i] for i in order]


def build_model(
    workload: Workload, kind: str, tokenizer: PreTrainedTokenizerBase, device: str = "cpu"
) -> PreTrainedModel:
    """A model of the workload's size with random weights, or a pretrained one, without dropout.

    ``tiny`` has width 128 and 4 layers. ``causal`` is GPT-2 (Llama for ``135m``, ``1b`` and ``8b``), ``seq2seq`` is T5.
    """
    lengths = (workload.max_prompt_length, workload.max_reply_length)
    auto_class: Any = AutoModelForSeq2SeqLM if kind == "seq2seq" else AutoModelForCausalLM
    if workload.model not in _SIZES or workload.model == "tiny":
        tiny = "builtin/tiny-t5" if kind == "seq2seq" else "builtin/tiny-gpt2"
        name = tiny if workload.model == "tiny" else workload.model
        return load_language_model(name, tokenizer, *lengths, auto_class)
    ids: dict[str, Any] = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    undropped: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    torch.manual_seed(0)
    if (workload.model, kind) == ("small", "causal"):
        return GPT2LMHeadModel(GPT2Config(**ids, **undropped))
    if (workload.model, kind) == ("small", "seq2seq"):
        t5 = T5Config(dropout_rate=0.0, **ids)
        t5.decoder_start_token_id = tokenizer.pad_token_id
        return T5ForConditionalGeneration(t5)
    if (workload.model, kind) == ("medium", "causal"):
        return GPT2LMHeadModel(GPT2Config(n_embd=1024, n_layer=24, n_head=16, **ids, **undropped))
    if workload.model in _LLAMA and kind == "causal":
        with torch.device(device):
            config = LlamaConfig(**_LLAMA[workload.model], **ids)
            return AutoModelForCausalLM.from_config(config)
    raise ValueError(f"there is no {kind} model {workload.model!r} to measure")
