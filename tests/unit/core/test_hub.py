"""A model that is not there is one error, at once, also without a network."""

from __future__ import annotations

from typing import Any

import pytest

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
    assert hub.load_pretrained(_Auto(None), "a/b", "model", "Hint.", x=1) == ("a/b", {"x": 1}, not reachable)
    assert constants.HF_HUB_OFFLINE is False


def test_the_error_names_what_which_why_and_the_way_out() -> None:
    with pytest.raises(ModelError, match=r"^language model 'a/b' cannot be loaded .no such thing.. Give a folder.$"):
        hub.load_pretrained(_Auto(OSError("no such thing\nand more")), "a/b", "language model", "Give a folder.")


def test_an_error_without_words_is_named_by_its_type() -> None:
    with pytest.raises(ModelError, match=r"\(KeyError\)"):
        hub.load_pretrained(_Auto(KeyError()), "a/b", "language model", "Give a folder.")
