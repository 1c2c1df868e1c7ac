"""The page of all keys."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from rl4dialog.cli import main
from rl4dialog.core import config, config_blocks
from rl4dialog.core.config_reference import schema_page

MODELS = {
    value
    for module in (config, config_blocks)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, BaseModel)
}


def test_page_of_the_docs_is_what_list_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--schema"]) == 0
    page = Path(__file__).parents[3] / "docs" / "yaml.md"
    assert page.read_text(encoding="utf-8") == capsys.readouterr().out, "write it anew: rl4dialog list --schema"


@pytest.mark.parametrize("model", sorted(MODELS, key=lambda model: model.__name__), ids=lambda model: model.__name__)
def test_every_key_is_described(model: type[BaseModel]) -> None:
    assert [name for name, field in model.model_fields.items() if not field.description] == []


def test_rows_tell_type_default_and_bounds() -> None:
    page = schema_page()
    assert "| `n_envs` | integer, at least 1, at most 65,536 | `1` | " in page
    assert "| `type` | `fixed`, `adaptive`, `ziegler` | `null` | " in page
    assert re.search(
        r"## env\.args\n.*\| `max_prompt_length` \| integer, at least 1, at most 1,000,000 \|  \| ",
        page,
        re.DOTALL,
    )
    assert "| `metrics` | list of `{id, args}` | `[]` | " in page
