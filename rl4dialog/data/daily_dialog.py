"""DailyDialog: everyday conversations, with an act and an emotion for every utterance.

Reads the files of the original release, or a hub dataset with the columns ``dialog``, ``act`` and ``emotion``.
Whitespace around utterances is stripped, so that both give the same prompts. Topics are not read. Source: Li et al.
2017, "DailyDialog: A Manually Labelled Multi-turn Dialogue Dataset"; prompts as in RL4LMs.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

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
from rl4dialog.data.hub import load_hub_dataset
from rl4dialog.data.labels import ACTS, EMOTIONS
from rl4dialog.data.pool import SPLITS, TextGenPool, check_split, hub_split, limit_samples
from rl4dialog.data.prepared import find_prepared
from rl4dialog.data.splits import drawn_rows
from rl4dialog.data.text_files import expand_path, is_count, read_lines, read_zip_lines

HUB_ID = "li2017dailydialog/daily_dialog"

_logger = logging.getLogger(__name__)
_FILE_END_OF_UTTERANCE = "__eou__"
_FLAT_FILES = ("dialogues_text.txt", "dialogues_act.txt", "dialogues_emotion.txt")
# The published validation and test splits have 1,000 of 13,118 dialogues each.
_HELD_OUT_SHARE = 1000 / 13118
_FLAT_SPLIT_SEED = "daily_dialog"

# File name for messages, and lines.
_NamedLines = tuple[str, list[str]]


class DailyDialog(TextGenPool):
    """Everyday dialogues with acts and emotions (DailyDialog), from the hub or from the original release's files."""

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
        dataset_id: str = HUB_ID,
        samples: SampleUnit = "replies",
    ) -> DailyDialog:
        """Load one split.

        Args:
            split: ``train``, ``val`` or ``test``.
            context_size: Number of utterances in a prompt; a dialogue's first utterances are not used as replies.
            path: Folder of the original release (see `load_dialogues`); by default the files of ``rl4dialog prepare
                daily_dialog`` or, if there are none, the hub dataset.
            format: ``eou`` or ``chat_template``.
            max_size: Keep only the first samples.
            render_chat: Formats chat messages as a prompt; required for ``chat_template``.
            dataset_id: Hub dataset to use without ``path``.
            samples: ``replies``: one sample for each reply. ``dialogues``: one for each dialogue, which begins with the
                reply to the first utterance; all later utterances are in the meta data as ``continuation``, for the
                partner ``replay``.

        Returns:
            A pool whose samples have ``emotion``, ``intent`` and ``history`` in their meta data.

        Raises:
            DataError: If an argument is invalid, or the data is missing, malformed or empty.
        """
        dialogue_format = DialogueFormat(format, context_size, render_chat)
        found = dialogue_samples(load_dialogues(split, path, dataset_id), dialogue_format, samples)
        pool = cls(limit_samples(found, max_size, "daily_dialog", split, str(path or dataset_id)))
        pool.use_format(dialogue_format)
        return pool


def load_dialogues(split: str, path: str | os.PathLike[str] | None = None, dataset_id: str = HUB_ID) -> list[Dialogue]:
    """Load the dialogues of one split.

    A folder contains one of these, checked in this order:

    1. the published splits: ``train.zip``, ``validation.zip`` and ``test.zip``, or their unpacked files
       ``dialogues_train.txt``, ``dialogues_act_train.txt``, ``dialogues_emotion_train.txt`` (in a folder ``train`` or
       directly), likewise for ``validation`` and ``test``;
    2. the whole release in ``dialogues_text.txt``, ``dialogues_act.txt`` and ``dialogues_emotion.txt``, which is split
       in a fixed random order, with 1,000 of 13,118 dialogues (or the same share) each for val and test.

    Args:
        split: ``train``, ``val`` or ``test``.
        path: The folder; ``None`` for the prepared files or, if there are none, the hub.
        dataset_id: Hub dataset to use without ``path``.

    Returns:
        The dialogues. Rows with different numbers of utterances and labels are skipped with a warning.

    Raises:
        DataError: If the data is missing or malformed; for an invalid line, the message contains file and line number.
    """
    check_split(split)
    if path is None and dataset_id == HUB_ID:
        path = find_prepared("daily_dialog")
    if path is None:
        return _load_from_hub(split, dataset_id)
    folder = expand_path(path)
    if not folder.is_dir():
        raise DataError(
            f"{folder} is not a folder; path must be a folder with DailyDialog's train.zip, validation.zip and "
            f"test.zip (or the unpacked files)"
        )
    if any(_find_split_files(folder, hub_split(name)) for name in SPLITS):
        return _parse_rows(split, _read_split(folder, hub_split(split)))
    if all((folder / name).is_file() for name in _FLAT_FILES):
        files = [(str(folder / name), read_lines(folder / name)) for name in _FLAT_FILES]
        rows = drawn_rows(len(files[0][1]), split, ("val", "test"), _HELD_OUT_SHARE, _FLAT_SPLIT_SEED)
        return _parse_rows(split, files, rows)
    raise DataError(
        f"{folder} contains no DailyDialog files: tried {hub_split(split)}.zip, "
        f"{', '.join(_split_file_names(hub_split(split)))} (also in a folder {hub_split(split)}), "
        f"and {', '.join(_FLAT_FILES)}"
    )


