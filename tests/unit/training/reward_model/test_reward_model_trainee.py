"""Runs that train a reward model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from reward_models import make_config
from runs import complete_run, lines, run_folder

from rl4dialog.data.rated_dialogues import RatedDialogues
from rl4dialog.metrics.learned_reward import LearnedRewardMetric
from rl4dialog.runs.report.run_report import write_report_or_warn


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("reward_model")
    with complete_run(folder, make_config()):
        yield run_folder(folder)


def test_card_has_what_the_model_reads_and_its_scores_on_val(run: Path) -> None:
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


def test_learned_reward_gives_the_scores_of_the_evaluation(run: Path) -> None:
    args = make_config()["datapool"]["args"]
    rows = json.loads((run / "epoch_3_test_split_predictions.json").read_text())
    texts = [sample.prompt_or_input_text for sample, _ in RatedDialogues.prepare("test", **args)]
    said = [[line.split(": ", 1)[1] for line in text.split("\n")] for text in texts]
    metric = LearnedRewardMetric(str(run))
    prompts, replies = [""] * len(said), [utterances[-1] for utterances in said]
    infos = [{"history": utterances[:-1]} for utterances in said]
    (scores, _) = metric.compute(prompts, replies, [[]] * len(said), infos).popitem()[1]
    assert scores == pytest.approx([row["score"] for row in rows], abs=1e-5)


def test_metrics_compare_with_constant_and_length(run: Path) -> None:
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
    (info,) = lines(run / "training_info.jsonl")
    assert (info["n_examples"], info["n_steps"]) == (24, 9)


def test_report_is_written(run: Path) -> None:
    write_report_or_warn(run)
    assert "agreement/spearman" in (run / "report.html").read_text()
