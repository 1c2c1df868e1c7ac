"""Expected results are compared with those of runs; a difference, a failed run and a mistake in the file are told."""

import io
import json
from pathlib import Path

import check_expected as module
import pytest
from check_expected import Check, check_expected, load_expected, print_checks
from rich.console import Console

from rl4dialog.core.errors import ConfigError, DataError

SHIPPED = Path(__file__).parents[3] / "task_configs" / "expected.yml"
RUNS = {"good": 0.51, "bad": 0.7, "failed": None}


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file with three quick configs and a slow one; their runs are stand-ins."""
    (tmp_path / "task").mkdir()
    lines = []
    for name in (*RUNS, "slow"):
        (tmp_path / "task" / f"{name}.yml").touch()
        minutes = 60 if name == "slow" else 1
        lines.append(f"task/{name}.yml: {{minutes: {minutes}, metrics: {{intent/accuracy: [0.5, 0.02]}}}}")
    path = tmp_path / "expected.yml"
    path.write_text("\n".join(lines))

    def run_command(arguments):
        name = Path(arguments[arguments.index("--config_path") + 1]).stem
        run = Path(tmp_path, "runs", arguments[arguments.index("--experiment_name") + 1])
        run.mkdir(parents=True)
        (run / "config.json").write_text("{}")
        if RUNS[name] is not None:
            result = {"iterations": 1, "test": {"before": {}, "after": {"intent/accuracy": RUNS[name]}}}
            (run / "result.json").write_text(json.dumps(result))
        return 0

    monkeypatch.setattr(module, "run_command", run_command)
    return path


def test_differences_and_failures_are_told(file, capsys):
    assert check_expected(file, file.parent / "runs", max_minutes=5) == 1
    rows = [line for line in capsys.readouterr().out.splitlines() if "task/" in line]
    assert [("ok" in row, "DIFFERENT" in row) for row in rows] == [(True, False), (False, True), (False, True)]


def test_config_without_its_files_is_left_out(file, capsys):
    good, bad, *_ = file.read_text().splitlines()
    file.write_text(f"{good}\n{bad.replace('{minutes', '{needs: nowhere, minutes')}")
    assert check_expected(file, file.parent / "runs", max_minutes=5) == 0
    assert "left out: task/bad.yml, because there is no folder nowhere" in capsys.readouterr().out
    with pytest.raises(DataError, match=r"takes at most 0\.5 minutes"):
        check_expected(file, file.parent / "runs", max_minutes=0.5)


@pytest.mark.parametrize(
    "text, message",
    [
        ("task/none.yml: {minutes: 1, metrics: {a: [1, 1]}}", r"there is no config .*none\.yml"),
        ("task/good.yml: {minutes: 1, metrics: {a: [1]}}", "task/good.yml.metrics.a"),
        ("task/good.yml: {minutes: 1, metric: {a: [1, 1]}}", "task/good.yml.metric"),
    ],
)
def test_mistakes_in_the_file_are_named(file, text, message):
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_expected(file)


def test_the_shipped_file_is_valid():
    assert any(each.minutes <= 5 for each in load_expected(SHIPPED).values())


def test_a_metric_at_the_edge_of_its_tolerance_is_met():
    assert Check("x.yml", "a", 0.5, 0.25, 0.75).is_met
    assert not Check("x.yml", "a", 0.5, 0.25, 0.76).is_met
    output = io.StringIO()
    print_checks([Check("x.yml", "a", 0.5, 0.25, None)], Console(file=output, width=120))
    assert "DIFFERENT" in output.getvalue()