def _load_from_hub(split: str, dataset_id: str) -> list[Dialogue]:
    hint = (
        "Without a network, set 'path:' to the folder of the original release's files, or put them into the cache: "
        "rl4dialog prepare daily_dialog --path FOLDER"
    )
    rows = load_hub_dataset(dataset_id, hint, hub_split(split))
    dialogues, skipped = [], []
    for index, row in enumerate(rows):
        try:
            texts, acts, emotions = ([*row[column]] for column in ("dialog", "act", "emotion"))
        except KeyError as error:
            raise DataError(
                f"hub dataset {dataset_id!r} has no column {error}; required: dialog, act, emotion"
            ) from error
        if len(texts) == len(acts) == len(emotions):
            dialogues.append(_dialogue(f"{split}_{index}", texts, acts, emotions))
        else:
            skipped.append(f"row {index}")
    _warn_of_skipped(skipped, dataset_id)
    return dialogues


def _split_file_names(split: str) -> tuple[str, str, str]:
    return f"dialogues_{split}.txt", f"dialogues_act_{split}.txt", f"dialogues_emotion_{split}.txt"


def _find_split_files(folder: Path, split: str) -> Path | None:
    """Return the zip, or the folder with the text files, of a published split."""
    archive = folder / f"{split}.zip"
    if archive.is_file():
        return archive
    text_name = _split_file_names(split)[0]
    return next((place for place in (folder / split, folder) if (place / text_name).is_file()), None)


def _read_split(folder: Path, split: str) -> list[_NamedLines]:
    place = _find_split_files(folder, split)
    if place is None:
        raise DataError(
            f"{folder} contains some splits of DailyDialog but not {split!r}: tried {split}.zip and "
            f"{_split_file_names(split)[0]} (also in a folder {split})"
        )
    if place.is_file():
        return [(f"{place}/{name}", read_zip_lines(place, name)) for name in _split_file_names(split)]
    return [(str(place / name), read_lines(place / name)) for name in _split_file_names(split)]


def _parse_rows(split: str, files: list[_NamedLines], rows: list[int] | None = None) -> list[Dialogue]:
    text, act, emotion = files
    if len({len(lines) for _, lines in files}) > 1:
        counts = ", ".join(f"{file} has {len(lines)}" for file, lines in files)
        raise DataError(f"the files of one split must have the same number of lines, but {counts}")
    dialogues, skipped = [], []
    for row in range(len(text[1])) if rows is None else rows:
        utterances = _parse_utterances(text[1][row], f"{text[0]}:{row + 1}")
        acts = _parse_labels(act[1][row], ACTS, f"{act[0]}:{row + 1}")
        emotions = _parse_labels(emotion[1][row], EMOTIONS, f"{emotion[0]}:{row + 1}")
        if len(utterances) == len(acts) == len(emotions):
            dialogues.append(_dialogue(f"{split}_{row}", utterances, acts, emotions))
        else:
            skipped.append(f"line {row + 1} ({len(utterances)} utterances, {len(acts)} acts, {len(emotions)} emotions)")
    _warn_of_skipped(skipped, text[0])
    return dialogues


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


def _dialogue(id: str, texts: list[str], acts: list[int], emotions: list[int]) -> Dialogue:
    turns = zip(texts, acts, emotions, strict=True)
    return Dialogue(
        id, tuple(Turn(text.strip(), index % 2, act, emotion) for index, (text, act, emotion) in enumerate(turns))
    )


def _warn_of_skipped(skipped: list[str], source: str) -> None:
    if skipped:
        shown = ", ".join(skipped[:5]) + (", ..." if len(skipped) > 5 else "")
        _logger.warning(
            "%s: skipped %d dialogue(s) with unequal numbers of utterances and labels: %s",
            source,
            len(skipped),
            shown,
        )
