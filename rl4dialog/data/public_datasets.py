"""Public datasets that ``rl4dialog prepare`` fetches, checks and puts into the cache."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from rl4dialog.core.errors import DataError, nearest_hint
from rl4dialog.core.features import all_ids
from rl4dialog.core.registry import import_object
from rl4dialog.data.dialogue_corpora import load_dialogues
from rl4dialog.data.pool import SPLITS
from rl4dialog.data.ratings import fetch_chitchat, fetch_dstc9, read_chitchat, read_dstc9
from rl4dialog.data.rows import FilePath, expand_path
from rl4dialog.data.splits import put_prepared


class PublicDataset(NamedTuple):
    """A public dataset, listed as ``public dataset`` in a ``catalog.yaml``."""

    fetch: Callable[[Path], None]  # downloads the files into a folder
    check: Callable[[Path], str]  # reads the files of a folder, and describes them in a few words
    patterns: tuple[str, ...]  # names of the files


def prepare_dataset(name: str, path: FilePath | None = None) -> str:
    """Put a dataset into the cache."""
    known = all_ids()["public dataset"]
    if name not in known:
        raise DataError(f"unknown dataset {name!r}{nearest_hint(name, known)} (known: {', '.join(sorted(known))})")
    dataset, given = import_object(known[name]), None if path is None else expand_path(path)
    if given is not None and not given.is_dir():
        raise DataError(f"{given} is not a folder; --path must be the folder with the files of {name}")
    found = ""

    def build(folder: Path) -> None:
        nonlocal found
        if given is None:
            try:
                dataset.fetch(folder)
            except DataError as error:
                cure = f"if you have the files, run: rl4dialog prepare {name} --path FOLDER"
                raise DataError(f"{error}; {cure}") from error
            found = dataset.check(folder)
            return
        found = dataset.check(given)
        for file in chain.from_iterable(map(given.glob, dataset.patterns)):
            copied = folder / file.relative_to(given)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copied)

    folder = put_prepared(name, build)
    return f"{name}: {found}, in {folder}"


def _refuse_daily_dialog(folder: Path) -> None:
    raise DataError(
        "DailyDialog is not downloaded, because its address is not reliable: get ijcnlp_dailydialog.zip from "
        "http://yanran.li/dailydialog, and unpack it to train.zip, validation.zip and test.zip"
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
CHITCHAT = PublicDataset(fetch_chitchat, _check_chitchat, ("dataset.json",))
DAILY_DIALOG = PublicDataset(_refuse_daily_dialog, _check_daily_dialog, tuple(_DAILY_DIALOG_FILES))
DSTC9 = PublicDataset(fetch_dstc9, _check_dstc9, ("chatbot*.json",))
