"""CRD3: the next turns of players in Critical Role's Dungeons and Dragons sessions.

Reads the original repository (folder or zip), or its aligned data from the hub, in which every episode is cut into
overlapping pieces; they are joined here. The rows of the hub dataset itself do not separate episodes. License: CC
BY-SA 4.0. Source: Rameshkumar and Bailey 2020, "Storytelling with Dialogue: A Critical Role Dungeons and Dragons
Dataset"; prompts as in RL4LMs.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from rl4dialog.core.arguments import Count, parsed
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Sample
from rl4dialog.data.pool import TextGenPool, check_split, limit_samples
from rl4dialog.data.rows import FilePath, TypedRow, decode_lines, expand_path, parse_json, walk_files
from rl4dialog.data.splits import hub_file, offline_hint

_logger = logging.getLogger(__name__)
CRD3_ID = "microsoft/crd3"
_CRD3_FILE = "data/aligned data.zip"

# The repository contains a frozen second copy in its folder baseline.
_SPLIT_LIST = r"(?<!baseline/data/)aligned data/{split}_files$"
_CLEANED = re.compile(r"(?<!baseline/data/)cleaned data/([^/_]+)\.json$")
_ALIGNED = re.compile(r"(?<!baseline/data/)aligned data/c=2/([^/_]+)_[^/]*\.json$")

# Speaker and text.
Line = tuple[str, str]


class CRD3(TextGenPool):
    """Table-top role-playing among friends (CRD3): the next turn of a transcript from the previous turns.

    Args:
        max_context_size: Maximum number of turns in a prompt.
        path: The repository's folder or zip; by default the hub dataset is loaded.
        dataset_id: Hub dataset with the file ``data/aligned data.zip``, to use without ``path``.
    """

    @classmethod
    def prepare(
        cls,
        split: str,
        max_context_size: Count = 5,
        path: FilePath | None = None,
        max_size: Count | None = None,
        dataset_id: str = CRD3_ID,
    ) -> CRD3:
        """Load one split: one sample for each turn with at least two earlier turns in its episode.

        Prompts have lines ``NAME: TEXT`` and end with the next speaker's name. Meta data: ``history`` and ``speaker``.
        """
        check_split(split)
        hint = offline_hint("the folder or zip of CRD3's repository")
        place = hub_file(dataset_id, _CRD3_FILE, hint) if path is None else expand_path(path)
        samples = _samples(split, load_episodes(split, place), max_context_size)
        return cls(limit_samples(samples, max_size, "crd3", split, str(path or dataset_id)))


class _CrdTurn(TypedRow):
    NAMES: Annotated[list[str], Field(min_length=1)]
    UTTERANCES: list[str]
    NUMBER: int | None = None


class _Piece(TypedRow):
    TURNS: list[_CrdTurn]


def load_episodes(split: str, place: Path) -> dict[str, list[Line]]:
    """Turns of each episode of a split, in the order of its list, from the repository's folder or a zip of it."""
    split_list = re.compile(_SPLIT_LIST.format(split=split))
    names: list[str] = []
    for file, data in walk_files(place, lambda name: split_list.search(name) is not None):
        names = [line.strip() for line in decode_lines(data, file) if line.strip()]
    if not names:
        raise DataError(f"{place} has no file 'aligned data/{split}_files' with the episodes of split {split!r}")

    def episode_of(pattern: re.Pattern[str], file: str) -> str | None:
        match = pattern.search(file)
        return match[1] if match is not None and match[1] in names else None

    # Cleaned data has one file per episode, an object, and is preferred. Aligned data has lists of pieces.
    for pattern in (_CLEANED, _ALIGNED):
        turns: dict[str, dict[int, Line]] = {}
        for file, data in walk_files(place, functools.partial(episode_of, pattern)):
            episode = turns.setdefault(episode_of(pattern, file) or "", {})
            content = parse_json("\n".join(decode_lines(data, file)), file)
            for piece in content if isinstance(content, list) else [content]:
                for turn in parsed(_Piece, piece, file).TURNS:
                    number = len(episode) if turn.NUMBER is None else turn.NUMBER
                    episode[number] = (turn.NAMES[0], " ".join(turn.UTTERANCES))
        if turns:
            if missing := [name for name in names if name not in turns]:
                lacking = ", ".join(missing)
                _logger.warning("%s lacks %d episode(s) of split %r: %s", place, len(missing), split, lacking)
            return {name: [turns[name][number] for number in sorted(turns[name])] for name in names if name in turns}
    raise DataError(f"{place} has no episodes: tried 'cleaned data/*.json' and 'aligned data/c=2/*.json'")


def _samples(split: str, episodes: dict[str, list[Line]], context_size: int) -> Iterator[Sample]:
    for episode_index, lines in enumerate(episodes.values()):
        for turn in range(2, len(lines)):
            context = lines[max(0, turn - context_size) : turn]
            speaker, reply = lines[turn]
            prompt = "\n".join([*(f"{name}: {text}" for name, text in context), f"{speaker}: "])
            meta_data = {"history": [text for _, text in context], "speaker": speaker}
            yield Sample(f"{split}_ep_{episode_index}_turn_{turn}", prompt, [reply], meta_data)
