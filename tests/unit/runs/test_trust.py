from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl4dialog.core.errors import ConfigError
from rl4dialog.runs.trust import refuse_code


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"imports": ["./mine.py", "pkg.rewards"]}, "imports: ./mine.py, imports: pkg.rewards"),
        (
            {"train_evaluation": {"metrics": [{"id": "hf_evaluate", "args": {"name": "./own.py"}}]}},
            "hf_evaluate.name: ./own.py",
        ),
        (
            {"reward_fn": {"id": "metric", "args": {"id": "hf_evaluate", "args": {"name": "x"}}}},
            "hf_evaluate.name: x",
        ),
        (
            {"reward_fn": {"id": "composite", "args": {"rewards": [{"id": "spider", "args": {"java": "./sh"}}]}}},
            "spider.java: ./sh",
        ),
        ({"env": {"id": "my_module:MyEnv-v0"}}, "env.id: my_module"),
    ],
)
def test_code_that_a_config_names_is_listed(config: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        refuse_code(config, Path("a/run"))
    assert named in str(caught.value) and "--trust" in str(caught.value) and "a/run" in str(caught.value)


def test_config_without_code_needs_no_trust() -> None:
    refuse_code({"imports": [], "train_evaluation": {"metrics": [{"id": "spider", "args": {}}]}}, Path("a/run"))
