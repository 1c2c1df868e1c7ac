from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from judges import save_judge
from rated import conversation, write_lines
from runs import make_config, write_config

from rl4dialog.cli import main
from rl4dialog.core.types import Dialogue, RatedDialogue
from rl4dialog.inference.reward_validation.validation import drawn

REPLIES = ["yes", "yes it is", "it is a long reply", "no", "I do not know what to say here", "a b c d e f g"]


def rows() -> list[dict[str, Any]]:
    """Longer replies are rated better; one rating is constant, and one has a gap."""
    rated = []
    for i, reply in enumerate(REPLIES * 2):
        ratings: dict[str, Any] = {"good": len(reply.split()), "same": 3, "kind": None if i == 0 else i % 3}
        rated.append(conversation("hi", reply, ratings=ratings, id=i, system=f"bot{i % 3}"))
    return rated


def validate(tmp_path: Path, *flags: str, rows: list[dict[str, Any]]) -> int:
    rewards = [{"id": "rouge"}, {"id": "length_penalty", "args": {"max_length": 2}}]
    config = make_config(tmp_path, reward_fn={"id": "composite", "args": {"rewards": rewards}})
    arguments = [
        *("--config_path", str(write_config(tmp_path, config)), "--n_resamples", "50"),
        *("--ratings", str(write_lines(tmp_path / "ratings.jsonl", rows)), "--output_path", str(tmp_path / "out")),
    ]
    return main(["validate-reward", *arguments, *flags])


def test_command_prints_and_writes_the_agreement_with_each_rating(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    assert validate(tmp_path, rows=rows()) == 0
    printed = capsys.readouterr().out
    assert "Agreement with the rating 'kind': 12 items, 1 without this rating" in printed
    assert "length/words: no correlation, because the rating is always 3" in printed
    assert "rouge cannot be computed: it needs references" in printed
    assert "3 systems are few" in printed
    with (tmp_path / "out" / "correlations.csv").open() as file:
        found = {(row["score"], row["rating"]): row for row in csv.DictReader(file)}
    assert float(found["length/words", "good"]["spearman"]) == pytest.approx(1.0)
    assert float(found["reward/length_penalty", "good"]["kendall"]) < -0.8
    assert found["baseline/words_per_reply", "kind"]["n"] == "11"
    assert found["length/words", "same"]["problem"] == "the rating is always 3"
    written = json.loads((tmp_path / "out" / "correlations.json").read_text())
    assert written["unit"] == "dialogue" and written["n_systems"] == 3
    assert "rouge" in written["not_computed"] and "reward" in written["not_computed"]
    with (tmp_path / "out" / "scores.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 12
    assert (tmp_path / "out" / "correlations_good.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "out" / "correlations_same.png").exists()


def test_each_rating_has_a_picture_of_its_own(tmp_path: Path) -> None:
    names = ["a/b", "a_b", "é" * 300]
    rated = [conversation("hi", reply, ratings=dict.fromkeys(names, len(reply)), id=reply) for reply in REPLIES]
    assert validate(tmp_path, rows=rated) == 0
    assert len(list((tmp_path / "out").glob("correlations_*.png"))) == 3


def test_config_of_the_documentation_is_valid(tmp_path: Path) -> None:
    example = Path(__file__).parents[4] / "docs" / "examples" / "human_ratings.yml"
    arguments = [
        *("--config_path", str(example), "--n_resamples", "10", "--set", "datapool.args.n_train=20"),
        *("--ratings", str(write_lines(tmp_path / "ratings.jsonl", rows())), "--output_path", str(tmp_path / "out")),
    ]
    assert main(["validate-reward", *arguments]) == 0
    written = json.loads((tmp_path / "out" / "correlations.json").read_text())
    assert written["not_computed"].keys() == {"rouge", "meteor"}


def test_local_judge_of_the_documentation_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "cache"))
    example = Path(__file__).parents[4] / "docs" / "examples" / "judge.yml"
    folder = save_judge(tmp_path / "judge")
    arguments = [
        *("--config_path", str(example), "--n_resamples", "10", "--set", "datapool.args.n_train=20"),
        *("--set", f"reward_fn.args.model_name={folder}", "--max_items", "5"),
        *("--ratings", str(write_lines(tmp_path / "ratings.jsonl", rows())), "--output_path", str(tmp_path / "out")),
    ]
    assert main(["validate-reward", *arguments]) == 0
    with (tmp_path / "out" / "scores.csv").open() as file:
        scored = [float(row["reward/judge"]) for row in csv.DictReader(file)]
    assert len(scored) == 5 and len(set(scored)) > 1


def test_items_are_drawn_at_random_in_their_order() -> None:
    rated = [RatedDialogue(Dialogue(i, ()), {}, i) for i in range(100)]
    chosen = [each.conversation for each in drawn(rated, 20, seed=0)]
    assert chosen == sorted(chosen) and len(set(chosen)) == 20 and max(chosen) > 60
    assert chosen == [each.conversation for each in drawn(rated, 20, seed=0)]
    assert chosen != [each.conversation for each in drawn(rated, 20, seed=1)]
    assert drawn(rated, None, 0) == drawn(rated, 100, 0) == rated


def test_ratings_of_replies_are_read(tmp_path: Path) -> None:
    rated = [conversation("hi", reply, "and", "bye", id=i) for i, reply in enumerate(REPLIES)]
    for i, row in enumerate(rated):
        row["messages"][1]["ratings"] = {"good": i}
        row["messages"][3]["ratings"] = {"good": 2}
    assert validate(tmp_path, "--unit", "reply", rows=rated) == 0
    with (tmp_path / "out" / "scores.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 12


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--rating", "god"), "there is no rating 'god'; did you mean 'good'? (ratings: good, same, kind)"),
        (("--unit", "reply"), "ratings.jsonl has no ratings of replies"),
        (("--max_items", "2"), "--max_items must be at least 3, not 2"),
        (("--n_resamples", "-1"), "--n_resamples must be at least 0, not -1"),
    ],
)
def test_wrong_arguments_are_an_error(
    tmp_path: Path, flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert validate(tmp_path, *flags, rows=rows()) == 2
    assert message in capsys.readouterr().err
