"""Dialogues of people or of a rule policy: what imitation learns from, through the tracker that runs in simulation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rl4dialog.core.errors import DataError, shown
from rl4dialog.tasks.dialogue_acts.acts import BOOKING, GENERAL, DialogueAct, act_of
from rl4dialog.tasks.dialogue_acts.goals import Goal, goal_of
from rl4dialog.tasks.dialogue_acts.ontology import REFERENCE, Ontology


@dataclass(frozen=True)
class CorpusTurn:
    """An utterance of the user and the agent's answer.

    Attributes:
        user: Acts of the user.
        system: Acts of the agent, with values.
        user_text: The user's words; empty if they are not known.
        system_text: The agent's words.
    """

    user: tuple[DialogueAct, ...]
    system: tuple[DialogueAct, ...]
    user_text: str = ""
    system_text: str = ""


@dataclass(frozen=True)
class CorpusDialogue:
    """A dialogue.

    Attributes:
        id: Identifier.
        turns: Its turns.
        goal: The user's goal; ``None`` if it is unknown or has no domain.
    """

    id: str
    turns: tuple[CorpusTurn, ...]
    goal: Goal | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {
            "id": self.id,
            "goal": self.goal.to_json() if self.goal is not None else None,
            "turns": [
                {
                    "user": [list(act) for act in turn.user],
                    "system": [list(act) for act in turn.system],
                    "user_text": turn.user_text,
                    "system_text": turn.system_text,
                }
                for turn in self.turns
            ],
        }


def dialogue_of(record: Any, ontology: Ontology, where: str) -> CorpusDialogue:
    """Read a dialogue from JSON, as `CorpusDialogue.to_json` writes it. Values are normalized.

    Args:
        record: The JSON.
        ontology: The domains.
        where: File and line, for the error message.

    Raises:
        DataError: If something is missing, or an act has an unknown domain or slot.
    """
    if not isinstance(record, Mapping) or not isinstance(record.get("turns"), list):
        raise DataError(f"{where}: a dialogue must be an object with a list 'turns', not {shown(record)}")
    turns = []
    for i, turn in enumerate(record["turns"], 1):
        here = f"{where}, turn {i}"
        if not isinstance(turn, Mapping):
            raise DataError(f"{here}: a turn must be an object with 'user' and 'system', not {shown(turn)}")
        user, system = (
            tuple(normalized_acts((act_of(act, here) for act in turn.get(side, ())), ontology, here))
            for side in ("user", "system")
        )
        turns.append(CorpusTurn(user, system, str(turn.get("user_text", "")), str(turn.get("system_text", ""))))
    goal = goal_of(record["goal"], ontology, where) if record.get("goal") else None
    return CorpusDialogue(str(record.get("id", "")), tuple(turns), goal)


def normalized_acts(acts: Iterable[DialogueAct], ontology: Ontology, where: str) -> Iterator[DialogueAct]:
    """Check acts against the ontology, and normalize their values.

    Args:
        acts: The acts.
        ontology: The domains.
        where: What contains them, for the error message.

    Raises:
        DataError: If an act has an unknown domain or slot.
    """
    for act in acts:
        if act.domain in (GENERAL, BOOKING):
            yield act
            continue
        if act.domain not in ontology:
            raise DataError(f"{where}: act {act}: unknown domain (known: {', '.join(ontology.domains)})")
        spec = ontology[act.domain]
        known = {
            *spec.informable,
            *spec.requestable,
            *spec.bookable,
            *spec.generated,
            spec.key,
            REFERENCE,
            "choice",
            "",
        }
        if act.slot not in known:
            raise DataError(f"{where}: act {act}: unknown slot (known: {', '.join(sorted(known - {''}))})")
        yield act._replace(value=ontology.normalized(act.domain, act.slot, act.value)) if act.value else act
