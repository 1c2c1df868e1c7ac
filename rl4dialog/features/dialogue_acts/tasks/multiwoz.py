"""MultiWOZ 2.1: seven domains in Cambridge (Eric et al. 2020, arXiv 1907.01669), from ConvLab-2's files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from rl4dialog.core.errors import DataError, shown
from rl4dialog.core.yaml_loader import packaged_yaml
from rl4dialog.features.dialogue_acts.tasks import world
from rl4dialog.features.dialogue_acts.tasks.acts import BOOKING, GENERAL, ActVocabulary, DialogueAct
from rl4dialog.features.dialogue_acts.tasks.goals import Goal, goal_of
from rl4dialog.features.dialogue_acts.tasks.ontology import REFERENCE, Database, Entity, Ontology

TABLE = packaged_yaml(Path(__file__).with_suffix(".yaml"))
ONTOLOGY = Ontology.of(TABLE)
BOOKING_SLOTS = frozenset({"", "day", "name", "people", "stay", "time", REFERENCE})
"""Slots of acts of the domain `booking`."""


def slot_of(domain: str, spelling: str) -> str:
    """The database's name of a slot."""
    if (domain, spelling) == ("train", "Time"):
        return "duration"
    return str(TABLE["slots"].get(spelling, spelling.lower()))


TAXI = "taxi"
_TAG = re.compile(r"<[^>]*>")
_FLAGS = ("invalid", "pre_invalid")
"""Keys of a booking in a goal that say whether it fails at first; `fail_book` says that, too."""


def multiwoz(
    path: str,
    splits: Mapping[str, str] | None = None,
    min_count: int = 5,
    on_unreachable: world.OnUnreachable = "drop",
    vocabulary: Literal["data", "convlab2"] = "data",
) -> world.World:
    """Read MultiWOZ 2.1.

    A taxi is made up from the user's constraints. Ends of a ride that the goal does not name are places offered before.

    Args:
        path: Folder with ``train.json``, ``val.json`` and ``test.json`` (or ``.json.zip``) and the folder ``db``.
        splits: Split that stands in for a missing one, such as ``{"train": "val"}``. Splits that share a file divide
            its dialogues: the first of train, test and val gets all but every fifth dialogue.
        min_count: Acts in fewer training utterances are not in the vocabulary. Not used with ``convlab2``.
        on_unreachable: Whether goals that the database cannot satisfy are dropped, with a note, or are an error.
        vocabulary: Acts of the training dialogues, or those of ConvLab-2, from the folder's ``usr_da_voc.txt`` and
            ``sys_da_voc.txt``.
    """
    folder = Path(path).expanduser()
    database = _database(folder / "db")
    dialogues = {
        split: [_dialogue(str(id), record, database, f"{where}, dialogue {id}") for id, record in records.items()]
        for split, (records, where) in world.read_splits(folder, dict, splits).items()
    }
    vocabularies = None
    if vocabulary == "convlab2":
        vocabularies = _vocabulary(folder / "usr_da_voc.txt"), _vocabulary(folder / "sys_da_voc.txt")
    names = []
    for name in ("attraction", "hotel", "restaurant"):
        for i, entity in enumerate(database.entities(name), 1):
            if "name" not in entity:
                raise DataError(f"{folder / 'db' / f'{name}_db.json'}: entity {i} needs a text as its name")
            names.append(entity["name"])
    places = {TAXI: dict.fromkeys(("departure", "destination"), names)}
    return world.make_world(
        "multiwoz", database, dialogues, min_count, on_unreachable, places=places, vocabularies=vocabularies
    )


def _database(folder: Path) -> Database:
    entities: dict[str, Sequence[Entity]] = {TAXI: _taxis(world.read_json(folder / "taxi_db.json"), str(folder))}
    for name, spec in ONTOLOGY.domains.items():
        if name != TAXI:
            slots = {*spec.informable, *spec.requestable, spec.key}
            entities[name] = [
                {slot: value for slot, value in entity.items() if slot in slots and isinstance(value, str)}
                for entity in world.read_entities(folder / f"{name}_db.json")
            ]
    return Database(ONTOLOGY, entities)


