"""Public datasets that ``rl4dialog prepare`` fetches, checks and puts into the cache."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import DataError, nearest_hint
from rl4dialog.data.chitchat import fetch_chitchat, read_chitchat
from rl4dialog.data.daily_dialog import load_dialogues
from rl4dialog.data.dstc9 import fetch_dstc9, read_dstc9
from rl4dialog.data.pool import SPLITS
from rl4dialog.data.prepared import put_prepared
from rl4dialog.data.text_files import FilePath, expand_path


@dataclass(frozen=True)
class PublicDataset:
    """A public dataset.

    Attributes:
        fetch: Downloads the files into a folder.
        check: Reads the files of a folder, and describes them in a few words.
        patterns: Names of the files.
    """

    fetch: Callable[[Path], None]
    check: Callable[[Path], str]
    patterns: tuple[str, ...]


def prepare_dataset(name: str, path: FilePath | None = None) -> str:
    """Put a dataset into the cache.

    Args:
        name: Name of the dataset.
        path: A folder with its files; by default they are downloaded.

    Returns:
        What the files contain, and where they are, as a line of text.
    """
    if name not in DATASETS:
        raise DataError(f"unknown dataset {name!r}{nearest_hint(name, DATASETS)} (known: {', '.join(DATASETS)})")
    dataset, given = DATASETS[name], None if path is None else expand_path(path)
    if given is not None and not given.is_dir():
        raise DataError(f"{given} is not a folder; --path must be the folder with the files of {name}")
    found = ""

    def build(folder: Path) -> None:
        nonlocal found
        if given is None:
            dataset.fetch(folder)
            found = dataset.check(folder)
        else:
            found = dataset.check(given)
            _copy(given, dataset.patterns, folder)

    folder = put_prepared(name, build)
    return f"{name}: {found}, in {folder}"


def _copy(source: Path, patterns: tuple[str, ...], target: Path) -> None:
    for file in (file for pattern in patterns for file in source.glob(pattern)):
        copied = target / file.relative_to(source)
        copied.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, copied)


def _refuse_daily_dialog(folder: Path) -> None:
    raise DataError(
        "DailyDialog is not downloaded, because its address is not reliable: get ijcnlp_dailydialog.zip from "
        "http://yanran.li/dailydialog, unpack it, and pass the folder with train.zip, validation.zip and test.zip: "
        "rl4dialog prepare daily_dialog --path FOLDER"
    )


def _some(dialogues: list[Any], folder: Path) -> list[Any]:
    if not dialogues:
        raise DataError(f"the files in {folder} contain no dialogues")
    return dialogues


def _check_daily_dialog(folder: Path) -> str:
    counts = {split: len(_some(load_dialogues(split, folder), folder)) for split in SPLITS}
    return ", ".join(f"{n} dialogues in {split}" for split, n in counts.items())


def _check_dstc9(folder: Path) -> str:
    dialogues = _some(read_dstc9(folder), folder)
    return f"{len(dialogues)} rated dialogues of {len({rated.system for rated in dialogues})} chatbots"


def _check_chitchat(folder: Path) -> str:
    dialogues = _some(read_chitchat(folder), folder)
    return f"{len(dialogues)} answered dialogues, {sum(bool(rated.ratings) for rated in dialogues)} of them rated"


_DAILY_DIALOG_FILES = [
    *("train.zip", "validation.zip", "test.zip", "dialogues_*.txt"),
    *(f"{folder}/dialogues_*.txt" for folder in ("train", "validation", "test")),
]
DATASETS = {
    "chitchat": PublicDataset(fetch_chitchat, _check_chitchat, ("dataset.json",)),
    "daily_dialog": PublicDataset(_refuse_daily_dialog, _check_daily_dialog, tuple(_DAILY_DIALOG_FILES)),
    "dstc9": PublicDataset(fetch_dstc9, _check_dstc9, ("chatbot*.json",)),
}
