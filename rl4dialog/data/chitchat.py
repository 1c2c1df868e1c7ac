"""The Chit-Chat Challenge: conversations between people, rated witty, upbeat and interesting from 1 to 10.

The package ``chitchat-dataset`` contains the data (Myers, Etchart and Fulda 2020, "Conversational Scaffolding: An
Analogy-Based Approach to Response Prioritization in Open-Domain Dialogs").
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl4dialog.core.downloads import file_from_wheel
from rl4dialog.core.errors import DataError, shown
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, RatedDialogue, Turn, is_number
from rl4dialog.data.rows import parse_json
from rl4dialog.data.text_files import read_lines

FILE = "dataset.json"
_PACKAGE = "chitchat-dataset==0.9.0"
_MEMBER = "chitchat_dataset/dataset.json"
_HASH = "d2a5d0bf6acf354fef51f3af39cbece2220d3b8f6086b658c3d335105798312a"


def fetch_chitchat(folder: Path) -> None:
    """Extract the data from the package's wheel."""
    shutil.copyfile(file_from_wheel(_PACKAGE, _MEMBER, _HASH), folder / FILE)


def read_chitchat(folder: Path) -> list[RatedDialogue]:
    """Read the conversations that were answered.

    Consecutive messages of one person are one utterance, joined by spaces. Both speakers are people and a rating is for
    the whole conversation; the one who answers first has the agent's side.

    Args:
        folder: Folder with ``dataset.json``.

    Returns:
        All conversations with at least two utterances, those without ratings included.
    """
    path = folder / FILE
    conversations = parse_json("\n".join(read_lines(path)), str(path))
    if not isinstance(conversations, dict):
        raise DataError(f"{path} must contain an object with one conversation per id, not {shown(conversations)}")
    found = []
    for id, conversation in conversations.items():
        try:
            turns, topic = _turns(conversation["messages"]), conversation.get("prompt")
            ratings = _checked(conversation.get("ratings", {}))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DataError(f"{path}: conversation {id} is malformed ({type(error).__name__}: {error})") from error
        if len(turns) > 1:
            found.append(RatedDialogue(Dialogue(id, turns, topic), ratings, id))
    return found


def _turns(groups: list[list[dict[str, Any]]]) -> tuple[Turn, ...]:
    first = groups[0][0]["sender"]
    return tuple(
        Turn(" ".join(part["text"].strip() for part in group), PARTNER if group[0]["sender"] == first else AGENT)
        for group in groups
    )


def _checked(ratings: Mapping[str, Any]) -> dict[str, float]:
    for name, value in ratings.items():
        if not is_number(value):
            raise ValueError(f"the rating {name!r} must be a number, not {value!r}")
    return {name: float(value) for name, value in ratings.items()}
