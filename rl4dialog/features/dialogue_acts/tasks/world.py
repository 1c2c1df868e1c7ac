"""A world: everything that a task in dialogue acts needs; its corpus, and the files of published datasets."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from rl4dialog.core.errors import DataError, shown
from rl4dialog.core.files import json_value
from rl4dialog.data.pool import SPLITS
from rl4dialog.data.rows import walk_files
from rl4dialog.features.dialogue_acts.tasks.acts import ActVocabulary, DialogueAct, counted_vocabulary, delexicalized
from rl4dialog.features.dialogue_acts.tasks.goals import Goal, GoalStatistics, problems
from rl4dialog.features.dialogue_acts.tasks.ontology import Database, Ontology
from rl4dialog.features.dialogue_acts.tasks.templates import Templates, Words

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
    for split, source in (splits or {}).items():
        for name, where in ((split, "splits"), (source, f"splits: {split}")):
            if name not in SPLITS:
                raise DataError(f"{where}: {name!r} is not a split; use one of {', '.join(SPLITS)}")
    sources = {split: (splits or {}).get(split, split) for split in SPLITS}
    found = {}
    for split, source in sources.items():
        path = folder / f"{source}.json"
        try:
            contents = read_json(path)
        except DataError as error:
            raise DataError(f"{error}{'' if path.exists() else _stand_in(folder, split)}") from error
        if not isinstance(contents, kind):
            expected = "a list of dialogues" if kind is list else "an object with dialogues by id"
            raise DataError(f"{path}: expected {expected}, not {shown(contents)}")
        sharing = [other for other in ("train", "test", "val") if sources[other] == source]
        # Of each five entries, one is for every split but the first, which has the rest.
        entries = enumerate(contents.items() if isinstance(contents, dict) else contents)
        own = (each for i, each in entries if max(0, i % 5 - 5 + len(sharing)) == sharing.index(split))
        found[split] = kind(own), str(path)
    return found


def _stand_in(folder: Path, missing: str) -> str:
    """Which split can stand in for a missing one; empty if there is none."""
    for split in ("val", "test", "train"):
        if any((folder / f"{split}.json{suffix}").is_file() for suffix in ("", ".zip")):
            return f". Another split can stand in for it: task.args.splits: {{{missing}: {split}}}"
    return ""


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

    id: str
    turns: tuple[CorpusTurn, ...]
    goal: Goal | None = None  # the user's goal; ``None`` if it is unknown or has no domain


_logger = logging.getLogger(__name__)
OnUnreachable = Literal["drop", "error"]
Values = Mapping[str, Mapping[str, Sequence[str]]]  # by domain and slot


@dataclass(frozen=True)
class World:
    """A world."""

    name: str
    database: Database  # the domains and their entities
    dialogues: Mapping[str, tuple[CorpusDialogue, ...]]  # by split
    goals: Mapping[str, tuple[Goal, ...]]  # those that can be reached, by split
    user_acts: ActVocabulary  # delexicalized acts of users
    system_acts: ActVocabulary  # delexicalized acts of the agent
    max_system_acts: int  # number of acts in all but 1 % of the agent's utterances
    values: Values  # that a user can mention
    places: Values = field(default_factory=dict)  # ends of rides that users choose from
    words: Mapping[str, Words] = field(default_factory=dict)  # where they differ from the usual ones, for `Templates`

    @property
    def ontology(self) -> Ontology:
        return self.database.ontology

    @functools.cached_property
    def templates(self) -> Templates:
        return Templates(self.database, self.values, self.words)

    @functools.cached_property
    def goal_statistics(self) -> GoalStatistics:
        """Statistics of the training goals; no goal of another split is drawn from them."""
        held_out = {goal.key for split, goals in self.goals.items() if split != "train" for goal in goals}
        return GoalStatistics(self.goals["train"], self.database, held_out, self.templates)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of the vocabularies and the database: what a policy depends on."""
        tables = {name: [*map(dict, self.database.entities(name))] for name in self.ontology.domains}
        content = [self.user_acts.acts, self.system_acts.acts, tables]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def make_world(
    name: str,
    database: Database,
    dialogues: Mapping[str, Sequence[CorpusDialogue]],
    min_count: int = 1,
    on_unreachable: OnUnreachable = "drop",
    places: Values | None = None,
    words: Mapping[str, Words] | None = None,
    values: Values | None = None,
    vocabularies: tuple[ActVocabulary, ActVocabulary] | None = None,
) -> World:
    """Count vocabularies in the training dialogues, and select the goals that can be reached.

    A goal of `val` or `test` that also occurs in `train` is dropped there, so no evaluation has a goal of training.
    Acts of the agent in fewer than `min_count` training utterances are not in its vocabulary. `values` are further
    ones, such as the days of bookings. `vocabularies`, of users and of the agent, replace those of the dialogues.
    """
    goals = _reachable_goals(name, database, dialogues, on_unreachable)
    training = [turn for dialogue in dialogues["train"] for turn in dialogue.turns]
    lengths = sorted(len(delexicalized(turn.system)) for turn in training if turn.system)
    if vocabularies is None:
        said = counted_vocabulary((turn.user for turn in training), min_count)
        user_acts = ActVocabulary(sorted({*database.ontology.user_acts(), *said.acts}))
        vocabularies = user_acts, counted_vocabulary((turn.system for turn in training), min_count)
    return World(
        name,
        database,
        {split: tuple(found) for split, found in dialogues.items()},
        goals,
        *vocabularies,
        lengths[math.ceil(0.99 * len(lengths)) - 1],
        _values(database, goals["train"], [values or {}, places or {}]),
        places or {},
        words or {},
    )


