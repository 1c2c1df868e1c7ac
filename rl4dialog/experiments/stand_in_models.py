"""Tiny models with random weights that replace the models of rewards and metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

_BERT: dict[str, Any] = {
    **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
    "num_labels": 2,
}
_T5: dict[str, Any] = {
    **{"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2},
    "decoder_start_token_id": 0,
}


def save_bert(folder: Path) -> str:
    """Save a classifier with two labels, whose encoder also works for BERTScore; returns its folder."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "i", "the", "you", "to", "is", "of"]
    frame = {"single": "[CLS] $A [SEP]", "special_tokens": [("[CLS]", 2), ("[SEP]", 3)]}
    special = {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")}
    return _save(folder, words, "[UNK]", frame, special, BertForSequenceClassification, BertConfig, _BERT)


def save_t5(folder: Path) -> str:
    """Save an encoder-decoder whose vocabulary contains "good" and "bad"; returns its folder."""
    words = ["<pad>", "</s>", "<unk>", "good", "bad"]
    frame = {"single": "$A </s>", "special_tokens": [("</s>", 1)]}
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return _save(folder, words, "<unk>", frame, special, T5ForConditionalGeneration, T5Config, _T5)


def _save(
    folder: Path,
    words: list[str],
    unknown: str,
    frame: dict[str, Any],
    special: dict[str, str],
    model_class: Any,
    config_class: Any,
    size: dict[str, Any],
) -> str:
    if not folder.is_dir():
        tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=unknown))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.post_processor = processors.TemplateProcessing(**frame)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model_class(config_class(vocab_size=len(words), **size)).save_pretrained(folder)
    return str(folder)
