"""A world: everything that a task in dialogue acts needs; its corpus, and the files of published datasets."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from rl4dialog.core.errors import DataError, shown
from rl4dialog.core.files import json_value
from rl4dialog.data.rows import walk_files
from rl4dialog.tasks.dialogue_acts.acts import (
    BOOKING,
    BYE,
    GENERAL,
    INFORM,
    REQUEST,
    ActVocabulary,
    DialogueAct,
    counted_vocabulary,
    delexicalized,
)
from rl4dialog.tasks.dialogue_acts.goals import Goal, GoalStatistics, problems
from rl4dialog.tasks.dialogue_acts.ontology import Database, Ontology
from rl4dialog.tasks.dialogue_acts.templates import Templates, Words

SPLITS = ("train", "val", "test")
_Dialogues = TypeVar("_Dialogues", list[Any], dict[str, Any])


def read_json(path: Path) -> Any:
    """Read a JSON file, or the one of this name in a zip archive beside it."""
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
    `splits` names the split that stands in for a missing one. A file is a list, or an object with dialogues by id.
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


@dataclass(frozen=True)
class CorpusTurn:
    """An utterance of the user and the agent's answer."""

    user: tuple[DialogueAct, ...]  # acts of the user
    system: tuple[DialogueAct, ...]  # acts of the agent, with values
    user_text: str = ""  # the user's words; empty if they are not known
    system_text: str = ""  # the agent's words


@dataclass(frozen=True)
class CorpusDialogue:
    """A dialogue."""

    id: str  # identifier
    turns: tuple[CorpusTurn, ...]  # its turns
    goal: Goal | None = None  # the user's goal; ``None`` if it is unknown or has no domain


def normalized_acts(acts: Iterable[DialogueAct], ontology: Ontology, where: str) -> Iterator[DialogueAct]:
    """Check acts against the ontology, and normalize their values."""
    for act in acts:
        if act.domain in (GENERAL, BOOKING):
            yield act
            continue
        if act.domain not in ontology:
            raise DataError(f"{where}: act {act}: unknown domain (known: {', '.join(ontology.domains)})")
        known = {*ontology[act.domain].slots, ""}
        if act.slot not in known:
            raise DataError(f"{where}: act {act}: unknown slot (known: {', '.join(sorted(known - {''}))})")
        yield act._replace(value=ontology.normalized(act.domain, act.slot, act.value)) if act.value else act


_logger = logging.getLogger(__name__)
OnUnreachable = Literal["drop", "error"]


@dataclass(frozen=True)
class World:
    """A world.

    Attributes:
        name: Its name.
        ontology: The domains.
        database: Their entities.
        dialogues: Dialogues of each split.
        goals: Goals of each split that can be reached.
        user_acts: Delexicalized acts of users.
        system_acts: Delexicalized acts of the agent.
        max_system_acts: Number of acts in all but 1 % of the agent's utterances.
        values: Values by domain and slot, that a user can mention.
        places: Ends of rides that users choose from, by domain and slot.
        words: Words of domains and slots that differ from the usual ones, for `Templates`.
    """

    name: str
    ontology: Ontology
    database: Database
    dialogues: Mapping[str, tuple[CorpusDialogue, ...]]
    goals: Mapping[str, tuple[Goal, ...]]
    user_acts: ActVocabulary
    system_acts: ActVocabulary
    max_system_acts: int
    values: Mapping[str, Mapping[str, tuple[str, ...]]]
    places: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    words: Mapping[str, Words] = field(default_factory=dict)

    @functools.cached_property
    def templates(self) -> Templates:
        """Sentences of both sides."""
        return Templates(self.ontology, self.database, self.values, self.words)

    @functools.cached_property
    def goal_statistics(self) -> GoalStatistics:
        """Statistics of the training goals; no goal of another split is drawn from them."""
        held_out = {goal.key for split, goals in self.goals.items() if split != "train" for goal in goals}
        return GoalStatistics(self.goals["train"], self.ontology, self.database, held_out, self.templates)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of the vocabularies and the database: what a policy depends on."""
        tables = {name: [*map(dict, self.database.entities(name))] for name in self.ontology.domains}
        content = [self.user_acts.acts, self.system_acts.acts, tables]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@functools.cache
def built_world(task: Callable[..., World], args: str) -> World:
    """Build a world once per process; `args` are the task's arguments as JSON, with sorted keys."""
    return task(**json.loads(args))


