"""The page of several runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_files import CONFIG, prediction, write_json, write_lines, write_run

from rl4dialog.core.errors import DataError
from rl4dialog.runs.report.comparison_report import write_comparison


def test_page_shows_groups_differences_curves_and_metrics(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / f"ppo_{seed}", seed=seed) for seed in range(3)]
    folders.append(write_run(tmp_path / "a2c", alg={**CONFIG["alg"], "id": "a2c"}))
    page = write_comparison(folders, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Comparison of ppo, a2c" in page and "<td>0, 1, 2</td>" in page
    assert "<tr><th>alg.id</th><td>ppo</td><td>a2c</td></tr>" in page
    assert "95 % intervals, over seeds for groups" in page and "at least 50 samples" in page
    assert page.count("<svg") == 3 * 6, "task reward, two parts, KL, its coefficient, entropy, over three axes"
    assert page.count('data-axis="agent tokens"') == 6


def test_samples_of_all_groups_stand_side_by_side(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, reward_fn={"id": name}) for name in ("a", "b")]
    rows = [prediction(i, f"reply {i} of <b>", m=1) for i in (2, 1)]
    write_json(folders[1] / "epoch_3_test_split_predictions.json", rows)
    page = write_comparison(folders, tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<article") == 2, "the samples that both have"
    card = page[page.index("<article") : page.index("</article>")]
    assert card.index("<h3>a</h3>") < card.index("reply 1 <mark>at 3</mark>") < card.index("<h3>b</h3>")
    assert "reply 1 <mark>of &lt;b&gt;</mark>" in card and "hidden" not in card


def test_runs_without_common_samples_are_compared_without(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, reward_fn={"id": name}) for name in ("a", "b")]
    write_json(folders[1] / "epoch_3_test_split_predictions.json", [prediction(77, "x", m=1)])
    page = write_comparison(folders, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<article" not in page and "Samples side by side" not in page


def test_warnings_and_notes_name_their_run(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, reward_fn={"id": name}) for name in ("a", "b")]
    write_lines(folders[1] / "warnings.jsonl", [{"iteration": 2, "message": "KL explodes", "advice": "Stop."}])
    with open(folders[0] / "training_info.jsonl", "a") as file:
        file.write("{")
    page = write_comparison(folders, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "b: Iteration 2: KL explodes" in page and "a: The last line of training_info.jsonl is truncated" in page


def test_runs_without_iterations_are_compared_by_their_metrics(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, seed=i) for i, name in enumerate("ab")]
    for folder in folders:
        (folder / "rollout_info.jsonl").unlink()
        (folder / "training_info.jsonl").unlink()
    scores = [{"epoch": epoch, "metrics": {"m": 0.5 + 0.1 * epoch}} for epoch in (0, 3)]
    write_lines(folders[0] / "test_split_metrics.jsonl", scores)
    page = write_comparison(folders, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<svg" not in page and "0.900 <small>-0.371 … 2.171</small>" in page


def test_run_that_is_named_twice_is_an_error(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    with pytest.raises(DataError, match=r"/a is given twice; pass every run once"):
        write_comparison([run, run], tmp_path / "page.html")
