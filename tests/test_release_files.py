"""The files around the package agree with it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import rl4dialog

ROOT = Path(__file__).parents[1]
SMALL = ["datapool.args.n_train=40", "datapool.args.n_val=6", "datapool.args.n_test=6", "warm_start=null"]


def read(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_citation_and_changelog_name_the_version():
    assert read("CITATION.cff")["version"] == rl4dialog.__version__
    assert f"\n## {rl4dialog.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["ci", "release"])
def test_workflows_run_what_continuous_integration_runs(name):
    jobs = read(f".github/workflows/{name}.yml")["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    assert ".ci/run" in [step.get("run") for step in steps]
    assert (ROOT / ".ci/run").stat().st_mode & 0o100


@pytest.mark.parametrize("name", ["bug_report", "feature_request"])
def test_forms_have_fields_with_ids(name):
    form = read(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert form["name"] and form["description"]
    ids = [field["id"] for field in form["body"]]
    assert len(set(ids)) == len(ids) and any(field.get("validations", {}).get("required") for field in form["body"])


@pytest.mark.long
def test_package_without_the_repository_has_the_shipped_configs(tmp_path):
    built, empty = tmp_path / "built", tmp_path / "empty"
    empty.mkdir()
    build = [sys.executable, "setup.py", "--quiet", "build", "--build-base", str(tmp_path / "base")]
    subprocess.run([*build, "--build-lib", str(built)], cwd=ROOT, check=True, capture_output=True)
    assert sorted(path.name for path in built.iterdir()) == ["rl4dialog"]
    files = {path.relative_to(ROOT) for path in (ROOT / "rl4dialog").rglob("*.*") if path.suffix != ".pyc"}
    assert {path for path in files if not (built / path).exists()} == set()
    command = [sys.executable, "-m", "rl4dialog.cli", "train", "--dry_run"]
    command += [
        "--config_path",
        "task_configs/small_talk/gpt2_ppo.yml",
        "--set",
        "reward_fn={id: regex, args: {pattern: a}}",
    ]
    command += [text for change in SMALL for text in ("--set", change)]
    command += ["--set", "train_evaluation.metrics=[]"]
    done = subprocess.run(
        command, cwd=empty, env={**os.environ, "PYTHONPATH": str(built)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Plan" in done.stdout
