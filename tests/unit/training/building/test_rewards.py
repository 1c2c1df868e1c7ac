"""The run's reward, built from its config."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from runs import make_config

from rl4dialog.core.async_calls import AsyncCalls
from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.training.building.rewards import build_scorer

TOOLKIT: dict[str, Any] = {"tokenizer": None, "async_calls": AsyncCalls()}


@pytest.mark.parametrize(
    ("id", "args", "max_turns", "is_refused"),
    [
        ("rouge", {}, 2, True),
        ("rouge", {}, 1, False),
        ("chrf", {}, 3, True),
        ("intent_accuracy", {"synonyms": False}, 2, True),
        ("intent_accuracy", {"synonyms": False}, 1, False),
    ],
)
def test_reward_that_would_compare_later_replies_with_no_reference_is_refused(
    tmp_path: Path, id: str, args: dict[str, Any], max_turns: int, is_refused: bool
) -> None:
    turns = {"max_turns": max_turns, "partner_replies": ["yes"] * max_turns}
    settings = {f"env__args__{key}": each for key, each in turns.items()}
    config = make_config(tmp_path, reward_fn={"id": id, "args": args}, **settings)
    message = rf"reward '{id}' compares replies with references.*env\.args\.partner\.id: scripted gives none"
    with pytest.raises(ConfigError, match=message) if is_refused else nullcontext():
        build_scorer(parse_config(config, "config"), {**TOOLKIT, "classifier": object()})


def test_reward_without_references_is_not_announced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = make_config(
        tmp_path,
        reward_fn={"id": "length_penalty", "args": {"max_length": 3}},
        env__args__max_turns=2,
        env__args__partner_replies=["yes"],
    )
    build_scorer(parse_config(config, "config"), TOOLKIT)
    assert caplog.text == ""
