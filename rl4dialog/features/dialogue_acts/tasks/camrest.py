"""The world of CamRest676, read from the files of ConvLab-2's ``data/camrest``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import DataError, shown
from rl4dialog.core.yaml_loader import packaged_yaml
from rl4dialog.features.dialogue_acts.tasks import world
from rl4dialog.features.dialogue_acts.tasks.acts import NO_OFFER, REQUEST, DialogueAct
from rl4dialog.features.dialogue_acts.tasks.goals import Goal, goal_of
from rl4dialog.features.dialogue_acts.tasks.ontology import Database, Ontology

RESTAURANT = "restaurant"
_TABLE = packaged_yaml(Path(__file__).with_suffix(".yaml"))
ONTOLOGY, _WISHES = Ontology.of(_TABLE), _TABLE["wishes"]


def camrest(
    path: str, splits: Mapping[str, str] | None = None, min_count: int = 3, on_unreachable: world.OnUnreachable = "drop"
) -> world.World:
    """Read CamRest676.

    Args:
        path: Folder with ``train.json``, ``val.json`` and ``test.json`` (or ``.json.zip``) and ``db/CamRestDB.json``.
        splits: Split that stands in for a missing one, such as ``{"train": "val"}``. Splits that share a file divide
            its dialogues: the first of train, test and val gets all but every fifth dialogue.
        min_count: Acts of the agent in fewer training utterances are not in its vocabulary.
        on_unreachable: Whether goals that the database cannot satisfy are dropped, with a note, or are an error.
    """
    folder = Path(path).expanduser()
    entities = world.read_entities(folder / "db" / "CamRestDB.json")
    database = Database(ONTOLOGY, {RESTAURANT: [{k: str(v) for k, v in entity.items()} for entity in entities]})
    dialogues = {
        split: [_dialogue(record, f"{where}, dialogue {i}") for i, record in enumerate(records, 1)]
        for split, (records, where) in world.read_splits(folder, list, splits).items()
    }
    return world.make_world("camrest", database, dialogues, min_count, on_unreachable)


def _dialogue(record: Any, where: str) -> world.CorpusDialogue:
    try:
        turns = []
        for i, turn in enumerate(record["dial"], 1):
            user, system = (tuple(_acts(turn[side]["dialog_act"], f"{where}, turn {i}")) for side in ("usr", "sys"))
            turns.append(world.CorpusTurn(user, system, turn["usr"]["transcript"], turn["sys"]["sent"]))
        return world.CorpusDialogue(str(record["dialogue_id"]), tuple(turns), _goal(record, where))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{where}: not a dialogue of CamRest676 in ConvLab-2's format: {error!r}") from error


def _acts(given: Mapping[str, list[list[str]]], where: str) -> Iterator[DialogueAct]:
    acts = []
    for intent, pairs in given.items():
        for slot, value in pairs:
            has_value = intent != REQUEST and not (intent == NO_OFFER and slot == "none")
            slot = "" if slot == "none" else slot
            acts.append(DialogueAct(intent, RESTAURANT, slot, str(value) if has_value else ""))
    return ONTOLOGY.normalized_acts(acts, where)


def _goal(record: Mapping[str, Any], where: str) -> Goal:
    goal = record["goal"]
    text = goal.get("text", "")
    wanted = {"info": goal["info"], "fail_info": _first_wish(text, goal["info"]), "requests": goal["reqt"]}
    given = {"id": str(record["dialogue_id"]), "text": text, "domains": {RESTAURANT: wanted}}
    return goal_of(given, ONTOLOGY, where)


def _first_wish(text: str, info: Mapping[str, str]) -> dict[str, str]:
    """What the user wants before "no such venue", where it differs from the final constraints."""
    fallback = re.search(_WISHES["fallback"], text)
    if fallback is None:
        return {}
    slot = _WISHES["slots"][fallback[2]]
    first = re.search(_WISHES["first"][slot], text)
    if first is None:
        raise DataError(f"the goal has a second wish for the {slot}, but no first one: {shown(text)}")
    value = ONTOLOGY.normalized(RESTAURANT, slot, first[1])
    return {slot: value} if value != info.get(slot) else {}
