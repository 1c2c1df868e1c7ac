import os
from pathlib import Path

import pytest
from rich.console import Console

from rl4dialog.cli import main
from rl4dialog.core.errors import RunFolderError
from rl4dialog.runs.listing import list_runs, print_runs
from rl4dialog.runs.run_folder import PROVENANCE_FILE, RESULT_FILE, only_writer
from tests.run_files import write_json, write_lines, write_run


def make_run(folder, complete, age):
    write_run(folder)
    write_json(folder / PROVENANCE_FILE, {})
    write_lines(
        folder / "test_split_metrics.jsonl",
        [{"epoch": epoch, "metrics": {"reward": epoch / 4, "intent/accuracy": 0.5}} for epoch in (0, 3)],
    )
    if complete:
        write_json(folder / RESULT_FILE, {"iterations": 3})
    (folder / "model").mkdir()
    write_json(folder / "model" / "config.json", {})
    for file in folder.glob("*.json*"):
        os.utime(file, (1e9 - age, 1e9 - age))
    return folder


def test_runs_are_found_with_state_and_scores(tmp_path):
    make_run(tmp_path / "a" / "old", complete=True, age=100)
    make_run(tmp_path / "b", complete=False, age=10)
    first, second = list_runs(tmp_path)
    assert (first.name, first.state, first.progress) == ("b", "stopped", "3/3")
    assert (second.name, second.state) == (str(Path("a/old")), "complete")
    assert second.score("reward") == "0.000 → 0.750"
    assert second.keys == ["reward", "intent/accuracy"] and second.score("other") == "-"


def test_scores_of_another_split_than_test_say_so(tmp_path):
    run = make_run(tmp_path / "b", complete=False, age=0)
    write_lines(run / "test_split_metrics.jsonl", [{"epoch": 0, "metrics": {"reward": 9.0}}])
    write_lines(run / "val_split_metrics.jsonl", [{"epoch": i, "metrics": {"reward": float(i)}} for i in (0, 1, 2)])
    assert list_runs(tmp_path)[0].score("reward") == "0.000 → 2.000 (val)"


def test_a_run_that_is_being_written_is_running(tmp_path):
    run = make_run(tmp_path / "b", complete=False, age=0)
    with only_writer(run):
        assert list_runs(run)[0].state == "running"
    assert list_runs(run)[0].state == "stopped"


def test_damaged_runs_stay_in_the_list(tmp_path, capsys):
    run = make_run(tmp_path / "bad", complete=True, age=0)
    (run / "config.json").write_text("{")
    make_run(tmp_path / "good", complete=True, age=0)
    (make_run(tmp_path / "cut", complete=True, age=0) / RESULT_FILE).write_text("{")
    (make_run(tmp_path / "leaving", complete=True, age=0) / "gone.json").symlink_to("/nowhere")
    (make_run(tmp_path / "emptied", complete=True, age=0) / "test_split_metrics.jsonl").write_text("")
    assert main(["runs", str(tmp_path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "unreadable" in printed and "good" in printed
    assert {run.name: run.state for run in list_runs(tmp_path)}["cut"] == "damaged: result.json"
    assert "leads to /nowhere, out of the folder" in {run.name: run.state for run in list_runs(tmp_path)}["leaving"]
    assert "is empty, but has a line" in {run.name: run.state for run in list_runs(tmp_path)}["emptied"]


def test_metrics_are_chosen_by_key(tmp_path, capsys):
    make_run(tmp_path / "b", complete=True, age=0)
    assert main(["runs", str(tmp_path), "--metrics", "intent/accuracy"]) == 0
    assert "0.500 → 0.500" in capsys.readouterr().out
    assert main(["runs", str(tmp_path), "--metrics", "intent/acuracy"]) == 2
    assert "did you mean 'intent/accuracy'?" in capsys.readouterr().err


def test_narrow_terminals_fold_names_instead_of_cutting_them(tmp_path):
    make_run(tmp_path / ("long_name_" * 6), complete=True, age=0)
    console = Console(width=70, force_terminal=True, record=True)
    print_runs(list_runs(tmp_path), console=console)
    printed = console.export_text()
    assert "…" not in printed and printed.count("_") >= 12  # of the name, over several lines
    assert "algorithm" not in printed.splitlines()[1] and "A wider terminal also shows algorithm" in printed


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_folders_without_runs_are_named(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunFolderError, match=name):
        list_runs(tmp_path / name)
