"""Weights that ``from_pretrained`` would fill with random numbers are errors; new heads and pooler are allowed."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_file import write_llama
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from rl4dialog.core.errors import ModelError
from rl4dialog.core.gguf import folder_of_gguf
from rl4dialog.core.pretrained import load_model

SIZES = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
QUERY = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A language model with tied embeddings."""
    LlamaForCausalLM(LlamaConfig(tie_word_embeddings=True, **SIZES)).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def change_config(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def load(folder: Path, auto_class: Any = AutoModelForCausalLM, **kwargs: Any) -> Any:
    return load_model(auto_class, str(folder), "language model", "Hint.", **kwargs)


def test_a_whole_model_with_tied_weights_is_loaded(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rl4dialog"):
        load(folder)
    assert not caplog.text


@pytest.mark.parametrize("new_head", [False, True])
def test_a_missing_weight_is_named(folder: Path, new_head: bool) -> None:
    change_weights(folder, lambda weights: weights.pop(QUERY))
    with pytest.raises(ModelError, match=rf"^language model '.*' cannot be loaded: weights are missing .*\({QUERY}\)"):
        load(folder, new_head=new_head)


def test_layers_that_the_files_lack_are_named(folder: Path) -> None:
    change_config(folder, num_hidden_layers=4)
    with pytest.raises(ModelError, match=r"\(model.layers.2.input_layernorm.weight and 17 more\).*model. Hint.$"):
        load(folder)


def test_layers_that_are_not_used_are_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    change_config(folder, num_hidden_layers=1)
    with caplog.at_level(logging.WARNING, "rl4dialog"):
        load(folder)
    assert "does not use (model.layers.1.input_layernorm.weight and 8 more)" in caplog.text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_broken_weight_is_named(folder: Path, value: float) -> None:
    change_weights(folder, lambda weights: weights[QUERY][0].fill_(value))
    with pytest.raises(ModelError, match=rf"weights are NaN or infinite \({QUERY}\)"):
        load(folder)


def test_a_head_is_random_only_if_it_is_to_be_trained(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"\(score.weight\)"):
        load(folder, AutoModelForSequenceClassification, num_labels=3)
    load(folder, AutoModelForSequenceClassification, num_labels=3, new_head=True).save_pretrained(folder)
    with pytest.raises(ModelError, match=r"another size there \(score.weight\)"):
        load(folder, AutoModelForSequenceClassification, num_labels=1)
    assert load(folder, AutoModelForSequenceClassification, num_labels=1, new_head=True).score.out_features == 1


def test_a_body_of_another_size_is_not_a_new_head(folder: Path) -> None:
    change_config(folder, intermediate_size=8)
    with pytest.raises(ModelError, match=r"have another size there \(model.layers.0.mlp.down_proj.weight and 5 more\)"):
        load(folder, AutoModelForSequenceClassification, new_head=True)


@pytest.mark.parametrize("auto_class", [AutoModel, AutoModelForSequenceClassification])
def test_an_encoder_without_pooler_is_a_beginning(tmp_path: Path, auto_class: Any) -> None:
    BertForMaskedLM(BertConfig(**SIZES)).save_pretrained(tmp_path)
    load(tmp_path, auto_class, new_head=True)


def test_a_converted_gguf_file_can_get_another_head(tmp_path: Path) -> None:
    original = write_llama(tmp_path / "model.gguf")
    model = load(folder_of_gguf(tmp_path / "model.gguf"), AutoModelForSequenceClassification, new_head=True)
    assert torch.equal(model.model.embed_tokens.weight, original.model.embed_tokens.weight)
