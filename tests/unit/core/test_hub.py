"""Without a network, the hub's clients use their cache at once."""

from __future__ import annotations

import pytest

from rl4dialog.core import hub


@pytest.mark.parametrize("reachable", [True, False])
def test_a_hub_that_does_not_resolve_is_not_asked(monkeypatch: pytest.MonkeyPatch, reachable: bool) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(hub, "_resolves", lambda host: reachable)
    monkeypatch.setattr(hub.urllib.request, "getproxies", dict)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with hub.cache_only_without_network():
        assert constants.HF_HUB_OFFLINE is not reachable
    assert constants.HF_HUB_OFFLINE is False
