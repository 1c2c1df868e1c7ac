"""The files around the package agree with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import rl4dialog

ROOT = Path(__file__).parents[1]
FORMS = ("bug_report", "feature_request")


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_citation_and_changelog_name_the_version() -> None:
    assert read("CITATION.cff")["version"] == rl4dialog.__version__
    assert f"\n## {rl4dialog.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["ci", "release"])
def test_workflows_run_what_continuous_integration_runs(name: str) -> None:
    jobs = read(f".github/workflows/{name}.yml")["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    assert ".ci/run" in [step.get("run") for step in steps]
    assert (ROOT / ".ci/run").stat().st_mode & 0o100


@pytest.mark.parametrize("name", FORMS)
def test_forms_have_fields_with_ids(name: str) -> None:
    form = read(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert form["name"] and form["description"]
    ids = [field["id"] for field in form["body"]]
    assert len(set(ids)) == len(ids) and any(field.get("validations", {}).get("required") for field in form["body"])
