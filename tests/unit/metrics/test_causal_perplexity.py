"""Strided perplexity against a naive loop."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tiny import make_gpt2, make_tokenizer

from rl4dialog.core.errors import DataError, ModelError
from rl4dialog.metrics.causal_perplexity import CausalPerplexityMetric

REFERENCES = [["w1 w2 w3 w4 w5"], ["w6 w7", "w8 w9 w1 w1"], ["w0 w2 w4 w6 w8 w10 3 1 4 1 5"]]
TEXT = "\n\n".join(text for references in REFERENCES for text in references)


def compute(metric: CausalPerplexityMetric, model: Any, **arguments: Any) -> Any:
    return metric.compute([""] * 3, [""] * 3, REFERENCES, model=model, **arguments)


def naive_perplexity(model: Any, ids: list[int], stride: int, window: int) -> float:
    """One forward pass per predicted token, with the context that its window leaves it."""
    total, n_predicted = 0.0, 0
    for position in range(1, len(ids)):
        end = min((position // stride + 1) * stride, len(ids))
        context = ids[max(0, end - window) : position]
        if context:
            log_probs = model(torch.tensor([context])).logits[0, -1].log_softmax(-1)
            total, n_predicted = total - log_probs[ids[position]].item(), n_predicted + 1
    return math.exp(total / n_predicted)


@pytest.mark.parametrize("stride", [1, 3, 8, 100])
@pytest.mark.parametrize("window", [8, 64])
@torch.no_grad()
def test_perplexity_equals_naive_loop(stride: int, window: int) -> None:
    tokenizer = make_tokenizer()
    model = make_gpt2(tokenizer, n_positions=window)
    (key, (scores, found)), *others = compute(CausalPerplexityMetric(stride, tokenizer=tokenizer), model).items()
    assert (key, scores, others) == ("fluency_metrics/perplexity", None, [])
    expected = naive_perplexity(model, tokenizer(TEXT)["input_ids"], min(stride, window), window)
    assert found == pytest.approx(expected, rel=1e-5)


def test_dropout_is_off_and_mode_is_restored(tokenizer: Any) -> None:
    model = make_gpt2(tokenizer)
    metric = CausalPerplexityMetric(4, tokenizer=tokenizer)
    expected = compute(metric, model)
    assert compute(metric, model.train()) == expected
    assert model.training


def test_train_split_is_skipped(tokenizer: Any) -> None:
    assert compute(CausalPerplexityMetric(4, tokenizer=tokenizer), None, split_name="train") == {}


def test_missing_model_is_refused(tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="needs a model"):
        compute(CausalPerplexityMetric(4, tokenizer=tokenizer), None)


def test_tokenizer_of_another_model_is_refused(tokenizer: Any) -> None:
    model = make_gpt2(tokenizer)
    model.resize_token_embeddings(6)
    with pytest.raises(ModelError, match=r"token id \d+ is outside the model's vocabulary of 6"):
        compute(CausalPerplexityMetric(4, tokenizer=tokenizer), model)


def test_meta_data_replaces_references(tokenizer: Any) -> None:
    model = make_gpt2(tokenizer)
    metric = CausalPerplexityMetric(4, use_text_from_meta_data=True, tokenizer=tokenizer)
    found = compute(metric, model, meta_infos=[{"reference": references[0]} for references in REFERENCES])
    firsts = [[references[0]] for references in REFERENCES]
    plain = CausalPerplexityMetric(4, tokenizer=tokenizer).compute([""] * 3, [""] * 3, firsts, model=model)
    assert found == plain
    with pytest.raises(DataError, match=r"meta_data\['reference'\]"):
        compute(metric, model, meta_infos=[{}] * 3)


def test_missing_tokenizer_is_named(tmp_path: object, tokenizer: Any) -> None:
    with pytest.raises(ModelError, match=r"nowhere.*cannot be loaded"):
        CausalPerplexityMetric(4, tokenizer_id=f"{tmp_path}/nowhere")
    CausalPerplexityMetric(4, tokenizer_id="builtin/any", tokenizer=tokenizer)
