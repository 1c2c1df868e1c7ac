"""DSTC9's interactive evaluation: conversations of people with chatbots, with human ratings.

The files are those of Li et al. 2021, "Conversations Are Not Flat: Modeling the Dynamic Information Flow across
Dialogue Utterances" (https://github.com/ictnlp/DialoFlow), one per chatbot, with one row per rater of a conversation.
The evaluation is that of Gunasekara et al. 2020, "Overview of the Ninth Dialog System Technology Challenge: DSTC9".
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from rl4dialog.core.downloads import download
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, RatedDialogue, Turn, is_number
from rl4dialog.data.rows import Row, read_rows

_URL = (
    "https://raw.githubusercontent.com/ictnlp/DialoFlow/a86140824890ad5a09b764181d305a1d97eb1dd3/FlowScore/data/"
    "chatbot{}.json"
)
_HASHES = (
    "1106454ac56344e86da4cc072fdee12bfa7c515b3a991c0e90da6e54a092085c",
    "eff39594dd2d895f76604f368d48c72c08a1e72c618f727dc4668270733ee6bb",
    "96604aed90fdb548bedf50ab7b81c382bf9431ac42a3d6cef0f1fa776c5379c5",
    "d4946a53a84790567a1ac3dba40157a2e9a5246167a3ed1778dd126fcc8c0bf0",
    "1cfc061bb9b5e2144ade3ffa546735b5b2a42618cbeb04c1464bb5165fc43c61",
    "3cb78055481bfe3db5306fd324e841045409efe664e830466462e5984108a9e1",
    "9d90e73ba360cba845172b0a1d4dca1d028c91167a9bdd58054a06027ad57b3b",
    "c59ae66ecf34354bcc36c001e75c87cf3967d4f639cf83fafdaf5884b0f38bb3",
    "ece5688b18e23d2f0577dfb4dd85f915b04e1477e32e382fcf7e201499342c37",
    "676216cefccfdf34c79f2a5d67dc3670541d3d869486cdc56f5e7dfd43fc7858",
    "8bbc99aecb1471b49f56298148ab85da5f592dc2998ef6eeb9c1e471c1350571",
)
_TEXT = "context"
_NOT_RATED = "N/A"
_SPEAKERS = {"User": PARTNER, "System": AGENT}
_SPEAKER = re.compile(r"^(User|System):", re.MULTILINE)


def fetch_dstc9(folder: Path) -> None:
    """Download the files of all 11 chatbots."""
    for number, sha256 in enumerate(_HASHES, start=1):
        try:
            download(_URL.format(number), sha256, folder / f"chatbot{number}.json")
        except DataError as error:
            raise DataError(f"{error}; if you have the files, run: rl4dialog prepare dstc9 --path FOLDER") from error


def read_dstc9(folder: Path) -> list[RatedDialogue]:
    """Read the conversations of all chatbots in a folder.

    The ratings of a conversation are means over its raters. Several words of a name are joined by ``_``, and ``human
    (overall)`` is ``overall``.

    Args:
        folder: Folder with ``chatbot1.json`` and so on, not necessarily all 11.

    Returns:
        One dialogue per conversation. A rating that no rater gave is left out.
    """
    files = sorted(folder.glob("chatbot*.json"), key=lambda path: (len(path.name), path.name))
    if not files:
        raise DataError(f"{folder} contains no files of DSTC9's chatbots (chatbot1.json, chatbot2.json, ...)")
    return [rated for file in files for rated in _read_chatbot(file)]


def _read_chatbot(file: Path) -> list[RatedDialogue]:
    raters: dict[str, list[Row]] = defaultdict(list)
    for row in read_rows(file):
        raters[row.text(_TEXT)].append(row)
    system = file.stem
    found = []
    for number, (text, rows) in enumerate(raters.items()):
        id = f"{system}_{number}"
        dialogue = Dialogue(id, _turns(text, rows[0]), meta_data={"n_raters": len(rows)})
        found.append(RatedDialogue(dialogue, _mean_ratings(rows), id, system))
    return found


def _turns(text: str, row: Row) -> tuple[Turn, ...]:
    before, *parts = _SPEAKER.split(text)
    if before.strip() or not parts:
        raise row.error(f"column {_TEXT!r} must be a conversation in which each utterance starts with User: or System:")
    return tuple(Turn(said.strip(), _SPEAKERS[name]) for name, said in zip(parts[::2], parts[1::2], strict=True))


def _mean_ratings(rows: Iterable[Row]) -> dict[str, float]:
    given: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, value in row.values.items():
            if name == _TEXT or value == _NOT_RATED:
                continue
            if not is_number(value):
                raise row.error(f"the rating {name!r} must be a number or {_NOT_RATED!r}, not {value!r}")
            given[_simple(name)].append(float(value))
    return {name: sum(values) / len(values) for name, values in given.items()}


def _simple(name: str) -> str:
    return "overall" if "overall" in name else name.replace(" ", "_")
