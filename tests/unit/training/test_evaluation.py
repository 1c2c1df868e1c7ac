"""Evaluations of replies and conversations."""

import json
import math
import random
import re

import numpy as np
import pytest
import torch
from runs import complete_run, lines, make_config, run_folder
from tiny import make_env, make_gpt2, make_tokenizer, policy_class_of

from rl4dialog import cli, load_policy
from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import MetricError, PartnerError
from rl4dialog.core.protocols import BaseMetric, DialogueMetric
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Sample, Turn
from rl4dialog.data.pool import Data, TextGenPool
from rl4dialog.rollouts.talk import Reply, Talk
from rl4dialog.scores.intent import IntentAccuracyMetric
from rl4dialog.scores.overlap import ChrfMetric, TerMetric
from rl4dialog.training.building.texts import Lengths, Texts
from rl4dialog.training.evaluation import CONSTANT, RANDOM, Evaluation, Evaluator, judged, trivial_scores


def draw():
    return [random.random(), np.random.rand(), torch.rand(()).item()]


class Drawing(BaseMetric):
    """A metric that draws random numbers, as bootstraps do."""

    def compute(self, *args):
        return {"drawn": (None, sum(draw()))}


def evaluation(tmp_path, samples, *metrics):
    tokenizer = make_tokenizer()
    env, model = make_env(tokenizer), make_gpt2(tokenizer)
    policy = policy_class_of(model)(
        env.observation_space, env.action_space, lambda _: 1e-3, model=model, end_of_turn=env.end_of_turn
    )
    sampling = {"train_evaluation__generation_kwargs": {"do_sample": True, "max_new_tokens": 4}}
    config = parse_config(make_config(tmp_path, train_evaluation__eval_batch_size=2, **sampling), "test")
    texts = Texts(tokenizer, Data({"val": TextGenPool(samples)}, None), Lengths(8, 4))
    evaluator = Evaluator(config, texts, metrics, None)
    return lambda: evaluator.run(policy, "val", 1)


def test_random_states_are_afterwards_as_before_whatever_metrics_draw(tmp_path):
    samples = [Sample(i, text, ["w1"]) for i, text in enumerate(["w0", "w1 w2", "w3"])]
    result = evaluation(tmp_path, samples, Drawing())
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    expected = draw()
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    first = result()
    assert draw() == expected
    assert [p["generated_text"] for p in result().predictions] == [p["generated_text"] for p in first.predictions]


