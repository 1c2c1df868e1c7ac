"""A model that is not there is one error, at once, also without a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from rl4dialog.core import hub
from rl4dialog.core.errors import ModelError


class _Auto:
    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome

    def from_pretrained(self, name: str, **kwargs: Any) -> Any:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        from huggingface_hub import constants

        return name, kwargs, constants.HF_HUB_OFFLINE


@pytest.mark.parametrize("reachable", [True, False])
def test_a_hub_that_does_not_resolve_is_not_asked(monkeypatch: pytest.MonkeyPatch, reachable: bool) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(hub, "_resolves", lambda host: reachable)
    monkeypatch.setattr(hub.urllib.request, "getproxies", dict)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert hub.load_pretrained(_Auto(None), "a/b", "model", "Hint.", x=1) == (
        "a/b",
        {"trust_remote_code": False, "x": 1},
        not reachable,
    )
    assert constants.HF_HUB_OFFLINE is False


def test_the_error_names_what_which_why_and_the_way_out() -> None:
    with pytest.raises(ModelError, match=r"^language model 'a/b' cannot be loaded .no such thing.. Give a folder.$"):
        hub.load_pretrained(_Auto(OSError("no such thing\nand more")), "a/b", "language model", "Give a folder.")


def test_an_error_without_words_is_named_by_its_type() -> None:
    with pytest.raises(ModelError, match=r"\(KeyError\)"):
        hub.load_pretrained(_Auto(KeyError()), "a/b", "language model", "Give a folder.")


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("raise SystemExit('it was run')\n")
    config = {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="contains custom Python code, which is never run"):
        hub.load_pretrained(AutoConfig, str(tmp_path), "model", "Hint.")
