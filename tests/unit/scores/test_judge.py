"""Judges of replies: questions, verdicts, endpoints and caches."""

import json
import math
import re
from pathlib import Path

import pytest
import torch
from judges import KEY, TEMPLATE, Endpoint, said, save_judge
from tiny import make_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from rl4dialog.catalog import RewardFunctionRegistry
from rl4dialog.core.async_calls import AsyncCalls
from rl4dialog.core.errors import ConfigError, ModelError, RewardError
from rl4dialog.core.reward_parts import FinishedReplies
from rl4dialog.scores.judge import AnswerProbabilities, JudgeReward
from rl4dialog.scores.parts import as_parts
from rl4dialog.scores.scoring import Scorer

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
    monkeypatch.setattr("rl4dialog.scores.judge._MIN_SHARE", 0.0)
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


CALLS = AsyncCalls(concurrency=8, timeout_s=5.0, retries=1, retry_wait_s=0.01)


@pytest.fixture
def endpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("JUDGE_KEY", KEY)
    with Endpoint() as found:
        yield found


def judge(endpoint, **args):
    return JudgeReward(**{"rubric": "Be kind.", "base_url": endpoint.url, "model": "wise", **args})


def scores(reward, texts, calls=CALLS, on_error="raise", prompts=None, **other):
    replies = FinishedReplies(prompts or ["Hi. <EOU>"] * len(texts), texts, [[] for _ in texts], **other)
    return Scorer(as_parts(reward, "judge"), on_error, calls).score(replies).total


def reply_in(question, tag="reply"):
    found = re.search(rf"<{tag}>\n(.*)\n</{tag}>", question)
    return found[1]


@pytest.mark.parametrize(
    ("answer", "n_levels", "expected"),
    [("1", 10, 0.0), ("10", 10, 1.0), (" 7.\n", 7, 1.0), ("Score: 3", 5, 0.5), ("3/5", 5, 0.5), ("rating 2", 3, 0.5)],
)
def test_grade_is_mapped_to_0_to_1(endpoint, answer, n_levels, expected):
    endpoint.answer = lambda question: said(answer)
    assert scores(judge(endpoint, n_levels=n_levels), ["Hello."]) == [expected]


def test_judge_reads_rubric_conversation_and_reply(endpoint):
    scores(judge(endpoint), ["Fine."], meta_infos=[{"history": ["Hi.", "Hello.", "How are you?"]}])
    (question,) = endpoint.questions
    assert "Be kind." in question and "User: Hi.\nAssistant: Hello.\nUser: How are you?" in question
    assert reply_in(question) == "Fine." and "from 1 (worst) to 10 (best)" in question


def test_equal_questions_are_asked_once_and_never_again(endpoint):
    for _ in range(2):
        assert scores(judge(endpoint), ["a", "a", "b"]) == [pytest.approx(6 / 9)] * 3
    assert len(endpoint.questions) == 2
    scores(judge(endpoint, rubric="Be rude."), ["a"])
    scores(judge(endpoint, cache=False), ["a", "a"])
    assert len(endpoint.questions) == 5


def test_damaged_cache_file_is_asked_again(endpoint, tmp_path):
    scores(judge(endpoint), ["a"])
    (file,) = (path for path in (tmp_path / "cache").rglob("*.json"))
    file.write_text('{"answ')
    assert scores(judge(endpoint), ["a"]) == [pytest.approx(6 / 9)]
    assert len(endpoint.questions) == 2


def test_run_continues_without_a_writable_cache(endpoint, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "file"))
    assert scores(judge(endpoint), ["a", "b"]) == [pytest.approx(6 / 9)] * 2
    assert caplog.text.count("answers of the judge cannot be kept") == 1