def _taxis(given: Any, where: str) -> list[Entity]:
    """A taxi of each color and make, with a phone number of its own."""
    try:
        cars = [f"{color} {make}" for color in given["taxi_colors"] for make in given["taxi_types"]]
    except (KeyError, TypeError) as error:
        raise DataError(f"{where}: taxi_db.json must have 'taxi_colors' and 'taxi_types'") from error
    numbers = (int.from_bytes(hashlib.blake2s(car.encode(), digest_size=8).digest(), "big") for car in cars)
    return [{"car type": car, "phone": f"07{number % 10**9:09d}"} for car, number in zip(cars, numbers, strict=True)]


def _dialogue(id: str, record: Any, database: Database, where: str) -> world.CorpusDialogue:
    try:
        utterances = record["log"]
        turns = []
        for i in range(0, len(utterances) - 1, 2):
            here = f"{where}, turn {i // 2 + 1}"
            user, system = utterances[i : i + 2]
            acts = [tuple(_acts(utterance.get("dialog_act", {}), here)) for utterance in (user, system)]
            turns.append(world.CorpusTurn(acts[0], acts[1], user["text"], system["text"]))
        goal = _goal(id, record["goal"], turns, database, where)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{where}: not a dialogue of MultiWOZ in ConvLab-2's format: {error!r}") from error
    return world.CorpusDialogue(id, tuple(turns), goal)


def _acts(given: Mapping[str, list[list[str]]], where: str) -> Iterator[DialogueAct]:
    acts = []
    for kind, pairs in given.items():
        domain, intent = kind.split("-")
        acts += [_act(where, domain, intent, slot, str(value)) for slot, value in pairs]
    return ONTOLOGY.normalized_acts(acts, where)


def _act(where: str, domain: str, intent: str, slot: str, value: str) -> DialogueAct:
    """An act, from MultiWOZ's spelling. Slots of the domains `general` and `booking` are checked here."""
    name = domain.lower()
    act = DialogueAct(intent.lower(), name, slot_of(name, slot), "" if slot == "none" or value == "?" else value)
    if (name == GENERAL and act.slot) or (name == BOOKING and act.slot not in BOOKING_SLOTS):
        raise DataError(f"{where}: act {act}: unknown slot")
    return act


def _goal(
    id: str, given: Mapping[str, Any], turns: Sequence[world.CorpusTurn], database: Database, where: str
) -> Goal | None:
    """The goal, with its domains in the order in which the user comes to them, and the taxi last.

    First constraints that the database can satisfy are left out: the user would have no reason to replace them.
    """
    order = list(dict.fromkeys(act.domain for turn in turns for act in turn.user))
    names = [name for name in ONTOLOGY.domains if given.get(name)]
    names.sort(key=lambda name: (name == TAXI, order.index(name) if name in order else len(order)))
    if not names:
        return None
    text = _TAG.sub("", ". ".join(given.get("message", ())))
    domains = {name: _domain_goal(given[name]) for name in names}
    goal = goal_of({"id": id, "text": text, "domains": domains}, ONTOLOGY, where)
    found = goal.domains.items()
    possible = [name for name, each in found if each.fail_info and database.query(name, each.first_info)]
    return replace(goal, domains={**goal.domains, **{n: replace(goal.domains[n], fail_info={}) for n in possible}})


def _domain_goal(given: Mapping[str, Any]) -> dict[str, Any]:
    """The goal of a domain, with only those values of `fail_info` and `fail_book` that differ from the final ones."""
    found: dict[str, Any] = {"requests": tuple(given.get("reqt", ()))}
    for key in ("info", "book"):
        final = {slot: value for slot, value in given.get(key, {}).items() if slot not in _FLAGS}
        first = {slot: value for slot, value in given.get(f"fail_{key}", {}).items() if slot not in _FLAGS}
        found[key] = final
        found[f"fail_{key}"] = {slot: value for slot, value in first.items() if value != final.get(slot)}
    return found


def _vocabulary(file: Path) -> ActVocabulary:
    """Read delexicalized acts, one a line, such as ``Hotel-Inform-Area-1``, ``Hotel-Request-Area-?``."""
    try:
        lines = file.read_text(encoding="utf-8").split()
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error}. Use vocabulary: data to count the acts instead") from error
    acts: list[DialogueAct] = []
    for i, line in enumerate(lines, 1):
        where, fields = f"{file}, line {i}", line.split("-")
        if len(fields) != 4:
            raise DataError(f"{where}: expected an act such as Hotel-Inform-Area-1, not {shown(line)}")
        acts += ONTOLOGY.normalized_acts([_act(where, *fields)], where)
    if not acts:
        raise DataError(f"{file}: the vocabulary of dialogue acts is empty")
    return ActVocabulary(acts)
