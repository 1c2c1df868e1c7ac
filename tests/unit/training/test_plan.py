"""What ``--dry_run`` says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from runs import make_config

from rl4dialog.core.config import parse_config
from rl4dialog.training.plan import print_plan


def plan(tmp_path: Path, **overrides: Any) -> dict[str, str]:
    """Its rows."""
    console = Console(record=True, width=200)
    print_plan(parse_config(make_config(tmp_path, **overrides), "test"), console)
    rows = [line.strip("│ ").split("│") for line in console.export_text().splitlines() if line.count("│") == 3]
    return {name.strip(): value.strip() for name, value in rows}


@pytest.mark.parametrize(
    ("bootstraps", "expected"),
    [(True, "those whose last reply is cut at max_episode_length; none at max_turns"), (False, "none")],
)
def test_bootstrapped_conversations_are_named(tmp_path: Path, bootstraps: bool, expected: str) -> None:
    found = plan(
        tmp_path,
        reward_fn={"id": "length_penalty", "args": {"max_length": 5}},
        env__args__partner={"id": "scripted", "args": {"replies": ["yes", "no"]}},
        env__args__max_turns=2,
        env__args__max_prompt_length=40,
        env__args__bootstrap_truncated=bootstraps,
    )
    assert found["bootstrapped conversations"] == expected
