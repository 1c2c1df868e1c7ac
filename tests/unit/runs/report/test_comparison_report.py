"""The page of several runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_files import CONFIG, write_run

from rl4dialog.core.errors import DataError
from rl4dialog.runs.report.comparison_report import write_comparison


def test_page_shows_groups_differences_curves_and_metrics(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / f"ppo_{seed}", seed=seed) for seed in range(3)]
    folders.append(write_run(tmp_path / "a2c", alg={**CONFIG["alg"], "id": "a2c"}))
    page = write_comparison(folders, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Comparison of ppo, a2c" in page and "<td>0, 1, 2</td>" in page
    assert "<tr><th>alg.id</th><td>ppo</td><td>a2c</td></tr>" in page
    assert "0.500 <small>± 0.000</small>" in page, "three seeds"
    assert page.count("<svg") == 6, "task reward, two parts, KL, its coefficient, entropy"
    assert "Curves over agent tokens" in page


def test_runs_without_iterations_are_compared_by_their_metrics(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, seed=i) for i, name in enumerate("ab")]
    for folder in folders:
        (folder / "rollout_info.jsonl").unlink()
        (folder / "training_info.jsonl").unlink()
    page = write_comparison(folders, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<svg" not in page and "± " in page


def test_run_that_is_named_twice_is_an_error(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    with pytest.raises(DataError, match=r"/a is given twice; pass every run once"):
        write_comparison([run, run], tmp_path / "page.html")
