"""Check of a GGUF file: transformers reads it back, and it is compared with the model that it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl4dialog.core.errors import ModelError
from rl4dialog.core.pretrained import read_gguf
from rl4dialog.policies.models import position_limit

TEXTS = (
    "Hello! How are you today?",
    "I'm fine, thank you. It was 15 to 3 in 2023, wasn't it?",
    "two  spaces, a\ttab and\n\nempty lines",
    "naïve café, Größe, 你好, привет 🙂",
)
# Mean KL divergence per token, in nats, above which a file is of another model. Rounding SmolLM2-135M from float32
# gives 4e-6 (f16), 9e-5 (bf16) and 2e-3 (q8_0).
_MAX_KL = {"f32": 1e-3, "f16": 1e-3, "bf16": 1e-2, "q8_0": 0.1}


def token_ids(tokenizer: Any) -> list[list[int]]:
    """Token ids of :data:`TEXTS`."""
    return [tokenizer(text)["input_ids"] for text in TEXTS]


@torch.no_grad()
def log_probs(model: PreTrainedModel, texts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Log-probabilities of the token after each token of texts, cut to the model's positions. Shapes (tokens, V)."""
    limit = position_limit(model.config)
    return [model(torch.tensor([ids[:limit]])).logits[0].float().log_softmax(dim=-1) for ids in texts]


def check_file(path: Path, texts: Sequence[Sequence[int]], expected: Sequence[Tensor], dtype: str) -> float:
    """Read a file with transformers, and compare its tokens and probabilities.

    Args:
        path: The file.
        texts: Token ids of :data:`TEXTS` by the original tokenizer.
        expected: Log-probabilities of the original model.
        dtype: Number format of the file.

    Returns:
        Mean KL divergence of the file's model from the original one per token, in nats.
    """
    try:
        tokenizer, _, model = read_gguf(path)
    except ModelError:
        raise
    except Exception as error:  # as in core/gguf.py
        raise ModelError(f"transformers cannot read the exported file, so it was removed: {error}") from error
    for text, ids, read in zip(TEXTS, texts, token_ids(tokenizer), strict=True):
        if list(ids) != read:
            raise ModelError(
                f"the tokenizer of the exported file reads {text!r} as other tokens than the run's, so the file was "
                f"removed: {read} instead of {list(ids)}"
            )
    pairs = zip(expected, log_probs(model.eval(), texts), strict=True)
    kls = torch.cat([(old.exp() * (old - new)).sum(dim=-1) for old, new in pairs])
    kl, limit = max(float(kls.mean()), 0.0), _MAX_KL[dtype]
    if not kl <= limit:
        raise ModelError(
            f"the model of the exported file differs from the run's by {kl:.2g} nats per token (KL divergence), more "
            f"than {limit:g}, so the file was removed; try --dtype f32, and please report it if that differs too"
        )
    return kl
