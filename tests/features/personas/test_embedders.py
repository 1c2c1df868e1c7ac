"""Texts as vectors, by hand and one at a time."""

import math

import numpy as np
import pytest
import torch
from judges import save_judge
from transformers import AutoModelForCausalLM, AutoTokenizer

from rl4dialog.core.errors import ConfigError
from rl4dialog.features.personas.embedders import HiddenMeanEmbedder, TfidfEmbedder
from rl4dialog.scores.language_models import FrozenLanguageModel, cosines


def test_tfidf_is_that_of_scikit_learn():
    embed = TfidfEmbedder(["I sail .", "i run , i sail .", "i read ."])
    common, sail, read = 1 + math.log(4 / 4), 1 + math.log(4 / 3), 1 + math.log(4 / 2)
    vectors = embed(["i sail sail", "i read", "do you ?", "SAIL , read !"])
    first, second = np.array([common, 2 * sail]), np.array([common, read])
    expected = common**2 / np.linalg.norm(first) / np.linalg.norm(second)
    assert cosines(vectors, vectors)[0, 1] == pytest.approx(expected)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 0, 1])
    assert cosines(vectors, vectors)[2].tolist() == [0, 0, 0, 0]
    assert cosines(vectors, vectors)[1, 3] == pytest.approx(
        read**2 / np.linalg.norm([common, read]) / np.hypot(sail, read)
    )


def test_hidden_mean_is_that_of_one_pass_per_text(tmp_path_factory):
    folder = save_judge(tmp_path_factory.mktemp("model"), template=None, architecture="llama")
    texts = ["How are you?", "Fine.", "", "How are you?"]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    for layer in (-1, 0):
        found = HiddenMeanEmbedder(FrozenLanguageModel(folder, "it"), layer, "it")(texts)
        for vector, text in zip(found, texts, strict=True):
            ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"].long()
            if not text:
                assert not vector.any()
                continue
            with torch.no_grad():
                states = model(ids, output_hidden_states=True).hidden_states[layer][0]
            assert vector == pytest.approx(states.mean(0).numpy(), abs=1e-5)
    with pytest.raises(ConfigError, match="it: layer must be from -3 to 2, not 5"):
        HiddenMeanEmbedder(FrozenLanguageModel(folder, "it"), 5, "it")
