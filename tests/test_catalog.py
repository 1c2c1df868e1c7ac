"""Every id that YAML can name exists, and says what it is."""

from __future__ import annotations

import re
from typing import Any

import pytest
from feature_rows import rows_of_features
from reference_pages import DOCS, PAGES

from rl4dialog import catalog
from rl4dialog.cli import main
from rl4dialog.commands.list import REGISTRIES as LISTED
from rl4dialog.core.arguments import parameters_of
from rl4dialog.core.features import features
from rl4dialog.core.registry import Registry, _arguments, argument_meanings

REGISTRIES = {name: value for name, value in vars(catalog).items() if isinstance(value, Registry)}
IDS = [(name, id) for name, registry in REGISTRIES.items() for id in registry.ids()]


@pytest.mark.parametrize(("name", "id"), IDS)
def test_id_resolves_and_describes_itself(name: str, id: str) -> None:
    registry = REGISTRIES[name]
    summary, _ = registry.describe(id)
    assert summary.endswith(".")
    component = registry.resolve(id)
    taken = {*parameters_of(component), *parameters_of(registry._factory(component)), "args", "kwargs"}
    assert set(_arguments(component)) <= taken, "the docstring describes arguments that do not exist"


def test_list_prints_every_id(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, registry in LISTED.items():
        assert main(["list", kind]) == 0
        printed = capsys.readouterr().out
        assert all(f"  {id} " in printed for id in registry.ids())


def test_list_explains_an_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "guess_what"]) == 0
    printed = capsys.readouterr().out
    assert "datapool guess_what" in printed and "partner guess_what" in printed
    assert "consistent_share=0.4\n        Share of games" in printed
    assert main(["list", "partners"]) == 0
    assert capsys.readouterr().out.startswith("partners:\n")
    assert main(["list", "guess_wat"]) == 2
    assert "did you mean 'guess_what'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", PAGES)
def test_generated_page_is_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "write it anew: make reference"


def test_page_of_metrics_has_a_row_for_each() -> None:
    first = (DOCS / "metrics.md").read_text(encoding="utf-8").split("\n## ")[0]
    ids = re.findall(r"^\| `(\w+)` \|", first, re.MULTILINE)
    for name, feature in features().items():
        for id in feature.ids.get("metric", {}):
            assert f"\n| `{id}` |" in (DOCS / feature.pages[0]).read_text(encoding="utf-8"), name
            ids.append(id)
    assert sorted(ids) == catalog.MetricRegistry.ids()


@pytest.mark.parametrize("registry", [catalog.RewardFunctionRegistry, catalog.MetricRegistry], ids=lambda r: r.kind)
def test_component_may_require_what_the_run_provides(registry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Demanding:
        def __init__(self, tokenizer: Any, scale: float) -> None:
            pass

    monkeypatch.setitem(registry._entries, "demanding", Demanding)
    registry.check("demanding", {"scale": 1.0})


def test_arguments_without_effect_are_declared_and_documented() -> None:
    declared, documented = {}, {}
    for name, id in IDS:
        component = REGISTRIES[name].resolve(id)
        meanings = {**argument_meanings(getattr(component, "build_metric", component)), **argument_meanings(component)}
        for argument, meaning in meanings.items():
            if meaning.startswith("No effect"):
                documented[name, id, argument] = meaning.removeprefix("No effect").strip(":;. ")
        for argument, reason in getattr(component, "no_effect", {}).items():
            declared[name, id, argument] = reason
    assert declared == documented
    assert {id for _, id, _ in declared} == {*rows_of_features("NO_EFFECT")}


@pytest.mark.parametrize("name", ["DataPoolRegistry", "CallbackRegistry"])
def test_every_argument_is_explained(name: str) -> None:
    registry = REGISTRIES[name]
    silent = {
        f"{id}.{argument}"
        for id in registry.ids()
        for argument, meaning in registry.arguments(id).items()
        if not meaning
    }
    assert not silent
