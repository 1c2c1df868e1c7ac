"""DailyDialog: everyday conversations, with an act and an emotion for every utterance.

Reads the files of the original release, or a hub dataset with the columns ``dialog``, ``act`` and ``emotion``.
Whitespace around utterances is stripped, so that both give the same prompts. Topics are not read. Source: Li et al.
2017, "DailyDialog: A Manually Labelled Multi-turn Dialogue Dataset"; prompts as in RL4LMs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Dialogue, Turn
from rl4dialog.data.dialogue_format import (
    EOU_TOKEN,
    DialogueFormat,
    FormatName,
    RenderChat,
    SampleUnit,
    dialogue_samples,
)
from rl4dialog.data.labels import ACTS, EMOTIONS
from rl4dialog.data.pool import SPLITS, TextGenPool, check_split, hub_split, limit_samples
from rl4dialog.data.rows import (
    expand_path,
    is_count,
    read_lines,
    read_zip_lines,
)
from rl4dialog.data.splits import drawn_rows, find_prepared, hub_rows

DAILY_DIALOG_ID = "li2017dailydialog/daily_dialog"

_logger = logging.getLogger(__name__)
_FILE_END_OF_UTTERANCE = "__eou__"
_FLAT_FILES = ("dialogues_text.txt", "dialogues_act.txt", "dialogues_emotion.txt")
# The published validation and test splits have 1,000 of 13,118 dialogues each.
_HELD_OUT_SHARE = 1000 / 13118
_FLAT_SPLIT_SEED = "daily_dialog"

# File name for messages, and lines.
_NamedLines = tuple[str, list[str]]
# Id of a dialogue, its place for messages, and its utterances, acts and emotions.
_Labelled = tuple[str, str, list[list[Any]]]


class DailyDialog(TextGenPool):
    """Everyday dialogues with acts and emotions (DailyDialog), from the hub or from the original release's files.

    Args:
        path: Folder of the original release (see `load_dialogues`); by default the files of ``rl4dialog prepare
            daily_dialog`` or, if there are none, the hub dataset.
    """

    EOU_TOKEN = EOU_TOKEN

    @classmethod
    def prepare(
        cls,
        split: str,
        context_size: Count = 5,
        path: str | os.PathLike[str] | None = None,
        format: FormatName = "eou",
        max_size: Count | None = None,
        render_chat: RenderChat | None = None,
        dataset_id: str = DAILY_DIALOG_ID,
        samples: SampleUnit = "replies",
    ) -> DailyDialog:
        """Load one split, whose samples have ``emotion``, ``intent`` and ``history`` in their meta data."""
        dialogue_format = DialogueFormat(format, context_size, render_chat)
        found = dialogue_samples(load_dialogues(split, path, dataset_id), dialogue_format, samples)
        return cls(
            limit_samples(found, max_size, "daily_dialog", split, str(path or dataset_id)),
            dialogue_format=dialogue_format,
        )


def load_dialogues(
    split: str, path: str | os.PathLike[str] | None = None, dataset_id: str = DAILY_DIALOG_ID
) -> list[Dialogue]:
    """Load the dialogues of one split.

    A folder contains one of these, checked in this order:

    1. the published splits: ``train.zip``, ``validation.zip`` and ``test.zip``, or their unpacked files
       ``dialogues_train.txt``, ``dialogues_act_train.txt``, ``dialogues_emotion_train.txt`` (in a folder ``train`` or
       directly), likewise for ``validation`` and ``test``;
    2. the whole release in ``dialogues_text.txt``, ``dialogues_act.txt`` and ``dialogues_emotion.txt``, which is split
       in a fixed random order, with 1,000 of 13,118 dialogues (or the same share) each for val and test.
    """
    check_split(split)
    if path is None and dataset_id == DAILY_DIALOG_ID:
        path = find_prepared("daily_dialog")
    if path is None:
        files = (
            "the folder of the original release's files, or put them into the cache: rl4dialog prepare daily_dialog "
            "--path FOLDER"
        )
        columns, found = ("dialog", "act", "emotion"), enumerate(hub_rows(split, dataset_id, files))
        labelled = ((f"{split}_{i}", f"row {i}", [[*row[column]] for column in columns]) for i, row in found)
        return _dialogues(labelled, dataset_id)
    folder, name = expand_path(path), hub_split(split)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder, such as one with DailyDialog's train.zip, validation.zip, test.zip")
    places = {each: _find_split_files(folder, each) for each in map(hub_split, SPLITS)}
    if (place := places[name]) is not None:
        names = _split_file_names(name)
        lines = [read_zip_lines(place, file) if place.is_file() else read_lines(place / file) for file in names]
        return _parse_rows(split, [(f"{place}/{file}", found) for file, found in zip(names, lines, strict=True)])
    if not any(places.values()) and all((folder / file).is_file() for file in _FLAT_FILES):
        flat = [(f"{folder}/{file}", read_lines(folder / file)) for file in _FLAT_FILES]
        rows = drawn_rows(len(flat[0][1]), split, ("val", "test"), _HELD_OUT_SHARE, _FLAT_SPLIT_SEED)
        return _parse_rows(split, flat, rows)
    raise DataError(
        f"{folder} contains no DailyDialog files of split {name!r}: tried {name}.zip, "
        f"{', '.join(_split_file_names(name))} (also in a folder {name}), and {', '.join(_FLAT_FILES)}"
    )


def _split_file_names(split: str) -> tuple[str, str, str]:
    return f"dialogues_{split}.txt", f"dialogues_act_{split}.txt", f"dialogues_emotion_{split}.txt"


def _find_split_files(folder: Path, split: str) -> Path | None:
    """Return the zip, or the folder with the text files, of a published split."""
    archive = folder / f"{split}.zip"
    if archive.is_file():
        return archive
    text_name = _split_file_names(split)[0]
    return next((place for place in (folder / split, folder) if (place / text_name).is_file()), None)


def _parse_rows(split: str, files: list[_NamedLines], rows: list[int] | None = None) -> list[Dialogue]:
    text, act, emotion = files
    if len({len(lines) for _, lines in files}) > 1:
        counts = ", ".join(f"{file} has {len(lines)}" for file, lines in files)
        raise DataError(f"the files of one split must have the same number of lines, but {counts}")

    def labelled(row: int) -> _Labelled:
        utterances = _parse_utterances(text[1][row], f"{text[0]}:{row + 1}")
        acts = _parse_labels(act[1][row], ACTS, f"{act[0]}:{row + 1}")
        emotions = _parse_labels(emotion[1][row], EMOTIONS, f"{emotion[0]}:{row + 1}")
        return f"{split}_{row}", f"line {row + 1}", [utterances, acts, emotions]

    return _dialogues(map(labelled, range(len(text[1])) if rows is None else rows), text[0])


def _parse_utterances(line: str, place: str) -> list[str]:
    if _FILE_END_OF_UTTERANCE not in line:
        raise DataError(f"{place}: no {_FILE_END_OF_UTTERANCE} in this line; every utterance must end with it")
    utterances = [part.strip() for part in line.split(_FILE_END_OF_UTTERANCE)]
    if not utterances[-1]:
        utterances.pop()
    if not all(utterances):
        raise DataError(f"{place}: utterance {utterances.index('') + 1} is empty")
    return utterances


def _parse_labels(line: str, names: dict[int, str], place: str) -> list[int]:
    labels = []
    for word in line.split():
        if not is_count(word) or int(word) not in names:
            raise DataError(f"{place}: {word!r} is not a valid label ({min(names)} to {max(names)})")
        labels.append(int(word))
    return labels


def _dialogues(found: Iterable[_Labelled], source: str) -> list[Dialogue]:
    """Dialogues with an act and an emotion for each utterance. Others are left out, with a warning."""
    dialogues, skipped = [], []
    for id, place, (texts, acts, emotions) in found:
        if not len(texts) == len(acts) == len(emotions):
            skipped.append(f"{place} ({len(texts)} utterances, {len(acts)} acts, {len(emotions)} emotions)")
            continue
        said = enumerate(zip(texts, acts, emotions, strict=True))
        turns = (Turn(text.strip(), i % 2, act, emotion) for i, (text, act, emotion) in said)
        dialogues.append(Dialogue(id, tuple(turns)))
    if skipped:
        some = ", ".join(skipped[:5]) + (", ..." if len(skipped) > 5 else "")
        what = "dialogue(s) with unequal numbers of utterances and labels"
        _logger.warning("%s: skipped %d %s: %s", source, len(skipped), what, some)
    return dialogues