def make_world(
    name: str,
    ontology: Ontology,
    database: Database,
    dialogues: Mapping[str, Sequence[CorpusDialogue]],
    min_count: int = 1,
    on_unreachable: OnUnreachable = "drop",
    places: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    words: Mapping[str, Words] | None = None,
    values: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    vocabularies: tuple[ActVocabulary, ActVocabulary] | None = None,
) -> World:
    """Count vocabularies in the training dialogues, and select the goals that can be reached.

    A goal of `val` or `test` that also occurs in `train` is dropped there, so no evaluation has a goal of training.

    Args:
        name: Name of the world.
        ontology: The domains.
        database: Their entities.
        dialogues: Dialogues of each split, with their goals.
        min_count: Acts of the agent in fewer training utterances are not in its vocabulary.
        on_unreachable: Whether goals that the database cannot satisfy are dropped, with a note, or are an error.
        places: Ends of rides that users choose from, by domain and slot.
        words: Words of domains and slots that differ from the usual ones.
        values: Further values by domain and slot, such as the days of bookings.
        vocabularies: Acts of users and of the agent. Default: those of the training dialogues.
    """
    wanted = {
        domain for each in dialogues.values() for dialogue in each if dialogue.goal for domain in dialogue.goal.domains
    }
    if empty := [domain for domain in sorted(wanted) if not (database.has(domain) and database.entities(domain))]:
        raise DataError(f"{name}: the database is empty in the domain {empty[0]!r}, which goals are about")
    goals, taken = {}, set[str]()  # goals of the splits before
    for split in sorted(dialogues, key=("test", "val", "train").index):
        kept, own, n_repeated, unreachable = [], set[str](), 0, []
        for dialogue in dialogues[split]:
            if dialogue.goal is None:
                continue
            wrong = problems(dialogue.goal, ontology, database)
            if wrong:
                unreachable.append(f"{dialogue.goal.id or dialogue.id}: {wrong[0]}")
                continue
            if dialogue.goal.key in taken:
                n_repeated += 1
                continue
            own.add(dialogue.goal.key)
            kept.append(dialogue.goal)
        taken |= own
        _report(name, split, unreachable, n_repeated, on_unreachable)
        if not kept:
            raise DataError(f"{name}: the split {split!r} has no goal that the database can satisfy")
        goals[split] = tuple(kept)
    training = [turn for dialogue in dialogues["train"] for turn in dialogue.turns]
    lengths = sorted(len(delexicalized(turn.system)) for turn in training if turn.system)
    if vocabularies is None:
        said = counted_vocabulary((turn.user for turn in training), min_count)
        user_acts = ActVocabulary(sorted({*_possible_user_acts(ontology), *said.acts}))
        system_acts = counted_vocabulary((turn.system for turn in training), min_count)
    else:
        user_acts, system_acts = vocabularies
    return World(
        name,
        ontology,
        database,
        {split: tuple(found) for split, found in dialogues.items()},
        goals,
        user_acts,
        system_acts,
        lengths[math.ceil(0.99 * len(lengths)) - 1],
        _values(ontology, database, goals, [values or {}, places or {}]),
        places or {},
        words or {},
    )


def _report(name: str, split: str, unreachable: list[str], n_repeated: int, on_unreachable: OnUnreachable) -> None:
    if unreachable and on_unreachable == "error":
        raise DataError(f"{name}, {split}: {len(unreachable)} goal(s) cannot be reached: {'; '.join(unreachable[:3])}")
    if unreachable:
        _logger.warning(
            "%s, %s: dropped %d goal(s) that the database cannot satisfy: %s%s",
            name, split, len(unreachable), "; ".join(unreachable[:3]), "; ..." if len(unreachable) > 3 else "",
        )  # fmt: skip
    if n_repeated:
        _logger.info("%s, %s: dropped %d goal(s) that an evaluation split has, too", name, split, n_repeated)


def _possible_user_acts(ontology: Ontology) -> Iterable[DialogueAct]:
    """All delexicalized acts that the simulated user can say."""
    yield DialogueAct(BYE, GENERAL)
    for domain in ontology.domains.values():
        yield DialogueAct(INFORM, domain.name)
        for slot in (*domain.informable, *domain.bookable):
            yield DialogueAct(INFORM, domain.name, slot, "1")
        for slot in dict.fromkeys((*domain.requestable, domain.key)):
            yield DialogueAct(REQUEST, domain.name, slot)


def _values(
    ontology: Ontology,
    database: Database,
    goals: Mapping[str, Sequence[Goal]],
    others: Sequence[Mapping[str, Mapping[str, Sequence[str]]]],
) -> dict[str, dict[str, tuple[str, ...]]]:
    """Values of every slot that a user can mention, from the database, the training goals and others."""
    found: dict[str, dict[str, set[str]]] = {
        name: {
            slot: {value for by_name in others for value in by_name.get(name, {}).get(slot, ())}
            for slot in (*domain.informable, *domain.bookable)
        }
        for name, domain in ontology.domains.items()
    }
    for name, by_slot in found.items():
        for entity in database.entities(name):
            for slot in by_slot:
                if entity.get(slot):
                    by_slot[slot].add(entity[slot])
    for goal in goals["train"]:
        for name, wanted in goal.domains.items():
            for slot, value in (*wanted.first_info.items(), *wanted.info.items(), *wanted.first_book.items()):
                found[name][slot].add(value)
    return {name: {slot: tuple(sorted(each)) for slot, each in slots.items()} for name, slots in found.items()}
