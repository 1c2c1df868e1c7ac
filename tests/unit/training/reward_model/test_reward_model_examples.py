"""Judged texts as examples and batches."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from reward_models import TEXTS

from rl4dialog.core.types import Sample
from rl4dialog.training.reward_model.examples import bootstrap_weights, encode_judged, pad_judged
from rl4dialog.training.tiny_bert import train_tokenizer

SAMPLES = [
    Sample(0, TEXTS[0], [], {"rating": 0.25}),
    Sample(1, TEXTS[1], [], {"worse_text": TEXTS[2]}),
    Sample(2, TEXTS[3], [], {"worse_text": " ".join(TEXTS)}),
]


def test_batch_has_all_first_texts_before_the_worse_ones(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "rl4dialog")
    tokenizer = train_tokenizer(TEXTS, 300, 64)
    batch = pad_judged(tokenizer, encode_judged(SAMPLES, tokenizer, 64))
    assert batch["labels"].tolist() == [0.25, 1, 1] and batch["is_comparison"].tolist() == [False, True, True]
    texts = [TEXTS[0], TEXTS[1], TEXTS[3], TEXTS[2], " ".join(TEXTS)]
    for ids, mask, text in zip(batch["input_ids"], batch["attention_mask"], texts, strict=True):
        assert ids[mask.bool()].tolist() == tokenizer(text)["input_ids"]
        assert mask.tolist() == sorted(mask.tolist(), reverse=True)
    assert "weights" not in batch and not caplog.text
    encode_judged(SAMPLES, tokenizer, 10)
    assert "4 of 5 texts are longer than 10 tokens and lose their beginning" in caplog.text


def test_bootstrap_draws_whole_conversations() -> None:
    samples = [Sample(i, "a", [], {"conversation": i // 2}) for i in range(20)]
    weights = np.array(bootstrap_weights(samples, 3, seed=0))
    assert weights.shape == (20, 3) and (weights.sum(0) == 20).all()
    assert (weights[::2] == weights[1::2]).all()
    assert (weights[:, 0] != weights[:, 1]).any() and (weights == 0).any()
    assert (weights == np.array(bootstrap_weights(samples, 3, seed=0))).all()
