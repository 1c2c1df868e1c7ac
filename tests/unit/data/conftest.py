"""A stand-in for the hub, and files made from a mapping."""

from typing import Any

import datasets
import pytest

from rl4dialog.core import downloads as hub

# Rows of each split, by id and configuration of a hub dataset.
FakeHub = dict[tuple[str, str | None], dict[str, list[dict[str, Any]]]]


@pytest.fixture
def fake_hub(monkeypatch):
    tables = {}

    def load(id, split=None, name=None):
        splits = datasets.DatasetDict(
            {key: datasets.Dataset.from_list(rows) for key, rows in tables[(id, name)].items()}
        )
        return splits if split is None else splits[split]

    monkeypatch.setattr(hub, "_resolves", lambda host: True)
    monkeypatch.setattr(datasets, "load_dataset", load)
    return tables


@pytest.fixture
def write(tmp_path):
    def write_files(files):
        for name, content in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path

    return write_files
