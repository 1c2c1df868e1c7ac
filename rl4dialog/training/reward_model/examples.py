"""Judged texts as training examples of a reward model, and their batches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rl4dialog.core.types import Sample
from rl4dialog.data.judged_texts import RATING, is_comparison, judged_texts, meta_data_of

_logger = logging.getLogger(__name__)


def encode_judged(
    samples: Sequence[Sample], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> list[dict[str, Any]]:
    """Encode judgements as examples; says how many texts are truncated.

    Args:
        samples: Samples of a `JudgedTexts` pool.
        tokenizer: Tokenizer of the model.
        max_length: Maximum length of a text in tokens.

    Returns:
        For each sample ``input_ids`` and ``labels`` (the rating, or 1 for a comparison); for a comparison also
        ``worse_ids``, those of the worse text.
    """
    texts = judged_texts(samples)
    _say_truncation(texts, tokenizer, max_length)
    encoded = token_ids(texts, tokenizer, max_length)
    of_worse = iter(encoded[len(samples) :])
    return [
        {"input_ids": ids, "labels": 1.0, "worse_ids": next(of_worse)}
        if is_comparison(sample)
        else {"input_ids": ids, "labels": float(meta_data_of(sample)[RATING])}
        for sample, ids in zip(samples, encoded, strict=False)
    ]


def token_ids(texts: list[str], tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[list[int]]:
    """Token ids of texts as the model reads them, truncated."""
    return tokenizer(texts, truncation=True, max_length=max_length)["input_ids"] if texts else []  # type: ignore[no-any-return]


def _say_truncation(texts: list[str], tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
    full = tokenizer(texts, verbose=False)["input_ids"]
    if n_cut := sum(len(ids) > max_length for ids in full):
        lost = "beginning" if tokenizer.truncation_side == "left" else "end"
        _logger.warning(
            "%d of %d texts are longer than %d tokens and lose their %s", n_cut, len(texts), max_length, lost
        )


def bootstrap_weights(samples: Sequence[Sample], n_models: int, seed: int) -> list[list[float]]:
    """Draw for each model as many conversations as there are, with replacement.

    All judgements of a conversation are drawn together, as they are not independent.

    Args:
        samples: Samples of a `JudgedTexts` pool.
        n_models: Number of models.
        seed: Random seed.

    Returns:
        How often each sample was drawn for each model.
    """
    numbers: dict[Any, int] = {}
    rows = [numbers.setdefault(meta_data_of(sample)["conversation"], len(numbers)) for sample in samples]
    draws = np.random.default_rng(seed).integers(len(numbers), size=(n_models, len(numbers)))
    counts = np.stack([np.bincount(drawn, minlength=len(numbers)) for drawn in draws], axis=-1)
    found: list[list[float]] = counts[rows].astype(float).tolist()
    return found


def pad_judged(tokenizer: PreTrainedTokenizerBase, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Pad texts on the right: decoders read their output off the last token that is not padding.

    Args:
        tokenizer: Tokenizer of the texts.
        examples: Results of :func:`encode_judged`, with or without ``weights`` of the models.

    Returns:
        ``labels`` and ``is_comparison`` of shape (N,), ``weights`` of shape (N, K) if they are given, and ``input_ids``
        and ``attention_mask`` of shape (N + C, longest): all first texts, then those that are worse.
    """
    texts = [each["input_ids"] for each in examples] + [each["worse_ids"] for each in examples if "worse_ids" in each]
    padded = tokenizer.pad({"input_ids": texts}, padding_side="right", return_tensors="pt")
    batch = {
        "labels": torch.tensor([each["labels"] for each in examples]),
        "is_comparison": torch.tensor(["worse_ids" in each for each in examples]),
        "input_ids": padded["input_ids"],
        "attention_mask": padded["attention_mask"],
    }
    if "weights" in examples[0]:
        batch["weights"] = torch.tensor([each["weights"] for each in examples])
    return batch
