"""CRD3: the next turns of players in Critical Role's Dungeons and Dragons sessions.

Reads the original repository (folder or zip), or its aligned data from the hub, in which every episode is cut into
overlapping pieces; they are joined here. The rows of the hub dataset itself do not separate episodes. License: CC BY-SA
4.0. Source: Rameshkumar and Bailey 2020, "Storytelling with Dialogue: A Critical Role Dungeons and Dragons Dataset";
prompts as in RL4LMs.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Sample
from rl4dialog.data.hub import hub_file, offline_hint
from rl4dialog.data.pool import TextGenPool, check_split, limit_samples
from rl4dialog.data.rows import Row, parse_json
from rl4dialog.data.text_files import FilePath, decode_lines, expand_path, walk_files

HUB_ID = "microsoft/crd3"
HUB_FILE = "data/aligned data.zip"

_logger = logging.getLogger(__name__)
# The repository contains a frozen second copy in its folder baseline.
_SPLIT_LIST = r"(?<!baseline/data/)aligned data/{split}_files$"
_CLEANED = re.compile(r"(?<!baseline/data/)cleaned data/([^/_]+)\.json$")
_ALIGNED = re.compile(r"(?<!baseline/data/)aligned data/c=2/([^/_]+)_[^/]*\.json$")

# Speaker and text.
Line = tuple[str, str]


class CRD3(TextGenPool):
    """Table-top role-playing among friends (CRD3): the next turn of a transcript from the previous turns."""

    @classmethod
    def prepare(
        cls,
        split: str,
        max_context_size: Count = 5,
        path: FilePath | None = None,
        max_size: Count | None = None,
        dataset_id: str = HUB_ID,
    ) -> CRD3:
        """Load one split: one sample for each turn with at least two earlier turns in its episode.

        Args:
            split: ``train``, ``val`` or ``test``.
            max_context_size: Maximum number of turns in a prompt.
            path: The repository's folder or zip; by default the hub dataset is loaded.
            max_size: Keep only the first samples.
            dataset_id: Hub dataset with the file ``data/aligned data.zip``, to use without ``path``.

        Returns:
            A pool whose prompts have a line ``NAME: TEXT`` per turn and end with the name of the next speaker. Samples
            have the ``history`` and the ``speaker`` in their meta data.

        Raises:
            DataError: If an argument is invalid, or the data is missing, malformed or empty.
        """
        check_split(split)
        hint = offline_hint("the folder or zip of CRD3's repository")
        place = hub_file(dataset_id, HUB_FILE, hint) if path is None else expand_path(path)
        samples = _samples(split, load_episodes(split, place), max_context_size)
        return cls(limit_samples(samples, max_size, "crd3", split, str(path or dataset_id)))


def load_episodes(split: str, place: Path) -> dict[str, list[Line]]:
    """Load the episodes of a split.

    Args:
        split: ``train``, ``val`` or ``test``.
        place: The repository's folder, or a zip of it.

    Returns:
        Turns of each episode, in the order of the split's list. A warning lists missing episodes.

    Raises:
        DataError: If the data is missing or malformed; the message contains the file name.
    """
    split_list = re.compile(_SPLIT_LIST.format(split=split))
    names: list[str] = []
    for file, data in walk_files(place, lambda name: split_list.search(name) is not None):
        names = [line.strip() for line in decode_lines(data, file) if line.strip()]
    if not names:
        raise DataError(f"{place} has no file 'aligned data/{split}_files' with the episodes of split {split!r}")
    # Cleaned data has one file per episode, and is preferred.
    for pattern in (_CLEANED, _ALIGNED):
        turns: dict[str, dict[int, Line]] = {}
        for file, data in walk_files(place, functools.partial(_is_episode_of, names, pattern)):
            match = pattern.search(file)
            assert match is not None
            episode = turns.setdefault(match.group(1), {})
            for row in _turn_rows(parse_json("\n".join(decode_lines(data, file)), file), file):
                episode[_number(row, len(episode))] = _line(row)
        if turns:
            missing = [name for name in names if name not in turns]
            if missing:
                _logger.warning(
                    "%s lacks %d episode(s) of split %r: %s", place, len(missing), split, ", ".join(missing)
                )
            return {name: [turns[name][number] for number in sorted(turns[name])] for name in names if name in turns}
    raise DataError(f"{place} has no episodes: tried 'cleaned data/*.json' and 'aligned data/c=2/*.json'")


def _is_episode_of(names: list[str], pattern: re.Pattern[str], file: str) -> bool:
    match = pattern.search(file)
    return match is not None and match.group(1) in names


def _turn_rows(content: Any, file: str) -> Iterator[Row]:
    """Yield the turns of a cleaned file (one object) or an aligned file (a list of pieces)."""
    for piece in content if isinstance(content, list) else [content]:
        if not isinstance(piece, Mapping) or not isinstance(piece.get("TURNS"), list):
            raise DataError(f"{file}: no list 'TURNS', so it is not a CRD3 episode")
        for index, turn in enumerate(piece["TURNS"]):
            yield Row(turn if isinstance(turn, Mapping) else {}, f"{file}, turn {index}")


def _number(row: Row, default: int) -> int:
    number = row.get("NUMBER", default)
    if not isinstance(number, int):
        raise row.error(f"NUMBER must be an integer, not {number!r}")
    return number


def _line(row: Row) -> Line:
    return row.texts("NAMES")[0], " ".join(row.texts("UTTERANCES") if row["UTTERANCES"] else [])


def _samples(split: str, episodes: dict[str, list[Line]], context_size: int) -> Iterator[Sample]:
    for episode_index, lines in enumerate(episodes.values()):
        for turn in range(2, len(lines)):
            context = lines[max(0, turn - context_size) : turn]
            speaker, reply = lines[turn]
            prompt = "\n".join([*(f"{name}: {text}" for name, text in context), f"{speaker}: "])
            meta_data = {"history": [text for _, text in context], "speaker": speaker}
            yield Sample(f"{split}_ep_{episode_index}_turn_{turn}", prompt, [reply], meta_data)
