"""Estimates of the partner's state."""

import numpy as np
import pytest
from tiny import make_gpt2, make_tokenizer

from rl4dialog.core.errors import ConfigError
from rl4dialog.features.dialogue_acts.turn_goals.estimators import BagOfWords, HiddenMean, RankingEstimator
from rl4dialog.features.personas.get_acquainted import generate_dialogues

PERSONAS = [tuple(dialogue.meta_data["partner_persona"]) for dialogue in generate_dialogues("train", 200)]


def test_bag_of_words_is_the_mean_of_what_was_said():
    estimate = BagOfWords(PERSONAS)
    one, other = "my pet is a dog .", "my sport is golf ."
    found = estimate([[one], [other], [one, other, one], ["unheard ."]])
    assert found.shape == (4, estimate.size) and found.dtype == np.float32
    assert np.allclose(found[2], (found[0] + found[1]) / 2) and not found[3].any()
    assert np.isclose(np.linalg.norm(found[0]), 1)


def test_columns_are_in_the_order_of_the_words():
    """The order of a set would differ between processes, and saved policies would read other words."""
    words = [f"word{i}" for i in range(40)]
    found = BagOfWords([tuple(words[:20]), tuple(words[20:])])([[word] for word in words])
    assert found.argmax(1).tolist() == [*range(40)]


def test_fingerprint_is_that_of_words_and_arguments():
    estimates = [BagOfWords(PERSONAS), BagOfWords(PERSONAS[:50]), RankingEstimator(PERSONAS, n_steps=1)]
    prints = [*(each.fingerprint for each in estimates), RankingEstimator(PERSONAS, n_steps=1, size=8).fingerprint]
    assert len(set(prints)) == 4 and BagOfWords(PERSONAS).fingerprint == prints[0]


def test_hidden_mean_takes_any_layer_that_there_is(tmp_path_factory):
    folder, tokenizer = str(tmp_path_factory.mktemp("model")), make_tokenizer()
    tokenizer.save_pretrained(folder)
    make_gpt2(tokenizer).save_pretrained(folder)
    said = [["w1 w2", "w3"], ["w4 w5 w6"]]
    found = [HiddenMean(folder, layer)(said) for layer in (0, 1, 2, -1)]
    assert found[0].shape == (2, 32) and np.array_equal(found[2], found[3]) and not np.allclose(found[0], found[1])
    alone = HiddenMean(folder, 1)
    assert np.array_equal(np.concatenate([alone([texts]) for texts in reversed(said)])[::-1], found[1])
    with pytest.raises(ConfigError, match="estimator 'hidden_mean': layer must be from -3 to 2, not 3"):
        HiddenMean(folder, 3)


def test_ranking_loss_brings_facts_of_the_same_persona_together():
    """Half of the personas speak of one kind of things, half of another; the words of single facts differ."""
    kinds = [[f"{kind}{i} thing{j} ." for i in range(6)] for j, kind in enumerate(("red", "blue"))]
    rng = np.random.default_rng(0)
    personas = [tuple(rng.permutation(kinds[n % 2])[:3].tolist()) for n in range(60)]
    estimate = RankingEstimator(personas, size=4, n_steps=60, batch_size=32, learning_rate=0.05)
    assert np.mean(estimate.losses[-10:]) < 0.8 * np.mean(estimate.losses[:5])
    vectors = estimate([[fact] for kind in kinds for fact in kind])
    distances = np.linalg.norm(vectors[:, None] - vectors[None], axis=-1)
    assert distances[:6, :6].mean() < distances[:6, 6:].mean() / 2
    again = RankingEstimator(personas, size=4, n_steps=60, batch_size=32, learning_rate=0.05)
    assert np.array_equal(again([["red0 thing0 ."]]), estimate([["red0 thing0 ."]]))


def test_ranking_loss_refuses_what_it_cannot_learn_from():
    with pytest.raises(ConfigError, match="needs two personas of at least two facts; the train split has 0"):
        RankingEstimator([("a",), ("b",)])
    with pytest.raises(ConfigError, match="base: hidden_mean needs a model_name"):
        RankingEstimator(PERSONAS, base="hidden_mean")