FAILURES = {
    "prose": (said("I like this."), r"judge 'wise' answered 'I like this.' instead of a whole", 1),
    "long prose": (said("no " * 100), r"answered 'no .* \.\.\.' instead of a whole number from 1 to 10", 1),
    "too high": (said("11"), r"answered '11' instead of a whole number from 1 to 10", 1),
    "another scale": (said("4/5"), r"answered '4/5' instead of", 1),
    "401": ((401, f"wrong key {KEY}"), r"status 401: 'wrong key \*\*\*'; check the API key .*JUDGE_KEY", 1),
    "429": ((429, "slow down"), r"sample 0: http\S+ answered .* 429: 'slow down'; lower reward_fn.*concurrency", 2),
    "nested JSON": ((200, "[" * 100_000), r"did not answer with a chat completion: '\[\[", 2),
    "key as answer": (said(KEY), r"answered '\*\*\*' instead of a whole number", 1),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failure_is_one_paragraph_without_the_key(endpoint, name, caplog):
    answer, message, n_attempts = FAILURES[name]
    endpoint.answer = lambda question: answer
    with pytest.raises(RewardError, match=message) as raised:
        scores(judge(endpoint, api_key_env="JUDGE_KEY"), ["a"])
    assert "'judge' failed on sample 0" in str(raised.value) and "\n" not in str(raised.value)
    assert KEY not in str(raised.value) + repr(raised.value.__cause__) + caplog.text
    assert len(endpoint.questions) == n_attempts and endpoint.keys[0] == f"Bearer {KEY}"


@pytest.mark.parametrize("end", ["\r", "\n", "  "])
def test_key_is_sent_without_the_space_around_it(endpoint, monkeypatch, end):
    monkeypatch.setenv("JUDGE_KEY", KEY + end)
    scores(judge(endpoint, api_key_env="JUDGE_KEY"), ["a"])
    assert endpoint.keys == [f"Bearer {KEY}"]


@pytest.mark.parametrize("key", ["sk-s\u00e9cret", "sk-\nsecret", "sk-secret\u2026"])
def test_key_that_cannot_be_sent_is_refused_and_not_shown(endpoint, monkeypatch, key):
    monkeypatch.setenv("JUDGE_KEY", key)
    with pytest.raises(ConfigError, match="JUDGE_KEY of api_key_env of the judge has characters") as raised:
        judge(endpoint, api_key_env="JUDGE_KEY")
    assert "cret" not in str(raised.value)


def test_key_in_the_place_of_its_name_is_refused_and_not_shown():
    with pytest.raises(ConfigError, match=r"args\.api_key_env: input should be the name of an environ") as raised:
        RewardFunctionRegistry.check("judge", {"rubric": "Be kind.", "api_key_env": KEY}, "args")
    assert "secret" not in str(raised.value)


def test_masked_failure_loses_no_other_answer_and_is_asked_again(endpoint):
    endpoint.answer = lambda question: said("words" if reply_in(question) == "b" else "10")
    first = scores(judge(endpoint), ["a", "b", "c"], on_error="mask")
    assert (first[0], first[2]) == (1.0, 1.0) and math.isnan(first[1])
    endpoint.answer = lambda question: said("1")
    assert scores(judge(endpoint), ["a", "b", "c"]) == [1.0, 0.0, 1.0]
    assert len(endpoint.questions) == 4


def prefers_longer(question):
    return said("A" if len(reply_in(question, "reply_a")) > len(reply_in(question, "reply_b")) else "B")


def test_group_is_ranked_by_the_share_of_won_comparisons(endpoint):
    endpoint.answer = prefers_longer
    texts, prompts = ["a", "x", "aaa", "xx", "aa"], ["p", "q", "p", "q", "p"]
    assert scores(judge(endpoint, compare="group"), texts, prompts=prompts) == [0.0, 0.0, 1.0, 1.0, 0.5]
    assert len(endpoint.questions) == 3 * 2 + 2 * 1  # each pair in both orders, once


def test_letter_that_is_neither_reply_is_an_error(endpoint):
    endpoint.answer = lambda question: said("both")
    with pytest.raises(RewardError, match="answered 'both' instead of A or B"):
        scores(judge(endpoint, compare="group"), ["a", "b"])
    with pytest.raises(RewardError, match=r"needs several replies to each prompt, but 'p' has one; use RLOO"):
        scores(judge(endpoint, compare="group"), ["a", "b"], prompts=["p", "q"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"rubric": " "}, "needs a rubric"),
        ({"base_url": "localhost:8000"}, "must be an address such as http://localhost:8000/v1"),
        ({"base_url": "http://me:pw@localhost/v1"}, "must not contain credentials or a query; set api_key_env"),
        ({"api_key_env": "NO_SUCH_KEY"}, "api_key_env of the judge is 'NO_SUCH_KEY', but this environment variable"),
    ],
)
def test_wrong_argument_is_refused(args, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as raised:
        JudgeReward(**{"rubric": "Be kind.", "base_url": "http://localhost/v1", "model": "wise", **args})
    assert "pw" not in str(raised.value)


def test_key_is_in_no_attribute(endpoint):
    reward = judge(endpoint, api_key_env="JUDGE_KEY")
    assert KEY not in repr(vars(reward)) + repr(vars(reward.delegate)) + repr(vars(reward.delegate._endpoint))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "cache"))
    return save_judge(tmp_path / "judge")


def test_local_judge_pays_the_expected_grade_of_last_replies(folder):
    reward = JudgeReward("Be kind.", model_name=folder)
    texts, info = ["Fine.", "Go away.", "Fine."], {"history": ["Hi.", "Hello.", "How are you?"]}
    found = scores(reward, texts, dones=[True, True, False], meta_infos=[info] * 3)
    assert 0 < found[0] < 1 and 0 < found[1] < 1 and abs(found[0] - found[1]) > 1e-3 and found[2] == 0.0
    assert as_parts(reward, "mine")[0].name == "mine" and as_parts(reward)[0].in_main_process


def test_local_judge_compares_in_both_orders(folder):
    reward = JudgeReward("Be kind.", model_name=folder, compare="group")
    found = scores(reward, ["a", "x", "bb", "xx", "a"], prompts=["p", "q", "p", "q", "p"])
    assert found[0] == found[4] and found[0] + found[2] + found[4] == pytest.approx(1.5)
    assert found[1] + found[3] == pytest.approx(1.0) and abs(found[1] - 0.5) > 1e-4


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "needs a judge: either base_url and model of an OpenAI-compatible endpoint, or model_name of a local"),
        ({"model_name": "m", "base_url": "http://x", "max_tokens": 3}, "base_url, max_tokens have no effect for the"),
        ({"base_url": "http://x", "model": "m", "batch_size": 2}, "batch_size has no effect for a judge behind base"),
        ({"model_name": "m", "compare": "group", "n_levels": 3}, "n_levels has no effect with compare: group"),
    ],
)
def test_exactly_one_judge_with_its_own_arguments_is_accepted(args, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        JudgeReward("Be kind.", **args)
