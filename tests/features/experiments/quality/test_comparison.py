"""Runs of a plan: complete ones are left alone, failed ones are counted, and the page says so."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from child_commands import FakeProcess, replace_commands
from plans import IN_WORLDS, write_plan
from runs import make_config, write_config

from rl4dialog.cli import main_of
from rl4dialog.core.errors import ConfigError, DataError, RunFolderError
from rl4dialog.features.experiments.quality import comparison
from rl4dialog.features.experiments.quality.comparison import Selection, execute, judgeable, make_steps
from rl4dialog.features.experiments.quality.plan import Step, load_plan, planned_runs


def plan_of(tmp_path, **changes):
    write_config(tmp_path, make_config(tmp_path))
    path = write_plan(tmp_path, **changes)
    plan = load_plan(path, [])
    return plan, planned_runs(plan, path, tmp_path / "out")


@pytest.fixture
def made(monkeypatch):
    """Commands of steps, which create the files that they name."""
    commands = []

    def run_command(command):
        commands.append([*command])
        Path(command[1]).touch()
        return 0

    monkeypatch.setattr(comparison, "run_command", run_command)
    return commands


def test_steps_are_made_once_and_in_order(tmp_path, made):
    steps = {name: {"command": ["make", f"{{output}}/{name}"], "creates": f"{{output}}/{name}"} for name in "ab"}
    plan, _ = plan_of(tmp_path, steps=steps)
    (tmp_path / "a").touch()
    make_steps(plan, tmp_path)
    make_steps(plan, tmp_path)
    assert made == [["make", f"{tmp_path}/b"]]


def test_a_step_is_made_for_each_value(tmp_path, made):
    step = {"for_each": [2, "b"], "command": ["make", "{output}/{each}", "[{each}]"], "creates": "{output}/{each}"}
    plan, _ = plan_of(tmp_path, steps={"all": step})
    make_steps(plan, tmp_path)
    assert made == [["make", f"{tmp_path}/2", "[2]"], ["make", f"{tmp_path}/b", "[b]"]]


def test_a_step_is_made_only_for_its_worlds(tmp_path, made):
    everywhere, here = (
        {"command": ["make", f"{{output}}/{n}_{{world}}"], "creates": f"{{output}}/{n}_{{world}}"} for n in "ab"
    )
    plan = SimpleNamespace(steps={"a": Step(**everywhere), "b": Step(**here, worlds=["hard"])})
    make_steps(plan, tmp_path, [SimpleNamespace(seed=0, world=world) for world in ("easy", "hard")])
    assert [Path(path).name for _, path in made] == ["a_easy", "a_hard", "b_hard"]


@pytest.mark.parametrize("code, message", [(3, r"step 'a' failed \(exit code 3\)"), (0, "step 'a' did not create")])
def test_a_step_that_fails_is_named(tmp_path, monkeypatch, code, message):
    monkeypatch.setattr(comparison, "run_command", lambda command: code)
    plan, _ = plan_of(tmp_path, steps={"a": {"command": ["make"], "creates": "{output}/a"}})
    with pytest.raises(RunFolderError, match=message):
        make_steps(plan, tmp_path)


def test_a_step_that_was_killed_is_repeated_although_a_part_of_its_result_exists(tmp_path, monkeypatch):
    codes = [137, 0]

    def run_command(command):
        (tmp_path / "judge").mkdir(exist_ok=True)
        return codes.pop(0)

    monkeypatch.setattr(comparison, "run_command", run_command)
    plan, _ = plan_of(tmp_path, steps={"a": {"command": ["make"], "creates": "{output}/judge"}})
    with pytest.raises(RunFolderError, match="exit code 137"):
        make_steps(plan, tmp_path)
    for _ in range(2):
        make_steps(plan, tmp_path)
    assert not codes


@pytest.mark.parametrize("n_jobs", [1, 3])
def test_failed_runs_are_counted_and_the_others_go_on(tmp_path, monkeypatch, n_jobs):
    _, runs = plan_of(tmp_path)
    (tmp_path / "out").mkdir()
    commands = replace_commands(
        monkeypatch, lambda arguments, output: FakeProcess(4 if str(output).endswith("out/ppo_seed_1.log") else 0)
    )
    assert execute(runs, tmp_path / "out", n_jobs) == {"ppo_seed_1": 4}
    assert [command[-1] for command in commands] == [run.name for run in runs]
    assert all("--resume auto --set train_evaluation.n_iters=1 " in " ".join(command) for command in commands)


def test_a_bad_config_is_found_before_any_run_starts(tmp_path, capsys, monkeypatch):
    write_config(tmp_path, make_config(tmp_path))
    plan = write_plan(tmp_path)
    replace_commands(monkeypatch, lambda *args: pytest.fail("a run started"))
    bad = "runs.PPO, small steps.set=[alg.args.nepochs=2]"
    assert main_of("benchmark", [str(plan), "--output_path", str(tmp_path / "out"), "--set", bad]) == 2
    assert "ppo__small_steps_seed_0: " in (message := capsys.readouterr().err) and "'n_epochs'" in message


def test_mistakes_of_the_command_line_are_told(tmp_path, capsys):
    write_config(tmp_path, make_config(tmp_path))
    (tmp_path / "file").touch()
    plan, output = str(write_plan(tmp_path)), tmp_path / "none"
    file, nothing = f"{tmp_path}/file/x", ["--output_path", str(output), "--page_only"]
    for arguments, message in (
        (["--output_path", file], f"--output_path {file} is not a folder"),
        (["--output_path", str(output), "--n_jobs", "0"], "--n_jobs must be at least 1"),
        (nothing, "no run of the plan is complete"),
        ([*nothing, "--n_jobs", "2"], "--n_jobs has no effect with --page_only"),
        ([*nothing, "--verify", "2"], "--page_only runs nothing, and --verify repeats runs"),
    ):
        assert main_of("benchmark", [plan, *arguments]) == 2
        assert message in capsys.readouterr().err and not output.exists()


def test_a_step_that_is_the_same_comparison_is_an_error(tmp_path, monkeypatch):
    write_config(tmp_path, make_config(tmp_path))
    plan, output = str(write_plan(tmp_path)), tmp_path / "out"
    monkeypatch.setattr(comparison, "make_steps", lambda *args: comparison.compare(plan, [], output, 1, ""))
    with pytest.raises(RunFolderError, match=f"another process is writing to the run in {output}"):
        comparison.compare(plan, [], output, 1, "")


@pytest.mark.parametrize(("ended", "code"), [({"ppo_seed_1": 137}, 137), ({}, 2)], ids=["by a signal", "damaged"])
def test_a_run_without_an_outcome_is_a_failure_and_the_page_has_the_others(tmp_path, monkeypatch, ended, code):
    def read(run, *args):
        if run.seed == 1:
            raise DataError("a file is damaged")
        return SimpleNamespace(key=run.key, row="PPO", seed=0)

    write_config(tmp_path, make_config(tmp_path))
    monkeypatch.setattr(comparison, "execute", lambda *args: dict(ended))
    monkeypatch.setattr(comparison.PlannedRun, "is_done", lambda *args: True)
    monkeypatch.setattr(comparison, "read_outcome", read)
    for name in ("write_outcomes", "plot_worlds"):
        monkeypatch.setattr(comparison, name, lambda *args: None)
    monkeypatch.setattr(comparison, "worlds_page", lambda plan, outcomes, *args: f"without {outcomes.missing}")
    runs = "runs={PPO: {config: config.yml, seeds: [0, 1]}}"
    (tmp_path / "out" / "runs").mkdir(parents=True)
    assert comparison.compare(str(write_plan(tmp_path)), [runs], tmp_path / "out", 1, "") == code
    assert (tmp_path / "out" / "page.md").read_text() == "without ['ppo_seed_1']"


def test_a_selection_names_what_the_plan_does_not_have(tmp_path):
    _, runs = plan_of(tmp_path, **IN_WORLDS)
    assert len(Selection(worlds=["long"], seeds=[1]).of(runs)) == 3 and Selection().of(runs) == runs
    for selection, message in (
        (Selection(rows=["PP"]), "--rows PP: the plan has PPO, small, smaller"),
        (Selection(seeds=[7]), "--seeds 7: the plan has 0, 1"),
        (Selection(rows=["smaller"], seeds=[0]), "have no run of the plan in common"),
    ):
        with pytest.raises(ConfigError, match=message):
            selection.of(runs)


def test_runs_that_another_machine_can_repeat_have_three_seeds():
    runs = [
        SimpleNamespace(world="w", label=label, seed=seed) for label, n in (("a", 3), ("b", 2)) for seed in range(n)
    ]
    known = [(run.world, run.label, run.seed) for run in runs]
    assert judgeable(runs, known) == runs[:3]
    assert judgeable(runs[3:], known[3:]) == runs[3:]


@pytest.mark.long
def test_worlds_are_run_in_pieces_and_recorded_without_their_folders(tmp_path):
    write_config(tmp_path, make_config(tmp_path))
    recorded, output = tmp_path / "git" / "outcomes.json", tmp_path / "out"
    plan = str(write_plan(tmp_path, **IN_WORLDS, outcomes=str(recorded)))
    arguments = [plan, "--output_path", str(output), "--rows", "PPO", "small", "--seeds", "0"]
    assert main_of("benchmark", [*arguments, "--worlds", "short"]) == 0
    first = recorded.read_text().splitlines()
    assert len(first) == 2 + 2  # a line for each run
    shutil.rmtree(output)
    assert main_of("benchmark", arguments) == 0
    assert not (output / "runs" / "short_ppo_seed_0").exists()
    entries = json.loads(recorded.read_text())["runs"]
    assert [(each["world"], each["row"]) for each in entries] == [
        *(("long", "PPO"), ("long", "small"), ("short", "PPO"), ("short", "small"))
    ]
    assert first[1].rstrip(",") in recorded.read_text()
    for entry in entries:
        assert entry["spent"]["tokens"] == [0.0, sum(entry["tokens"])] and entry["spent"]["conversations"][1] > 0
        assert entry["made_by"]["versions"]["torch"] and entry["peak_mib"] > 100
        assert entry["made_by"]["first_weights"] != entry["made_by"]["last_weights"]
    assert "## short" in (output / "page.md").read_text()
    assert main_of("benchmark", [plan, "--output_path", str(output), "--verify", "1", "--worlds", "short"]) == 0
    # Another config is another run.
    assert main_of("benchmark", [*arguments, "--page_only", "--set", "set=[alg.args.n_epochs=3]"]) == 2


@pytest.mark.long
def test_a_comparison_is_run_continued_and_written(tmp_path, monkeypatch):
    write_config(tmp_path, make_config(tmp_path))
    plan, output = write_plan(tmp_path), tmp_path / "out"
    arguments = [str(plan), "--output_path", str(output), "--n_jobs", "2"]
    assert main_of("benchmark", [*arguments, "--set", "runs.PPO.seeds=[0]"]) == 0
    first = (output / "runs" / "ppo_seed_0" / "result.json").stat().st_mtime_ns
    assert main_of("benchmark", arguments) == 0  # one seed more
    assert (output / "runs" / "ppo_seed_0" / "result.json").stat().st_mtime_ns == first
    done = json.loads((output / "outcomes.json").read_text())["runs"]
    assert [(outcome["row"], outcome["seed"]) for outcome in done] == [
        *(("PPO", 0), ("PPO", 1)),
        ("PPO, small steps", 0),
    ]
    result = json.loads((output / "runs" / "ppo_seed_1" / "result.json").read_text())
    assert done[1]["after"]["lexical/rouge_rouge1"] == result["test"]["after"]["lexical/rouge_rouge1"]
    assert done[1]["references"]["lexical/rouge_rouge1"] == 1.0
    assert len(done[1]["kls"]) == 2 and min(done[1]["tokens"]) > 0
    assert len(done[1]["rewards"]) == len(done[1]["tokens"])
    assert "| PPO | 2 |" in (output / "page.md").read_text()
    # The same folder with another config: the finished runs are not passed off as its results.
    with pytest.raises(ConfigError, match="different config"):
        execute(planned_runs(load_plan(plan, ["set=[alg.args.n_epochs=3]"]), plan, output), output, 1)
    # The page of an edited plan is written from the runs that there are.
    shutil.rmtree(output / "runs" / "ppo_seed_0")
    write_plan(tmp_path, title="Another title", metrics={"lexical/rouge_rouge2": "Rouge-2"})
    assert main_of("benchmark", [str(plan), "--output_path", str(output), "--page_only"]) == 0
    page = (output / "page.md").read_text()
    assert page.startswith("# Another title\n") and "| Rouge-2 |" in page and "ppo_seed_0" in page
    assert "--page_only" not in page
    assert not (output / "runs" / "ppo_seed_0").exists()
