"""Dialogues of people or of a rule policy: what imitation learns from, through the tracker that runs in simulation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rl4dialog.core.errors import DataError
from rl4dialog.tasks.dialogue_acts.acts import BOOKING, GENERAL, DialogueAct
from rl4dialog.tasks.dialogue_acts.goals import Goal
from rl4dialog.tasks.dialogue_acts.ontology import Ontology


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


def normalized_acts(acts: Iterable[DialogueAct], ontology: Ontology, where: str) -> Iterator[DialogueAct]:
    """Check acts against the ontology, and normalize their values.

    Args:
        acts: The acts.
        ontology: The domains.
        where: What contains them, for the error message.
    """
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