def _reachable_goals(
    name: str, database: Database, dialogues: Mapping[str, Sequence[CorpusDialogue]], on_unreachable: OnUnreachable
) -> dict[str, tuple[Goal, ...]]:
    """Goals of each split that the database can satisfy and that no evaluation split before it has."""
    given = [dialogue.goal for each in dialogues.values() for dialogue in each if dialogue.goal]
    wanted = sorted({domain for goal in given for domain in goal.domains})
    if empty := [domain for domain in wanted if not (database.has(domain) and database.entities(domain))]:
        raise DataError(f"{name}: the database is empty in the domain {empty[0]!r}, which goals are about")
    goals, taken = {}, set[str]()  # goals of the splits before
    for split in sorted(dialogues, key=("test", "val", "train").index):
        own = [(each.goal, problems(each.goal, database), each.id) for each in dialogues[split] if each.goal]
        unreachable = [f"{goal.id or id}: {wrong[0]}" for goal, wrong, id in own if wrong]
        kept = tuple(goal for goal, wrong, _ in own if not wrong and goal.key not in taken)
        n_repeated = len(own) - len(unreachable) - len(kept)
        taken |= {goal.key for goal in kept}
        examples = "; ".join(unreachable[:3])
        if unreachable and on_unreachable == "error":
            raise DataError(f"{name}, {split}: {len(unreachable)} goal(s) cannot be reached: {examples}")
        if unreachable:
            _logger.warning(
                "%s, %s: dropped %d goal(s) that the database cannot satisfy: %s%s",
                *(name, split, len(unreachable), examples, "; ..." if len(unreachable) > 3 else ""),
            )
        if n_repeated:
            _logger.info("%s, %s: dropped %d goal(s) that an evaluation split has, too", name, split, n_repeated)
        if not kept:
            raise DataError(f"{name}: the split {split!r} has no goal that the database can satisfy")
        goals[split] = kept
    return goals


def _values(
    database: Database, goals: Iterable[Goal], others: Sequence[Values]
) -> dict[str, dict[str, tuple[str, ...]]]:
    """Values of every slot that a user can mention, from the database, the training goals and others."""
    found: dict[str, dict[str, set[str]]] = {}
    for name, domain in database.ontology.domains.items():
        found[name] = {
            slot: {value for by_name in others for value in by_name.get(name, {}).get(slot, ())}
            | {entity[slot] for entity in database.entities(name) if entity.get(slot)}
            for slot in (*domain.informable, *domain.bookable)
        }
    for goal in goals:
        for name, wanted in goal.domains.items():
            for slot, value in (*wanted.first_info.items(), *wanted.info.items(), *wanted.first_book.items()):
                found[name][slot].add(value)
    return {name: {slot: tuple(sorted(each)) for slot, each in slots.items()} for name, slots in found.items()}
