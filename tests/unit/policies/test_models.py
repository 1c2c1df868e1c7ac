"""Files of models that lack layers are an error wherever a language model is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gguf_file import write_llama
from judges import save_judge
from tiny import make_tokenizer
from transformers import AutoModelForCausalLM

from rl4dialog.core.errors import ModelError
from rl4dialog.policies.models import language_model_without_weights, load_language_model
from rl4dialog.scores.judge_models import AnswerProbabilities
from rl4dialog.scores.perplexity import ReplyPerplexityMetric


def set_layers(folder: str, n_layers: int) -> None:
    path = Path(folder, "config.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_hidden_layers": n_layers}))


@pytest.mark.parametrize(
    "load",
    [
        lambda folder: load_language_model(folder, make_tokenizer(), 8, 8, AutoModelForCausalLM),
        lambda folder: ReplyPerplexityMetric(folder).compute(["Hi."], ["Hello."], [[]]),
        lambda folder: AnswerProbabilities(folder, {"A": 1.0, "B": 0.0}, cache=False).values(["Is it good?"]),
    ],
    ids=["policy", "perplexity", "judge"],
)
def test_missing_layers_are_named(tmp_path: Path, load: Callable[[str], object]) -> None:
    folder = save_judge(tmp_path / "model", architecture="llama")
    set_layers(folder, 9)
    with pytest.raises(ModelError, match=r"weights are missing from its files.*model\.layers\."):
        load(folder)


def test_a_model_needs_layers(tmp_path: Path) -> None:
    folder = save_judge(tmp_path / "model", architecture="llama")
    set_layers(folder, -1)
    with pytest.raises(ModelError, match=r"num_hidden_layers in its config.json must be at least 1"):
        load_language_model(folder, make_tokenizer(), 8, 8, AutoModelForCausalLM)


def test_a_gguf_file_is_converted_before_its_architecture_is_built_without_weights(tmp_path: Path) -> None:
    write_llama(tmp_path / "model.gguf")
    name = str(tmp_path / "model.gguf")
    with torch.device("meta"):
        model = language_model_without_weights(name, make_tokenizer(), 8, 8, AutoModelForCausalLM)
    assert model.device.type == "meta"
    assert load_language_model(name, make_tokenizer(), 8, 8, AutoModelForCausalLM).device.type == "cpu"
