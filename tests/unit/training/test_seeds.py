"""Several seeds of one config."""

import io
import json
import math
from pathlib import Path

import pytest
from child_commands import FakeProcess, replace_commands
from rich.console import Console
from runs import make_config, write_config

from rl4dialog import cli
from rl4dialog.runs.run_folder import RunFolder
from rl4dialog.training.seeds import print_seeds, summarize_seeds


def result(before, after):
    return {"iterations": 1, "test": {"before": {"a/x": before}, "after": {"a/x": after}}}


def test_means_and_standard_errors_are_those_of_a_textbook():
    summary = summarize_seeds({0: result(1.0, 3.0), 1: result(2.0, 3.0), 5: result(3.0, 6.0)})
    before, after, change = (summary["test"][when]["a/x"] for when in ("before", "after", "change"))
    assert (before["mean"], before["standard_error"]) == (2.0, pytest.approx(1 / math.sqrt(3)))
    assert (after["mean"], after["standard_error"]) == (4.0, pytest.approx(1.0))
    # Of the differences, seed by seed: 2, 1, 3.
    assert (change["mean"], change["standard_error"]) == (2.0, pytest.approx(1 / math.sqrt(3)))
    assert before["values"] == {0: 1.0, 1: 2.0, 5: 3.0}


def test_one_seed_has_no_error_and_a_missing_score_is_left_out():
    one = summarize_seeds({0: result(1.0, 2.0)})["test"]["after"]["a/x"]
    assert (one["mean"], one["standard_error"]) == (2.0, None)
    two = summarize_seeds({0: result(1.0, 2.0), 1: result(None, 4.0)})["test"]
    assert two["before"]["a/x"]["values"] == {0: 1.0} and two["change"]["a/x"]["mean"] == 1.0
    nothing = summarize_seeds({0: result(None, 1.0)})["test"]["before"]["a/x"]
    assert (nothing["mean"], nothing["standard_error"]) == (None, None)


def test_table_has_means_and_intervals():
    file = io.StringIO()
    summary = summarize_seeds({0: result(1.0, 3.0), 1: result(2.0, 3.0)})
    print_seeds(summary, [0, 1], Path("/there.json"), Console(file=file, width=100))
    (row,) = [line for line in file.getvalue().splitlines() if "a/x" in line]
    # Student's t with one degree of freedom: 12.706 standard errors of 0.5. Equal values have no interval.
    assert row == "|a/x    | 1.500 (-4.853 to 7.853) | 3.000 | +1.500 (-4.853 to +7.853)|"
    assert "/there.json" in file.getvalue() and file.getvalue().isascii()


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Commands that would have been run; the one of seed 1 fails, the others leave a result."""

    def start(arguments, output):
        seed = int(arguments[-3].removeprefix("seed="))
        if seed == 1:
            return FakeProcess(7)
        folder = RunFolder(tmp_path, "p", arguments[-1])
        folder.write_json("config.json", {})
        folder.write_json("result.json", result(0.0, float(seed)))
        return FakeProcess(0)

    return replace_commands(monkeypatch, start)


def train(tmp_path, *flags):
    path = write_config(tmp_path, make_config(tmp_path))
    names = ("--project_name", "p", "--experiment_name", "e", "--base_path_to_store_results", str(tmp_path))
    return cli.main(["train", "--config_path", str(path), *names, *flags])


def test_every_seed_runs_and_one_that_fails_is_told(tmp_path, started, capsys):
    assert train(tmp_path, "--seeds", "0", "1", "2", "--set", "seed=9", "--overwrite") == 7
    for seed, command in enumerate(started):
        assert command[0] == "train" and "--seeds" not in command and "--overwrite" in command
        assert command[-4:] == ["--set", f"seed={seed}", "--experiment_name", f"e_seed_{seed}"]
        assert command[command.index("--config_path") + 1] == str(tmp_path / "config.yml")
    assert len(started) == 3
    summary = json.loads((tmp_path / "p" / "e_seeds.json").read_text())
    assert summary["seeds"] == [0, 2] and summary["failed"] == [1]
    assert summary["test"]["after"]["a/x"]["mean"] == 1.0
    output = capsys.readouterr()
    assert "error: e_seed_1 failed (exit code 7)" in output.err and "seeds 0, 2" in output.out


@pytest.mark.parametrize("how", [[], ["--resume"]])
def test_a_rerun_continues_what_is_not_complete(tmp_path, started, how, capsys):
    for _ in range(2):
        assert train(tmp_path, "--seeds", "1", *how) == 7
    modes = [command[command.index("--resume") + 1 :] for command in started]
    assert [mode[0] == "auto" for mode in modes] == [not how] * 2
    assert "error: 1 of 1 failed: e_seed_1. The same command" in capsys.readouterr().err


@pytest.mark.parametrize("dry_run", [[], ["--dry_run"]])
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seeds", "3", "3"], "--seeds contains a seed twice: 3 3"),
        (["--seeds", "0", "-4"], "seed: input should be greater than or equal to 0, got -4"),
        (["--seeds", "0", "--set", "alg.argz=1"], "unknown key 'alg.argz'"),
    ],
)
def test_mistake_is_told_before_the_first_run(tmp_path, started, flags, message, dry_run, capsys):
    assert train(tmp_path, *flags, *dry_run) == 2
    assert message in capsys.readouterr().err and not started


def test_launcher_is_refused(tmp_path, started, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert train(tmp_path, "--seeds", "0") == 2
    assert "run it without a launcher" in capsys.readouterr().err and not started
