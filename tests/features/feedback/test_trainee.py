"""Runs that train a reward model."""

import json

import numpy as np
import pytest
from feedback_files import mixed_feedback, preference, rating, write_feedback
from reward_models import make_config
from runs import complete_run, lines, run_folder

from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import DataError
from rl4dialog.features.feedback.config import RewardModelConfig
from rl4dialog.features.feedback.judged_texts import RatedDialogues, judged_texts
from rl4dialog.features.feedback.models import build_judgements, loss_of
from rl4dialog.runs.report.pages import write_report
from rl4dialog.scores.reward_models import LearnedRewardMetric, load_reward_model


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reward_model")
    with complete_run(folder, make_config()):
        yield run_folder(folder)


def test_card_has_what_the_model_reads_and_its_scores_on_val(run):
    card = json.loads((run / "model" / "reward_model.json").read_text())
    scores = [row["score"] for row in json.loads((run / "epoch_3_val_split_predictions.json").read_text())]
    assert card["mean"] == pytest.approx(np.mean(scores), abs=1e-5)
    assert card["std"] == pytest.approx(np.std(scores), abs=1e-5)
    del card["mean"], card["std"]
    assert card == {
        "format": "speaker_lines",
        "unit": "reply",
        "context_size": 1,
        "truncation_side": "left",
        "ratings": ["interest"],
        "scale": [1, 5],
        "score": "rating",
        "members": 1,
        "offsets": [0.0],
    }


def test_learned_reward_gives_the_scores_of_the_evaluation(run):
    args = make_config()["datapool"]["args"]
    rows = json.loads((run / "epoch_3_test_split_predictions.json").read_text())
    texts = [sample.prompt_or_input_text for sample, _ in RatedDialogues.prepare("test", **args)]
    said = [[line.split(": ", 1)[1] for line in text.split("\n")] for text in texts]
    metric = LearnedRewardMetric(str(run))
    prompts, replies = [""] * len(said), [utterances[-1] for utterances in said]
    infos = [{"history": utterances[:-1]} for utterances in said]
    (scores, _) = metric.compute(prompts, replies, [[]] * len(said), infos).popitem()[1]
    assert scores == pytest.approx([row["score"] for row in rows], abs=1e-5)


def test_metrics_compare_with_constant_and_length(run):
    first, *_, last = lines(run / "test_split_metrics.jsonl")
    assert (first["epoch"], last["epoch"]) == (0, 3)
    assert first["metrics"].keys() == {
        "agreement/spearman",
        "agreement/mse",
        "agreement/mse_of_constant",
        "length/spearman_with_rating",
        "length/spearman_with_score",
    }
    same = ("agreement/mse_of_constant", "length/spearman_with_rating")
    assert all(first["metrics"][key] == last["metrics"][key] for key in same)
    write_report(run)
    assert "agreement/spearman" in (run / "report.html").read_text().replace("<wbr>", "")
    (info,) = lines(run / "training_info.jsonl")
    assert (info["n_examples"], info["n_steps"]) == (24, 9)


@pytest.fixture(scope="module")
def feedback_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("feedback")
    path = write_feedback(folder / "feedback.jsonl", [each for each in mixed_feedback() if each.kind != "rating"])
    config = make_config(datapool={"id": "feedback", "args": {"path": str(path)}})
    config["alg"]["ensemble"] = 2
    config["alg"]["training_args"]["num_train_epochs"] = 1
    with complete_run(folder, config):
        yield run_folder(folder)


def test_ensemble_of_preferences_is_a_reward_with_penalty(feedback_run):
    card = json.loads((feedback_run / "model" / "reward_model.json").read_text())
    assert (card["score"], card["members"], card["ratings"], card["scale"]) == ("log_odds", 2, [], None)
    judged = json.loads((feedback_run / "epoch_1_val_split_predictions.json").read_text())
    scores_on_val = [row[key] for row in judged for key in ("score", "score_of_worse")]
    assert card["mean"] == pytest.approx(np.mean(scores_on_val), abs=1e-5)
    assert card["std"] == pytest.approx(np.std(scores_on_val), abs=1e-5)
    texts = [row[key] for row in judged for key in ("prompt_text", "worse_text")]
    by_member = load_reward_model(str(feedback_run), "reply", 8, "test").standard_scores(texts) * card["std"]
    np.testing.assert_allclose(by_member.mean(0), [card["mean"]] * 2, atol=1e-5, err_msg="offsets are left")
    assert card["offsets"][0] != 0
    rows = json.loads((feedback_run / "epoch_1_test_split_predictions.json").read_text())
    assert all(row["margin"] == pytest.approx(row["score"] - row["score_of_worse"]) for row in rows)
    said = [line.split(": ", 1)[1] for line in rows[0]["prompt_text"].split("\n")]
    arguments = ([""], [said[-1]], [[]], [{"history": said[:-1]}])
    (scores, _) = LearnedRewardMetric(str(feedback_run)).compute(*arguments).popitem()[1]
    assert scores == pytest.approx([rows[0]["score"]], abs=1e-5)
    (penalized, _) = LearnedRewardMetric(str(feedback_run), std_penalty=1.0).compute(*arguments).popitem()[1]
    assert penalized is not None and scores is not None and penalized[0] < scores[0]


