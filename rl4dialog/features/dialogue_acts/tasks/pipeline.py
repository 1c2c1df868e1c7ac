"""Parts of an agent around its policy that can be replaced: understanding, tracking, and putting acts into words.

Their methods have the shapes of ConvLab-2's ``NLU.predict``, ``DST.update`` and ``NLG.generate``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from rl4dialog.core.errors import ConfigError, shown
from rl4dialog.features.dialogue_acts.tasks.acts import DialogueAct
from rl4dialog.features.dialogue_acts.tasks.dialogue import BeliefState
from rl4dialog.features.dialogue_acts.tasks.ontology import Ontology
from rl4dialog.features.dialogue_acts.tasks.world import World

_SHAPE = "{'belief_state': {domain: {'semi': {slot: value}, 'book': {slot: value}}}}"
_UNKNOWN = ("", "not mentioned", None)


class Nlu(Protocol):
    """Understands the user's words."""

    def predict(self, utterance: str, context: list[str]) -> Sequence[Sequence[str]]:
        """Understand an utterance as acts, each ``[intent, domain, slot, value]``.

        The context is what was said before, in turns, with the agent's last utterance at the end.
        """


class Nlg(Protocol):
    """Puts the agent's acts into words."""

    def generate(self, action: list[list[str]]) -> str:
        """Say acts, each given as ``[intent, domain, slot, value]``."""


class Tracker(Protocol):
    """Tracks constraints and values of bookings."""

    def init_session(self) -> None:
        """Begin a dialogue."""

    def update(self, user_act: list[list[str]]) -> dict[str, Any]:
        """Return the state after the user's acts, as understood.

        ``state["belief_state"][domain]["semi"]`` and ``["book"]`` hold values by slot, empty or ``not mentioned``.
        """


class TemplateNlu:
    """Understands with the world's templates, which also find known values in other sentences."""

    def __init__(self, world: World) -> None:
        self._templates = world.templates

    def predict(self, utterance: str, context: Sequence[str] = ()) -> list[DialogueAct]:
        said = self._templates.parse(context[-1]) if context else []
        return self._templates.parse(utterance, said)


class TemplateNlg:
    """Speaks with the world's templates."""

    def __init__(self, world: World) -> None:
        self._templates = world.templates

    def generate(self, action: Iterable[Sequence[str]]) -> str:
        return self._templates.render([DialogueAct(*act) for act in action], "agent")


class TrackedBelief(BeliefState):
    """A belief whose constraints and values of bookings come from a tracker; requests and offers follow our rules."""

    def __init__(self, ontology: Ontology, tracker: Tracker) -> None:
        super().__init__(ontology)
        self._tracker = tracker
        tracker.init_session()

    def hear(self, acts: Iterable[DialogueAct]) -> None:
        heard = list(acts)
        super().hear(heard)
        state = self._tracker.update([list(act) for act in heard])
        try:
            tracked = state["belief_state"]
            for name, belief in self.domains.items():
                spec, known = self._ontology[name], tracked.get(name, {})
                belief.constraints = self._known(name, known.get("semi", {}), spec.informable)
                belief.booking = self._known(name, known.get("book", {}), spec.bookable)
        except (AttributeError, KeyError, TypeError) as error:
            raise ConfigError(f"tracker: update() must return {_SHAPE}, not {shown(state)}") from error

    def _known(self, name: str, values: dict[str, Any], slots: Iterable[str]) -> dict[str, str]:
        known = (slot for slot in slots if values.get(slot) not in _UNKNOWN)
        return {slot: self._ontology.normalized(name, slot, str(values[slot])) for slot in known}


def as_acts(found: Any, part: str) -> list[DialogueAct]:
    """Acts as a part of the agent returns them: lists of two to four texts."""
    with contextlib.suppress(TypeError):
        if not any(isinstance(act, str) for act in found):
            return [DialogueAct(*map(str, act)) for act in found]
    raise ConfigError(f"{part} must return acts as [intent, domain, slot, value], not {shown(found)}")
