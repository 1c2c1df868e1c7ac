"""Several values of a key, and what they reach."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from runs import make_config, write_config

from rl4dialog import cli
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.experiments import sweep as module
from rl4dialog.experiments.sweep import SweepPoint, arguments_of_train, pareto_front, read_point, sweep

KEY = "alg.kl_div.target_kl"


def point(value: str, kl: float, reward: float) -> SweepPoint:
    return SweepPoint(value, Path(value), kl, reward, [kl], [reward])


def write_run(folder: Path, rewards: list[float]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    rows = [{"iteration": i, "rollout/kl": i / 10, "rollout/task_reward": r} for i, r in enumerate(rewards, start=1)]
    (folder / "rollout_info.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_point_is_the_mean_of_the_last_tenth(tmp_path: Path) -> None:
    read = read_point("x", write_run(tmp_path / "run", [0.0] * 18 + [1.0, 2.0]))
    assert read.reward == pytest.approx(1.5) and read.kl == pytest.approx(1.95)
    assert len(read.kl_path) == len(read.reward_path) == 20


def test_run_without_iterations_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no iteration with rollout/kl"):
        read_point("x", write_run(tmp_path / "run", []))


def test_front_has_what_nothing_else_beats() -> None:
    points = [point("a", 0.2, 0.5), point("b", 0.1, 0.4), point("c", 0.3, 0.45), point("d", 0.1, 0.3)]
    assert [p.value for p in pareto_front(points)] == ["b", "a"]


def test_sweep_trains_each_value_and_draws_what_did_not_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = []

    def run_command(arguments: list[str]) -> int:
        commands.append(arguments)
        if arguments[-1] == "kl_0.4":
            return 3
        write_run(tmp_path / "p" / arguments[-1], [float(arguments[-3].partition("=")[2])])
        return 0

    monkeypatch.setattr(module, "run_command", run_command)
    config = str(write_config(tmp_path, make_config(tmp_path)))
    assert sweep(config, [], 0, KEY, ["0.1", "0.4", "0.2"], ["--resume", "auto"], tmp_path / "p", "kl") == 3
    assert commands[0] == ["train", "--resume", "auto", "--set", f"{KEY}=0.1", "--experiment_name", "kl_0.1"]
    assert (tmp_path / "p" / "kl_sweep.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads((tmp_path / "p" / "kl_sweep.json").read_text(encoding="utf-8"))
    assert [(run["value"], run["reward"]) for run in written["runs"]] == [("0.1", 0.1), ("0.2", 0.2)]
    output = capsys.readouterr()
    assert f"the run with {KEY}=0.4 failed (exit code 3)" in output.err and "kl_sweep.png" in output.out


def test_mistakes_are_told_before_the_first_run(tmp_path: Path) -> None:
    config = str(write_config(tmp_path, make_config(tmp_path)))
    with pytest.raises(ConfigError, match=r"contains a value twice: 0\.1 0\.1"):
        sweep(config, [], 0, KEY, ["0.1", "0.1"], [], tmp_path, "kl")
    with pytest.raises(ConfigError, match=r"target_kl: .*greater than 0"):
        sweep(config, [], 0, KEY, ["0.1", "-1"], [], tmp_path, "kl")


def test_arguments_of_the_sweep_are_not_those_of_a_run() -> None:
    given = ["--key", "a.b", "--values", "1", "2", "--config_path", "X.yml", "--overwrite"]
    assert arguments_of_train(given) == ["--config_path", "X.yml", "--overwrite"]
    with pytest.raises(SystemExit):
        cli.main(["train", *given])
