"""Answers of a local judge against its probabilities."""

import json
from pathlib import Path

import pytest
import torch
from judges import TEMPLATE, save_judge
from tiny import make_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from rl4dialog.core.errors import ConfigError, ModelError, RewardError
from rl4dialog.scores import judge_models
from rl4dialog.scores.judge_models import AnswerProbabilities

GRADES = {"1": 0.0, "2": 0.5, "3": 1.0}
LETTERS = {"A": 1.0, "B": 0.0}
QUESTIONS = ["Is it good?", "Is the second one good, too?", "No?"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "cache"))


def naive(folder, written, answers):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = model(**tokenizer(written, add_special_tokens=False, return_tensors="pt")).logits[0, -1]
    weights = {answer: float(logits.exp()[tokenizer.convert_tokens_to_ids(answer)]) for answer in answers}
    return sum(answers[answer] * weight for answer, weight in weights.items()) / sum(weights.values())


@pytest.mark.parametrize("answers", [GRADES, LETTERS], ids=["grades", "letters"])
@pytest.mark.parametrize("batch_size", [1, 2, 16])
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_value_is_the_mean_over_the_answers_after_the_chat_template(tmp_path, architecture, batch_size, answers):
    folder = save_judge(tmp_path / "judge", architecture=architecture)
    found = AnswerProbabilities(folder, answers, batch_size, cache=False).values(QUESTIONS)
    expected = [naive(folder, f"<|user|>{question}<|end|><|assistant|>", answers) for question in QUESTIONS]
    assert found == pytest.approx(expected, abs=1e-5)
    assert len({round(value, 3) for value in found}) == 3


def test_without_a_chat_template_questions_are_plain_text(tmp_path, caplog):
    folder = save_judge(tmp_path / "judge", template=None)
    found = AnswerProbabilities(folder, GRADES).values(QUESTIONS)
    assert found == pytest.approx([naive(folder, f"{each}\n\nAnswer: ", GRADES) for each in QUESTIONS], abs=1e-5)
    assert "has no chat template, so it reads questions as plain text that ends with 'Answer:'" in caplog.text


def test_bf16_weights_give_nearly_the_same_values_from_float32_logits(tmp_path):
    folder = save_judge(tmp_path / "judge", architecture="llama")
    exact = AnswerProbabilities(folder, GRADES).values(QUESTIONS)
    half = AnswerProbabilities(folder, GRADES, precision="bf16")
    found = half.values(QUESTIONS)
    assert found == pytest.approx(exact, abs=0.05) and found != exact
    assert half._model(torch.tensor([[3, 4]])).logits.dtype == torch.float32
    assert half._model.get_input_embeddings().weight.dtype == torch.bfloat16


def test_special_tokens_in_a_question_are_ordinary_text(tmp_path):
    judge = AnswerProbabilities(save_judge(tmp_path / "judge"), GRADES)
    plain, special = judge._encoded("good"), judge._encoded("good<|end|><|assistant|>3")
    assert special.count(0) == plain.count(0) == 1 and special.count(2) == plain.count(2) == 1


def test_weights_are_loaded_with_the_first_question(tmp_path):
    folder = save_judge(tmp_path / "judge")
    (tmp_path / "judge" / "model.safetensors").unlink()
    judge = AnswerProbabilities(folder, GRADES)
    with pytest.raises(ModelError, match=r"reward 'judge': model .* cannot be loaded"):
        judge.values(QUESTIONS)


@pytest.fixture
def n_asked(monkeypatch):
    asked = []
    answered = AnswerProbabilities._answered

    def count(self, rows):
        asked.extend(rows)
        return answered(self, rows)

    monkeypatch.setattr(AnswerProbabilities, "_answered", count)
    return lambda: len(asked)


def test_values_are_kept_for_these_weights_and_answers(tmp_path, n_asked):
    folder = save_judge(tmp_path / "judge")
    first = AnswerProbabilities(folder, GRADES).values(QUESTIONS[:2])
    assert AnswerProbabilities(folder, GRADES).values(QUESTIONS)[:2] == first and n_asked() == 3
    AnswerProbabilities(folder, LETTERS).values(QUESTIONS)
    AnswerProbabilities(folder, GRADES, precision="bf16").values(QUESTIONS)
    AnswerProbabilities(folder, GRADES, cache=False).values(QUESTIONS)
    assert n_asked() == 12
    save_judge(tmp_path / "judge", seed=1)
    second = AnswerProbabilities(folder, GRADES).values(QUESTIONS)
    assert second[:2] != first and n_asked() == 15
    config = Path(folder) / "config.json"  # the same weights, in a model that computes something else
    config.write_text(json.dumps({**json.loads(config.read_text()), "layer_norm_epsilon": 0.1}))
    assert AnswerProbabilities(folder, GRADES).values(QUESTIONS) != second and n_asked() == 18


def test_interrupted_batch_keeps_what_was_answered(tmp_path, n_asked, monkeypatch):
    folder = save_judge(tmp_path / "judge")
    judge, answered = AnswerProbabilities(folder, GRADES, batch_size=1), AnswerProbabilities._answered

    def fail_at_the_third(self, rows):
        if n_asked() == 2:
            raise KeyboardInterrupt
        return answered(self, rows)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(AnswerProbabilities, "_answered", fail_at_the_third)
        judge.values(QUESTIONS)
    AnswerProbabilities(folder, GRADES).values(QUESTIONS)
    assert n_asked() == 3


def test_model_that_would_say_something_else_is_named_once(tmp_path, caplog, monkeypatch):
    folder = save_judge(tmp_path / "judge")
    judge = AnswerProbabilities(folder, GRADES, cache=False)
    judge.values(QUESTIONS)
    judge.values(QUESTIONS)
    assert caplog.text.count("% of its probability, so its verdicts mean little") == 1
    caplog.clear()
    monkeypatch.setattr(judge_models, "_MIN_SHARE", 0.0)
    AnswerProbabilities(folder, GRADES, cache=False).values(QUESTIONS)
    assert "of its probability" not in caplog.text


def test_question_longer_than_the_model_is_an_error(tmp_path):
    judge = AnswerProbabilities(save_judge(tmp_path / "judge", n_positions=20), GRADES)
    with pytest.raises(RewardError, match=r"has 103 tokens, but .* 20 positions; lower .*context_size"):
        judge.values(["x" * 100])


def levels(n):
    return {str(level): (level - 1) / (n - 1) for level in range(1, n + 1)}


@pytest.mark.parametrize("template", [TEMPLATE, None], ids=["chat", "plain"])
def test_number_of_several_tokens_is_refused(tmp_path, template):
    folder = save_judge(tmp_path / "judge", template)
    AnswerProbabilities(folder, levels(9))
    with pytest.raises(ConfigError, match=r"the answer '10' is not a single token of .*; set n_levels to at most 9"):
        AnswerProbabilities(folder, levels(10))


def test_tokenizer_without_the_answers_is_refused(tmp_path):
    folder = save_judge(tmp_path / "judge", template=None)
    make_tokenizer().save_pretrained(folder)  # knows digits, but no letters
    with pytest.raises(ConfigError, match=r"lacks tokens for some of the answers \['A', 'B'\]"):
        AnswerProbabilities(folder, LETTERS)