def test_records_have_the_history_if_it_cannot_be_read_off_the_prompt(tmp_path):
    history = {"history": ["w1", "w2"]}
    samples = [
        Sample(0, "<|im_start|>w1<|im_end|>w2", ["w1"], history),
        Sample(1, "w1 <EOU> w2 <EOU>", ["w1"], history),
        Sample(2, "w3", ["w1"]),
    ]
    assert [record.get("history") for record in evaluation(tmp_path, samples)().predictions] == [
        ["w1", "w2"],
        None,
        None,
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run whose partner says what the dataset's says, so that every reply has a reference."""
    folder = tmp_path_factory.mktemp("replay")
    by_turn = {"id": "repetition_penalty", "pay": "turn", "args": {"n": 1}}
    rewards = [by_turn, {"id": "rouge", "args": {"rouge_type": "rouge1"}}]
    settings = {
        "datapool__args__samples": "dialogues",
        "datapool__args__context_size": 1,
        "reward_fn": {"id": "composite", "args": {"rewards": rewards}},
        "env__args__max_prompt_length": 60,
        "env__args__max_turns": 3,
        "env__args__partner": {"id": "replay"},
        "train_evaluation__n_iters": 1,
        "train_evaluation__metrics": [{"id": "conversation"}, {"id": "rouge"}],
    }
    with complete_run(folder, make_config(folder, **settings)):
        yield run_folder(folder)


def test_records_have_all_turns_and_their_rewards_sum_to_the_column(folder):
    records = json.loads((folder / "epoch_1_test_split_predictions.json").read_text(encoding="utf-8"))
    assert len(records) == 6
    n_replies = set()
    for record in records:
        said = [turn for turn in record["turns"] if not turn.get("given")]
        assert record["turns"][0]["given"]
        assert [turn["speaker"] for turn in said[:2]] == ["agent", "partner"][: len(said)]
        rewards = [turn["reward"] for turn in said if turn["speaker"] == "agent"]
        n_replies.add(len(rewards))
        assert record["reward"] == pytest.approx(sum(rewards)) == pytest.approx(record["conversation/return"])
        assert record["conversation/turns"] == len(rewards) <= 3
        assert len(record["values"]) == len(rewards), "the critic's, of the state before each utterance"
        assert record["ended_by"] in ("max_turns", "partner", "length")
        parts = [value for key, value in record.items() if key.startswith("reward/")]
        assert sum(parts) == pytest.approx(record["reward"])
    assert max(n_replies) > 1
    of_val = json.loads((folder / "epoch_1_val_split_predictions.json").read_text(encoding="utf-8"))
    assert not any("values" in record for record in of_val), "values cost time, and the report is about the test split"
    of_tokens = load_policy(folder).values(
        *zip(*((r["prompt_text"], r["generated_text"]) for r in records), strict=True)
    )
    assert [record["values"][0] for record in records] == pytest.approx([each[0] for each in of_tokens], abs=1e-5)
    (metrics,) = [line["metrics"] for line in lines(folder / "test_split_metrics.jsonl") if line["epoch"] == 1]
    mean = sum(record["reward"] for record in records) / len(records)
    assert metrics["reward"] == pytest.approx(mean) == pytest.approx(metrics["conversation/return"])


def test_metrics_by_turn_together_are_those_of_all_replies(folder, tmp_path, capsys):
    flags = ["--set", "train_evaluation.metrics=[{id: conversation}, {id: length}]"]
    folders = ["--run", str(folder), "--output_path", str(tmp_path / "found")]
    assert cli.main(["evaluate", "--by_turn", *folders, *flags]) == 0
    measured = json.loads((tmp_path / "found" / "metrics.json").read_text(encoding="utf-8"))
    turns = measured["by_turn"]
    counts = [turn["n_replies"] for turn in turns]
    records = json.loads((tmp_path / "found" / "predictions.json").read_text(encoding="utf-8"))
    n_turns = [record["conversation/turns"] for record in records]
    assert counts == [sum(n > turn for n in n_turns) for turn in range(len(turns))] and counts[1] > 0
    key = "length/words"
    together = sum(n * turn[key] for n, turn in zip(counts, turns, strict=True)) / sum(counts)
    assert together == pytest.approx(measured["metrics"][key]) and not any(
        "conversation/turns" in turn for turn in turns
    )
    assert "Metrics of the first reply" in capsys.readouterr().out


KWARGS = ["--generation_kwargs", "max_new_tokens=2"]
SHORT = "train_evaluation.generation_kwargs={max_new_tokens: 2, do_sample: true}"


def test_evaluation_can_have_shorter_utterances_than_the_rollouts(folder, tmp_path):
    output = ["--output_path", str(tmp_path / "short"), "--set", "train_evaluation.metrics=[]"]
    assert cli.main(["evaluate", "--run", str(folder), *output, "--set", SHORT]) == 0
    records = json.loads((tmp_path / "short" / "predictions.json").read_text(encoding="utf-8"))
    said = [turn["text"] for record in records for turn in record["turns"] if "reward" in turn]
    assert len(said) > len(records) and all(len(text.split()) <= 2 for text in said)
    file = tmp_path / "short.jsonl"
    assert cli.main(["simulate", "--run", str(folder), "--n", "3", "--output", str(file), *KWARGS]) == 0
    assert all(line["rewards"] for line in lines(file))


class NumberOfReplies(BaseMetric):
    def __init__(self, needs_references):
        self.needs_references = needs_references

    def compute(self, prompts, replies, references, *_):
        assert replies and all(references) >= self.needs_references
        return {f"n_{self.needs_references}": ([float(reply) for reply in replies], float(len(replies)))}


class NumberOfDialogues(DialogueMetric):
    def compute(self, dialogues, *_):
        return {"n_dialogues": ([float(len(dialogue.said)) for dialogue in dialogues], float(len(dialogues)))}


def talk(replies, with_references=True, **failure):
    turns = [turn for text in replies for turn in (Turn(text, AGENT), Turn("p", PARTNER))]
    references = [["r"] if with_references and i == 0 else [] for i in range(len(replies))]
    said = [Reply("p", *pair) for pair in zip(replies, references, strict=True)]
    return Talk(Dialogue(0, tuple(turns)), said, **failure)


def test_conversations_whose_partner_failed_are_left_out_of_all_metrics():
    talks = [talk(["1", "2"]), talk(["9"], error="dead", partner_failed=True), talk(["4"]), talk([], error="no reward")]
    samples = [Sample(i, "p", ["r"]) for i in range(4)]
    metrics = [NumberOfReplies(True), NumberOfReplies(False), NumberOfDialogues()]
    found = judged(talks, samples, metrics, "val", None, {})
    assert found.metrics == {"n_True": 2.0, "n_False": 3.0, "n_dialogues": 3.0}
    columns = {key: [record[key] for record in found.predictions] for key in found.metrics}
    assert [[None if math.isnan(value) else value for value in column] for column in columns.values()] == [
        *([1, None, 4, None], [1.5, None, 4, None], [4, None, 2, 0])
    ]


def test_metric_without_a_reply_to_score_has_no_score(caplog):
    metrics = [NumberOfReplies(True), NumberOfReplies(False)]
    found = judged([talk(["1"], False)], [Sample(0, "p", [])], metrics, "val", None, {})
    assert found.metrics == {"n_False": 1.0}
    assert "NumberOfReplies has no score: no reply of val has references" in caplog.text


class Returns(BaseMetric):
    def __init__(self, found):
        self.found = found

    def compute(self, *_):
        return self.found


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ("0.5", "not '0.5'"),
        ({"k": 0.5}, "not 0.5 for 'k'"),
        ({"k": (None, "high")}, "not (None, 'high') for 'k'"),
        ({"k": (["0.5", "1"], 0.75)}, "not (['0.5', '1'], 0.75) for 'k'"),
        ({"k": ([0.4, 0.7, 0.9], 0.7)}, "not a list of 3 for 'k'"),
    ],
)
def test_result_of_a_metric_in_another_form_is_refused_by_name(found, problem):
    samples = [Sample(i, "p", []) for i in range(2)]
    with pytest.raises(MetricError, match=re.escape(problem)) as error:
        judged([talk(["1"]), talk(["2"])], samples, [Returns(found)], "val", None, {})
    assert str(error.value).startswith("metric Returns must return a dict, by key with a list of 2 numbers or None")