@pytest.mark.parametrize("value", [-1, 1])
def test_ratings_that_are_all_alike_start_where_comparisons_can_be_learned(tmp_path, value):
    judged = [each for each in mixed_feedback() if each.kind != "rating"]
    alike = [rating("so so .", value, [f"what a day {i} !"]) for i in range(3)]
    path = write_feedback(tmp_path / "feedback.jsonl", [*judged, *alike])
    config = make_config(datapool={"id": "feedback", "args": {"path": str(path)}})
    config["alg"]["training_args"]["num_train_epochs"] = 1
    with complete_run(tmp_path, config):
        rows = json.loads((run_folder(tmp_path) / "epoch_0_test_split_predictions.json").read_text())
    assert 0.2 < max(abs(row["score"]) for row in rows) < 3, "not 0, and not the log-odds of 0 or 1"


def test_metrics_of_preferences_stand_beside_length(feedback_run):
    *_, last = lines(feedback_run / "test_split_metrics.jsonl")
    assert last["metrics"].keys() == {
        "preference/accuracy",
        "preference/accuracy_of_longer",
        "preference/log_loss",
        "preference/calibration_error",
        "length/spearman_with_score",
        "ensemble/std",
    }
    write_report(feedback_run)
    assert "preference/accuracy" in (feedback_run / "report.html").read_text().replace("<wbr>", "")


def judgements(folder, given, side="right"):
    path = write_feedback(folder / "feedback.jsonl", given)
    config = make_config(datapool={"id": "feedback", "args": {"path": str(path)}})
    config["tokenizer"] |= {"max_length": 16, "truncation_side": side}
    return build_judgements(parse_config(config, "c.yml"))


LONG = " ".join("abcdefghijklmnopqrstuvwxyz")


def pairs(better, worse):
    return [preference(better, worse, 0, (f"hi {i}",)) for i in range(8)]


@pytest.mark.parametrize("side", ["left", "right"])
def test_comparisons_of_equal_texts_are_left_out_and_counted(tmp_path, side, caplog):
    given = [*pairs("good", "bad"), *pairs(f"{LONG} 1", f"{LONG} 2"), *pairs(f"1 {LONG}", f"2 {LONG}")]
    data, tokenizer, max_length = judgements(tmp_path, [*given, *pairs("same", "same ")], side)
    assert "split 'train': 8 of 16 comparisons have equal texts in the 16 tokens that the model reads" in caplog.text
    for split, n in (("train", 8), ("val", 4), ("test", 4)):
        samples = data.samples(split)
        assert len(samples) == len(data.pools[split]) == n
        texts = judged_texts(samples)
        ids = tokenizer(texts, truncation=True, max_length=max_length)["input_ids"]
        assert all(one != other for one, other in zip(ids[:n], ids[n:], strict=True))
        assert {"1" in text.split() for text in texts[:n]} == {False, True}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (pairs(f"{LONG} 1", f"{LONG} 2"), "split 'train': the two texts of all 4 comparisons are equal in the 16"),
        (pairs("same", "same "), "comparisons are equal"),
        ([rating(f"{LONG} {i}", i % 2 * 2 - 1, (f"{LONG} {i}",)) for i in range(8)], "all 4 rated texts are equal"),
        ([rating(f"a {i}", 1, (f"hello {i}",)) for i in range(8)], "all 4 judgements are the same rating, so there is"),
    ],
)
def test_judgements_without_differences_are_an_error(tmp_path, given, message):
    with pytest.raises(DataError, match=message):
        judgements(tmp_path, given)


def test_ratings_that_are_all_alike_beside_comparisons_are_a_warning(tmp_path, caplog):
    judgements(tmp_path, [*pairs("good", "bad"), *(rating(f"a {i}", 1, (f"hello {i}",)) for i in range(8))])
    assert "split 'train': all ratings are equal; they only move the level of the scores" in caplog.text


@pytest.mark.parametrize(("use", "expected"), [("ratings", "squared_error"), ("all", "cross_entropy")])
def test_loss_of_ratings_depends_on_what_there_is(tmp_path, use, expected, caplog):
    path = write_feedback(tmp_path / "feedback.jsonl", mixed_feedback())
    config = parse_config(make_config(datapool={"id": "feedback", "args": {"path": str(path), "use": use}}), "c")
    assert isinstance(config, RewardModelConfig)
    data = build_judgements(config)[0]
    caplog.clear()
    assert loss_of(config, data).rating_loss == expected
    config.alg.rating_loss = "squared_error"
    assert loss_of(config, data).rating_loss == "squared_error" and not caplog.messages
    config.alg.center_coef, config.alg.bootstrap = 0.5, False
    loss_of(config, data)
    named = {key for key in ("center_coef", "rating_weight", "bootstrap") if f"alg.{key} has no effect" in caplog.text}
    assert named == ({"center_coef", "bootstrap"} if use == "ratings" else {"bootstrap"})
