"""Answers of several raters, one judgement per item that reward models read, and preference data."""

import csv
import json
import math
from dataclasses import replace

import pytest
from feedback_files import correction, preference, rating, write_feedback
from studies import PREFERENCE, QUALITY, REPLIES, answer

from rl4dialog.cli import main
from rl4dialog.core.errors import DataError
from rl4dialog.core.feedback import JudgedReply, append_feedback, read_feedback
from rl4dialog.data.conversational import Conversational
from rl4dialog.data.conversations.pool import LoggedConversations
from rl4dialog.data.ratings import load_ratings, read_latest
from rl4dialog.features.feedback.judged_texts import FeedbackPool, RatedDialogues
from rl4dialog.features.feedback.study_results import agreement, write_results

# Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability", section D: four observers, twelve units.
PUBLISHED = ["1 2 3 3 2 1 4 1 2 * * *", "1 2 3 3 2 2 4 1 2 5 * 3", "* 3 3 3 2 3 4 2 2 5 1 *", "1 2 3 3 2 4 4 1 2 5 1 *"]


@pytest.mark.parametrize(("is_scale", "published"), [(False, 0.743), (True, 0.849)])
def test_alpha_is_that_of_the_literature(is_scale, published):
    rows = [(str(rater), unit, said) for rater, row in enumerate(PUBLISHED) for unit, said in enumerate(row.split())]
    given = [(rater, str(unit), int(said)) for rater, unit, said in rows if said != "*"]
    assert agreement(given, is_scale) == (pytest.approx(published, abs=5e-4), "")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([("ann", "1", 3), ("ann", "2", 4), ("bob", "3", 1)], "no item has the answers of two raters"),
        ([("ann", "1", 3), ("bob", "1", 3), ("bob", "2", 5)], "all answers are the same"),
    ],
)
def test_alpha_is_undefined_and_not_a_number(given, why):
    found = agreement(given, True)
    assert found[0] is None and why in found[1]


def test_mean_ratings_are_read_as_ratings(tmp_path, capsys):
    source, folder = tmp_path / "answers.jsonl", tmp_path / "results"
    for i in range(8):
        for rater, given in (("ann", 1 + i % 5), ("bob", 1 + i % 4), ("ann", 1 + (i + 1) % 5)):  # her last one holds
            append_feedback(source, answer(QUALITY, REPLIES[i], rater, given))
    assert main(["study-results", "--feedback", str(source), "--output_dir", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "16 answers of 2 raters about 8 items" in said and "Krippendorff's alpha: 0.837" in said
    assert "majority" not in said
    _, rated = load_ratings(folder / "items.jsonl")
    means = [(1 + (i + 1) % 5 + 1 + i % 4) / 2 for i in range(8)]
    assert [each.ratings for each in rated] == [{"rating": mean} for mean in means]
    pool = RatedDialogues.prepare("train", path=folder / "items.jsonl", scale=(1.0, 5.0))
    assert pool.unit == "reply" and len(pool) == 4
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["mean_by_model"] == {"m": pytest.approx(sum(means) / 8)} and summary["items_by_n_answers"] == {
        "2": 8
    }
    with open(folder / "answers.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16 and {row["rater"] for row in rows} == {"ann", "bob"}


def test_majorities_are_read_as_preferences_and_ties_are_left_out(tmp_path):
    source, folder = tmp_path / "answers.jsonl", tmp_path / "results"
    pairs = [replace(each, replies=[*each.replies, JudgedReply("n", f"other {each.id}")]) for each in REPLIES]
    votes = {"0": [1, 1, 0], "1": [0, 1], "2": [None, None, 1], "3": [0, 0, 0], "4": [0, None], "5": [1], "6": [1, 1]}
    for each in pairs[:7]:
        for rater, index in enumerate(votes[each.id]):
            shown = replace(each, replies=each.replies[::-1]) if rater % 2 else each
            index = index if index is None or not rater % 2 else 1 - index
            append_feedback(source, answer(PREFERENCE, shown, str(rater), index))
    summary = write_results(source, folder)
    assert (summary["n_tied_items"], summary["n_no_difference"], summary["n_answers"]) == (3, 3, 16)
    assert summary["mean_by_model"]["m"] + summary["mean_by_model"]["n"] == pytest.approx(1)
    kept = read_latest(folder / "items.jsonl")
    assert [each.compared[0] for each in kept] == ["other 0", "reply 3", "other 5", "other 6"]
    assert len(FeedbackPool.prepare("train", path=folder / "items.jsonl", held_out_share=0.0)) == 4
    assert main(["export-feedback", "--feedback", str(folder / "items.jsonl"), "--output", str(tmp_path / "p")]) == 0
    for read in (read_latest, lambda path: LoggedConversations.prepare("train", path=path)):
        with pytest.raises(DataError, match="rl4dialog study-results writes one judgement per item"):
            read(source)


def test_one_rater_has_no_agreement_and_other_files_no_results(tmp_path, capsys):
    source = tmp_path / "answers.jsonl"
    append_feedback(source, answer(QUALITY, REPLIES[0], "ann", 4))
    assert main(["study-results", "--feedback", str(source), "--output_dir", str(tmp_path / "r")]) == 0
    assert "alpha: undefined: no item has the answers of two raters" in capsys.readouterr().out
    assert not math.isnan(json.loads((tmp_path / "r/summary.json").read_text())["alpha"] or 0.0)
    append_feedback(source, read_feedback(source)[0].withdrawal())
    with pytest.raises(DataError, match="all answers were withdrawn"):
        write_results(source, tmp_path / "r")
    append_feedback(source, answer(replace(QUALITY, title="other"), REPLIES[0], "ann", 4))
    with pytest.raises(DataError, match="answers to one study alone"):
        write_results(source, tmp_path / "r")
    with pytest.raises(DataError, match="rating must be from 1 to 5, not 6"):
        answer(QUALITY, REPLIES[0], "ann", 6)


def test_choices_and_corrections_become_preference_data(tmp_path, capsys):
    given = [
        preference("yes", "no", 1, ("hi", "hello", "tea?")),
        rating("yes", 1, ("tea?",)),
        correction("yes", "please", ("tea?",), persona="i like tea."),
        correction("yes", "yes"),
    ]
    source, target = write_feedback(tmp_path / "feedback.jsonl", given), tmp_path / "out" / "pairs.jsonl"
    assert main(["export-feedback", "--feedback", str(source), "--output", str(target)]) == 0
    assert "2 pairs written to" in (out := capsys.readouterr().out) and "2 judgements make no pair" in out
    samples = [sample for sample, _ in Conversational.prepare("train", path={"train": str(target)})]
    assert [sample.references for sample in samples] == [["no"], ["please"]]
    assert [(sample.meta_data or {})["rejected"] for sample in samples] == ["yes", "yes"]
    assert samples[0].prompt_or_input_text == "hi<EOU>hello<EOU>tea? <EOU>"
    assert "i like tea." in samples[1].prompt_or_input_text


def test_feedback_without_pairs_is_an_error(tmp_path, capsys):
    source = write_feedback(tmp_path / "feedback.jsonl", [rating("yes", 1), preference("a", "a", 0)])
    assert main(["export-feedback", "--feedback", str(source), "--output", str(tmp_path / "pairs.jsonl")]) == 2
    said = capsys.readouterr().err
    assert "no preferences or corrections of different replies" in said and "1 rating, 1 preference" in said
