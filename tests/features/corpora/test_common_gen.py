"""RL4LMs' rewards for CommonGen."""

import math

import pytest
import torch
from replies import pay
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from rl4dialog.catalog import RewardFunctionRegistry
from rl4dialog.core.errors import ConfigError, DataError, ModelError
from rl4dialog.features.corpora.common_gen import CommonGenPreferenceModel
from rl4dialog.scores.meteor import MeteorMetric

PROMPT = "generate a sentence with: dog ball."
CASES = {"": 0.0, "the dog likes its ball": 0.0, "Dog ball": -1.0, "generate a dog": -1.0, "this Sentence is": -1.0}


def test_repeating_the_prompt_costs_one():
    reward = RewardFunctionRegistry.get("common_gen_repeat_penalty")
    assert {text: pay(reward, text, prompt=PROMPT) for text in CASES} == CASES
    assert pay(reward, "generate", done=False, prompt=PROMPT) == 0.0
    batched, n = RewardFunctionRegistry.get("common_gen_repeat_penalty_batched"), len(CASES)
    assert batched([PROMPT] * n, list(CASES), [[]] * n, [True] * n) == list(CASES.values())
    assert batched([PROMPT] * n, list(CASES), [[]] * n, [False] * n) == [0.0] * n
    with pytest.raises(DataError, match=r"start with 'generate a sentence with: ', not 'summarize: dog'.*prefix"):
        pay(reward, "x", prompt="summarize: dog")


TEXTS = ["a Dog runs", "a a a a", "ball", ""]
INFOS = [{"concepts": ["dog", "ball"]}] * 4
N_MISSING = [1, 2, 1, 2]
REFERENCES = [["a dog runs to the ball"]] * 4
ALL = [True] * 4


@pytest.fixture
def folder(save_t5):
    return save_t5(["good", "bad", "a", "dog", "runs", "ball"])


def one_by_one(folder):
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    found = []
    for text in TEXTS:
        with torch.no_grad():
            start = torch.tensor([[0]])
            logits = model(**tokenizer(text, return_tensors="pt"), decoder_input_ids=start).logits[0, 0]
        good, bad = (math.exp(float(logits[tokenizer.convert_tokens_to_ids(word)])) for word in ("good", "bad"))
        found.append(good / (good + bad))
    return found


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_preference_compares_good_and_bad(folder, batch_size):
    args = {"model_type": "11b", "model_name": folder, "device": "cpu", "batch_size": batch_size}
    reward = RewardFunctionRegistry.get("common_gen_preference_model", args)
    found = reward([""] * 4, TEXTS, REFERENCES, ALL, INFOS)
    assert found == pytest.approx(one_by_one(folder), abs=1e-5)
    assert len({round(score, 4) for score in found}) == 4
    assert reward([""] * 4, TEXTS, REFERENCES, [False] * 4, INFOS) == [0.0] * 4


def test_missing_words_divide_and_meteor_is_added(folder):
    reward = CommonGenPreferenceModel(folder, concept_penalty_coeff=0.5, meteor_coeff=2.0, synonyms=False)
    meteor = MeteorMetric(synonyms=False)
    expected = [
        preference / (1 + 0.5 * n) + 2.0 * meteor.sentence_score(text, REFERENCES[0])
        for preference, n, text in zip(one_by_one(folder), N_MISSING, TEXTS, strict=True)
    ]
    assert reward([""] * 4, TEXTS, REFERENCES, ALL, INFOS) == pytest.approx(expected, abs=1e-5)
    with pytest.raises(DataError, match=r"meta_data\['concepts'\]"):
        reward([""], TEXTS[:1], REFERENCES[:1], [True], [{}])


def test_model_must_be_given_loaded_and_know_the_two_words(save_t5):
    with pytest.raises(ConfigError, match=r"needs model_name.*t5-11b~commongen_prefs\.pt"):
        CommonGenPreferenceModel(model_type="11b")
    with pytest.raises(ModelError, match="'t5-nowhere' cannot be loaded"):
        CommonGenPreferenceModel("t5-nowhere")
    with pytest.raises(ModelError, match="has no token for 'bad'"):
        CommonGenPreferenceModel(save_t5(["good", "a"]))


def test_argument_without_effect_is_told_with_the_reason():
    args = {"model_type": "11b", "batch_size": 1}
    (line,) = RewardFunctionRegistry.without_effect("common_gen_preference_model", args)
    assert line == (
        "reward function 'common_gen_preference_model': model_type has no effect: RL4LMs' name of the only model"
    )
