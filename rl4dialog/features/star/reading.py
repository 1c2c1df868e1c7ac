"""Conversations of STAR in their original files, one per conversation (Mosig et al. 2020, arXiv 2010.11853).

A user with a written goal talks to a clerk, who asks a knowledge base. Drafts of the clerk are left out.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rl4dialog.core.downloads import download
from rl4dialog.core.errors import DataError
from rl4dialog.data.public_datasets import PublicDataset
from rl4dialog.data.rows import FilePath, expand_path, walk_files
from rl4dialog.data.splits import prepared_folder
from rl4dialog.features.tools.calls import write_text

Who = Literal["user", "clerk", "call", "answer"]
_URL = "https://github.com/RasaHQ/STAR/archive/HEAD.zip"  # such archives have no constant hash
_IS_DIALOGUE = re.compile(r"(?:^|/)dialogues/\d+\.json$").search
_IS_API = re.compile(r"(?:^|/)apis/\w+\.json$").search
_CONSTRAINT = re.compile(r"api\.(\w+)\((.*)\)$", re.DOTALL)
_COMPARISONS = {
    "is_less_than": "at most ",
    "is_at_most": "at most ",
    "is_greater_than": "at least ",
    "is_at_least": "at least ",
    "is_not": "not ",
    "is_unequal_to": "not ",
    "contains_not": "not ",
}


class Event(NamedTuple):
    """Something said by the user or the clerk, a call, or what the knowledge base answered."""

    who: Who
    text: str


@dataclass(frozen=True)
class Query:
    """A call with the knowledge base's answer."""

    api: str
    arguments: Mapping[str, str]  # by slot; the first of a slot that is given repeatedly
    answer: Mapping[str, Any]
    place: int  # its number among the events


@dataclass(frozen=True)
class Conversation:
    """One conversation. Ids of people are as in the files."""

    id: int
    user: str
    clerk: str
    goal: str  # the user's, as it was written before the conversation
    tasks: tuple[str, ...]  # that the clerk could help with
    is_happy: bool  # whether the user was to follow the flow of the task
    is_complete: bool
    events: tuple[Event, ...]
    queries: tuple[Query, ...]
    instructions: tuple[tuple[int, str], ...]  # to the user, each with the number of the events before it

    def until_call(self) -> tuple[Event, ...]:
        """The events up to the first call, and this one; all of them without a call."""
        return self.events[: self.queries[0].place + 1] if self.queries else self.events

    def said(self, end: int, start: int = 0) -> str:
        """What the user said among the events of these numbers."""
        return " | ".join(event.text for event in self.events[start:end] if event.who == "user")


def place_of(path: FilePath | None) -> Path:
    """A folder or archive of conversations: the given one, or that of ``rl4dialog prepare star``."""
    if path is not None:
        return expand_path(path)
    folder = prepared_folder("star")
    return next(folder.glob("*.zip"), folder)


def read_conversations(place: Path) -> Iterator[Conversation]:
    """Yield the conversations in ``dialogues/`` of a folder or archive, by their numbers."""
    found = [(int(Path(name).stem), name, data) for name, data in walk_files(place, _IS_DIALOGUE)]
    if not found:
        raise DataError(f"{place} has no conversations of STAR: files such as dialogues/1.json")
    for _, name, data in sorted(found):
        try:
            yield _conversation(json.loads(data))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{name} is not a conversation of STAR: {type(error).__name__}: {error}") from error


def read_apis(place: Path) -> dict[str, dict[str, Any]]:
    """Read the slots of the APIs in ``apis/`` by name; none if the folder has no such files."""
    return {Path(name).stem: json.loads(data) for name, data in walk_files(place, _IS_API)}


@functools.lru_cache(maxsize=2)
def files_of(place: Path) -> tuple[list[Conversation], Mapping[str, Mapping[str, Any]]]:
    """All conversations and APIs; read once."""
    return [*read_conversations(place)], read_apis(place)


def _check(folder: Path) -> str:
    place = next(folder.glob("*.zip"), folder)
    conversations, apis = [*read_conversations(place)], read_apis(place)
    return f"{len(conversations)} conversations of {len({each.user for each in conversations})} users, {len(apis)} APIs"


STAR = PublicDataset(
    lambda folder: download(_URL, folder / "STAR.zip"), _check, ("*.zip", "dialogues/*.json", "apis/apis/*.json")
)


def _conversation(raw: Mapping[str, Any]) -> Conversation:
    scenario = raw["Scenario"]
    events: list[Event] = []
    queries: list[Query] = []
    instructions: list[tuple[int, str]] = []
    for event in raw["Events"]:
        match event["Agent"], event["Action"]:
            case "User", "utter":
                if events and events[-1].who == "user":
                    events[-1] = Event("user", f"{events[-1].text} {_line(event['Text'])}")
                else:
                    events.append(Event("user", _line(event["Text"])))
            case "Wizard", "utter" | "pick_suggestion":
                events.append(Event("clerk", _line(event["Text"])))
            case "Wizard", "query":
                arguments = dict[str, str]()
                for slot, value in (pair for each in event["Constraints"] for pair in each.items()):
                    if text := constraint_text(value):
                        arguments.setdefault(slot, text)
                queries.append(Query(event["APIName"], arguments, {}, len(events)))
                events.append(Event("call", write_text(event["APIName"], arguments)))
            case "KnowledgeBase", "return_item":
                item = {slot: value for slot, value in (event.get("Item") or {}).items() if slot != "APIName"}
                if queries:
                    last = queries[-1]
                    queries[-1] = Query(last.api, last.arguments, item, last.place)
                events.append(Event("answer", answer_text(item)))
            case "UserGuide", "instruct":
                instructions.append((len(events), re.sub(r"\s*\[instruction \d+ of \d+\]$", "", event["Text"])))
    return Conversation(
        id=raw["DialogueID"],
        user=raw["AnonymizedUserWorkerID"],
        clerk=raw["AnonymizedWizardWorkerID"],
        goal=_line(scenario["UserTask"]),
        tasks=tuple(each["Task"] for each in scenario["WizardCapabilities"]),
        is_happy=scenario["Happy"],
        is_complete=raw["CompletionLevel"] == "Complete",
        events=tuple(events),
        queries=tuple(queries),
        instructions=tuple(instructions),
    )


def _line(text: str) -> str:
    return " ".join(text.split())


def constraint_text(value: object) -> str:
    """Write a constraint such as ``api.is_one_of(["a","b"])`` as plain text, here ``a or b``; empty if it has none."""
    text = str(value).strip()
    before = ""
    if match := _CONSTRAINT.match(text):
        before, text = _COMPARISONS.get(match[1], ""), match[2]
    try:
        parsed = json.loads(text) if text else None
    except ValueError:
        parsed = text
    values = parsed if isinstance(parsed, list) else [] if parsed is None else [parsed]
    return before + " or ".join(_line(str(each)) for each in values) if values else ""


def answer_text(item: Mapping[str, Any]) -> str:
    """Write an answer of the knowledge base as one line."""
    return "; ".join(f"{slot}={_line(str(value))}" for slot, value in item.items()) or "nothing found"
