"""The rule of PPO: the number of preferences, and the reward model on those that were held out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from feedback_files import conversation_rating, correction, preference, rating, write_feedback

from rl4dialog.core.errors import DataError, RunFolderError
from rl4dialog.experiments.improvement.votes import Verdict, Votes, read_verdict, read_votes


def write_predictions(run: Path, split: str, margins: dict[str, float]) -> None:
    run.mkdir(exist_ok=True)
    texts = {"split_name": split, "prompt_text": "x", "generated_text": "", "ref_text": ""}
    rows = [{**texts, "sample_id": id, "score": 0.0, "margin": margin} for id, margin in margins.items()]
    (run / f"epoch_3_{split}_split_predictions.json").write_text(json.dumps(rows))
    (run / f"{split}_split_metrics.jsonl").write_text(json.dumps({"epoch": 3, "metrics": {}}) + "\n")


def test_votes_are_choices_between_different_replies(tmp_path: Path) -> None:
    given = [preference("a", "b", 0, id="1"), preference("c", "c", 0), correction("d", "e"), rating("f", 1)]
    votes = read_votes(write_feedback(tmp_path / "f.jsonl", given))
    assert votes == Votes(frozenset({"1"}), n_corrections=1, n_ratings=1, models={"m": 6})
    assert str(votes) == "1 preference, 1 correction, 1 rating" and not votes.are_enough


def test_ratings_of_conversations_are_named_as_unused(tmp_path: Path) -> None:
    given = [correction("d", "e"), conversation_rating("a", 1), conversation_rating("b", -1)]
    votes = read_votes(write_feedback(tmp_path / "f.jsonl", given))
    assert str(votes) == "0 preferences, 1 correction, 0 ratings (and 2 conversation ratings, not used here)"


def test_replaced_vote_counts_once(tmp_path: Path) -> None:
    given = [preference("a", "b", 0, id="1"), preference("b", "a", 0, id="2")]
    assert read_votes(write_feedback(tmp_path / "f.jsonl", given)).preferences == {"2"}


def test_fifty_preferences_are_enough() -> None:
    assert [Votes(frozenset(map(str, range(n))), 0, 0).are_enough for n in (49, 50)] == [False, True]


def test_empty_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no feedback"):
        read_votes(write_feedback(tmp_path / "f.jsonl", []))


def test_verdict_counts_held_out_preferences_and_no_corrections(tmp_path: Path) -> None:
    write_predictions(tmp_path / "run", "val", {"a": 1.0, "b": -1.0, "correction": 5.0})
    write_predictions(tmp_path / "run", "test", {"c": 0.0, "d": 0.1})
    verdict = read_verdict(tmp_path / "run", Votes(frozenset("abcd"), 1, 0))
    assert verdict == Verdict(2.5, 4)
    assert str(verdict).startswith("2.5 of 4 held-out preferences right: 0.62 (95 % interval 0.2")


@pytest.mark.parametrize(("n_right", "n", "is_good"), [(14, 20, False), (15, 20, True), (4, 20, False), (0, 0, False)])
def test_interval_must_be_above_a_half(n_right: int, n: int, is_good: bool) -> None:
    assert Verdict(n_right, n).is_good is is_good


def test_reward_model_without_predictions_is_an_error(tmp_path: Path) -> None:
    write_predictions(tmp_path / "run", "val", {"a": 1.0})
    with pytest.raises(RunFolderError, match="no predictions of split 'test'"):
        read_verdict(tmp_path / "run", Votes(frozenset("a"), 0, 0))
