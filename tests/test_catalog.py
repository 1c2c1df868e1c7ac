"""Every id that YAML can name exists, and says what it is."""

from __future__ import annotations

import pytest

from rl4dialog import catalog
from rl4dialog.cli import main
from rl4dialog.core.registry import Registry

REGISTRIES = {name: value for name, value in vars(catalog).items() if isinstance(value, Registry)}
IDS = [(name, id) for name, registry in REGISTRIES.items() for id in registry.ids()]


@pytest.mark.parametrize(("name", "id"), IDS)
def test_id_resolves_and_describes_itself(name: str, id: str) -> None:
    summary, _ = REGISTRIES[name].describe(id)
    assert summary.endswith(".")


def test_list_prints_every_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    for _, id in IDS:
        assert f"  {id} " in printed