def test_numbers_of_numpy_and_torch_are_results_of_a_metric():
    samples = [Sample(i, "p", []) for i in range(2)]
    metric = Returns(
        {"a": (np.array([True, False]), torch.tensor(0.5)), "b": (torch.ones(2), np.float32(1)), "c": (None, 1)}
    )
    found = judged([talk(["1"]), talk(["2"])], samples, [metric], "val", None, {})
    assert found.metrics == {"a": 0.5, "b": 1, "c": 1}


class AlwaysOne:
    def predict(self, prompt_texts, reply_texts, meta_infos):
        return [1] * len(reply_texts)


def test_dialogue_acts_are_compared_where_the_reference_has_one():
    said = talk(["x", "y", "z"])
    said.replies[0].meta_info = {"intent": [1]}
    found = judged([said], [Sample(0, "p", ["r"])], [IntentAccuracyMetric(AlwaysOne())], "val", None, {})
    assert found.metrics == {"intent/accuracy": 1.0}


@pytest.mark.parametrize(
    ("masks", "n_failed", "message"),
    [(False, 1, "^the line is dead$"), (True, 3, "failed in all 3 conversations.*the line is dead"), (True, 2, None)],
)
def test_failing_partner_stops_an_evaluation_unless_masked(masks, n_failed, message):
    evaluator = object.__new__(Evaluator)
    evaluator._masks_partners, evaluator._rewards = masks, None
    talks = [talk(["1"], error="the line is dead", partner_failed=True)] * n_failed + [talk(["1"])] * (3 - n_failed)
    if message is None:
        assert evaluator._columns([], talks, must_work=False) == {}
    else:
        with pytest.raises(PartnerError, match=message):
            evaluator._columns([], talks, must_work=False)


def test_prompts_shown_before_and_after_are_different_ones():
    evaluator = object.__new__(Evaluator)
    evaluator._conversing, evaluator.samples = None, lambda split: [Sample(i, f"w{i // 4}", ["r"]) for i in range(12)]
    before, after = (Evaluation({}, [{"generated_text": f"{word} {i}"} for i in range(12)]) for word in ("a", "b"))
    assert [(each.utterances, each.after) for each in evaluator.changed_replies(before, after)] == [
        (["w0"], "b 0"),
        (["w1"], "b 4"),
        (["w2"], "b 8"),
    ]


def test_replies_that_read_no_prompt_are_a_floor():
    texts = ["w1 w2", "w3 w4", "w5 w6"]
    samples = [Sample(i, "w0", [text]) for i, text in enumerate(texts)]
    known = [Sample(i, "w0", [text]) for i, text in enumerate(["w7 w8"] * 4 + ["w1 w2"] * 6 + ["w3 w4"])]
    chrf, ter, silent = ChrfMetric(), TerMetric(), Drawing()
    scores, constants = trivial_scores([chrf, silent, ter], samples, known, seed=0)
    assert constants == {"lexical/chrf": "w1 w2", "lexical/ter": "w1 w2"}, "of which less is better"
    assert scores[CONSTANT] == {
        key: corpus
        for metric in (chrf, ter)
        for key, (_, corpus) in metric.compute(["w0"] * 3, ["w1 w2"] * 3, [[text] for text in texts]).items()
    }
    assert scores[RANDOM]["lexical/ter"] == 1.0, "no sample has its own reference"
    assert trivial_scores([chrf], samples[:1], known, seed=0) == ({}, {})
    chrf.append_to_texts = "<EOU>"
    with_marker, _ = trivial_scores([chrf], samples, known, seed=0)
    assert with_marker[RANDOM]["lexical/chrf"] > scores[RANDOM]["lexical/chrf"] + 0.2
