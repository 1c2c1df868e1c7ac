"""Loading from the hub, without any hub."""

from __future__ import annotations

from typing import Any

import datasets
import huggingface_hub
import pytest
from datasets import config
from huggingface_hub import constants

from rl4dialog.core import downloads as core_hub
from rl4dialog.core.errors import DataError
from rl4dialog.data import hub


@pytest.fixture(autouse=True)
def _reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_hub, "_resolves", lambda host: True)


def test_split_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: (args, kwargs))
    assert hub.load_hub_dataset("a/b", "hint", "validation") == (("a/b",), {"split": "validation"})


def test_configuration_and_revision_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: kwargs)
    expected = {"split": "test", "name": "de-en", "revision": "v1"}
    assert hub.load_hub_dataset("a/b", "hint", "test", "de-en", "v1") == expected


def test_failure_names_dataset_reason_and_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError) as caught:
        hub.load_hub_dataset("a/b", "Give the files as 'path:'.", "test")
    message = str(caught.value)
    assert "'a/b' (split: test)" in message
    assert "ConnectionError: no route to host" in message
    assert message.endswith("Give the files as 'path:'.")
    assert "\n" not in message


def test_script_datasets_are_read_from_their_parquet_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(id: str, split: str | None = None, revision: str | None = None) -> str:
        if revision is None:
            raise RuntimeError("Dataset scripts are no longer supported, but found b.py")
        return f"{id} {split} {revision}"

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert hub.load_hub_dataset("a/b", "hint", "train") == "a/b train refs/convert/parquet"


def test_configuration_is_a_folder_of_the_parquet_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(id: str, split: str, name: str | None = None, **kwargs: Any) -> dict[str, Any]:
        if name is not None:
            raise RuntimeError("Dataset scripts are no longer supported, but found b.py")
        return kwargs

    monkeypatch.setattr(datasets, "load_dataset", load)
    loaded = hub.load_hub_dataset("a/b", "hint", "train", "de-en")
    assert loaded == {"data_dir": "de-en", "revision": "refs/convert/parquet"}


def test_file_of_a_repository_that_cannot_be_had_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError("offline")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(DataError, match=r"'a/b' \(file: c\.zip\) cannot be loaded: OSError: offline\. Do this\."):
        hub.hub_file("a/b", "c.zip", "Do this.")


def test_other_runtime_errors_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("out of space")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError, match="RuntimeError: out of space"):
        hub.load_hub_dataset("a/b", "hint")


@pytest.mark.parametrize("reachable", [True, False])
def test_unreachable_hub_means_cache_only_and_only_for_this_call(
    monkeypatch: pytest.MonkeyPatch, reachable: bool
) -> None:
    monkeypatch.setattr(core_hub, "_resolves", lambda host: reachable)
    monkeypatch.setattr(core_hub.urllib.request, "getproxies", dict)
    monkeypatch.setattr(config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: (config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE))
    assert hub.load_hub_dataset("a/b", "hint") == (not reachable, not reachable)
    assert (config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE) == (False, False)
