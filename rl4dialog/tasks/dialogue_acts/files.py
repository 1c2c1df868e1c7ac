"""Files of published task-oriented datasets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from rl4dialog.core.errors import DataError, shown
from rl4dialog.core.files import json_value
from rl4dialog.data.text_files import walk_files

SPLITS = ("train", "val", "test")
_Dialogues = TypeVar("_Dialogues", list[Any], dict[str, Any])


def read_json(path: Path) -> Any:
    """Read a JSON file, or the one of this name in a zip archive beside it.

    Raises:
        DataError: If neither exists, or the contents are not JSON.
    """
    archive = path.with_name(path.name + ".zip")
    try:
        if path.is_file():
            return json_value(path.read_text(encoding="utf-8"))
        if archive.is_file():
            for _, content in walk_files(archive, lambda name: name == path.name):
                return json_value(content)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as JSON: {error}") from error
    released = path.with_name("data.json").is_file()
    hint = "; its data.json is MultiWOZ as released, and ConvLab-2's files are needed" if released else ""
    raise DataError(f"the file {path.name} (or {archive.name}) is missing in {path.parent}{hint}")


def read_entities(path: Path) -> list[dict[str, Any]]:
    """Read a database: a list of objects."""
    found = read_json(path)
    if not isinstance(found, list) or not all(isinstance(entity, dict) for entity in found):
        raise DataError(f"{path} must be a list of objects, one for each entity, not {shown(found)}")
    return found


def read_splits(
    folder: Path, kind: type[_Dialogues], splits: Mapping[str, str] | None = None
) -> dict[str, tuple[_Dialogues, str]]:
    """Read ``train.json``, ``val.json`` and ``test.json``.

    Splits that share a file divide its dialogues: the first of train, test and val gets all but every fifth dialogue.

    Args:
        folder: Folder of the files.
        kind: What each of them contains: a ``list`` of dialogues, or a ``dict`` with dialogues by id.
        splits: Split that stands in for a missing one, such as ``{"train": "val"}``.

    Returns:
        Contents and file of each split.
    """
    found = {}
    sources = {split: (splits or {}).get(split, split) for split in SPLITS}
    unknown = [split for split in splits or {} if split not in SPLITS]
    if unknown:
        raise DataError(f"splits: {unknown[0]!r} is not a split; use one of {', '.join(SPLITS)}")
    for split, source in sources.items():
        path = folder / f"{source}.json"
        if source not in SPLITS:
            raise DataError(f"splits: {split}: {source!r} is not a split; use one of {', '.join(SPLITS)}")
        try:
            contents = read_json(path)
        except DataError as error:
            raise DataError(f"{error}{'' if path.exists() else _stand_in(folder, split)}") from error
        if not isinstance(contents, kind):
            expected = "a list of dialogues" if kind is list else "an object with dialogues by id"
            raise DataError(f"{path}: expected {expected}, not {shown(contents)}")
        sharing = [other for other in ("train", "test", "val") if sources[other] == source]
        found[split] = (_part(contents, sharing.index(split), len(sharing)), str(path))
    return found


def _stand_in(folder: Path, missing: str) -> str:
    """Which split can stand in for a missing one; empty if there is none."""
    for split in ("val", "test", "train"):
        if any((folder / f"{split}.json{suffix}").is_file() for suffix in ("", ".zip")):
            return f". Another split can stand in for it: task.args.splits: {{{missing}: {split}}}"
    return ""


def _part(contents: _Dialogues, part: int, n_parts: int) -> _Dialogues:
    """One part of a list or an object: of each five entries, one for every part but the first, which has the rest."""
    if n_parts == 1:
        return contents
    entries = contents.items() if isinstance(contents, dict) else contents
    kept = [entry for i, entry in enumerate(entries) if max(0, i % 5 - (5 - n_parts)) == part]
    return type(contents)(kept)
