"""Semantic errors: what the agent misunderstands of the user's acts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rl4dialog.core.errors import ConfigError
from rl4dialog.tasks.dialogue_acts.acts import GENERAL, INFORM, REQUEST, DialogueAct


class SemanticErrors:
    """Deletes or changes a share of the user's acts on their way to the agent.

    This stands for the errors of speech recognition and language understanding, as in PyDial (Casanueva et al. 2017,
    arXiv 1711.11023). The user and the evaluation know the true acts.

    Args:
        rate: Probability of an error for each act, from 0 to 1. Acts of the domain ``general`` are always understood.
        values: Values by domain and slot, from which a wrong one is drawn.
        requestable: Slots by domain, from which a wrong request is drawn.
        deletions: Share of errors that delete the act. The others change its value or, for a request, its slot. Acts
            without another value are deleted.
    """

    def __init__(
        self,
        rate: float,
        values: Mapping[str, Mapping[str, Sequence[str]]],
        requestable: Mapping[str, Sequence[str]],
        deletions: float = 0.5,
    ) -> None:
        for name, share in (("rate", rate), ("deletions", deletions)):
            if not 0 <= share <= 1:
                raise ConfigError(f"semantic errors: {name} must be between 0 and 1, not {share}")
        self.rate, self._deletions = rate, deletions
        self._values, self._requestable = values, requestable

    def understood(self, acts: Iterable[DialogueAct], rng: np.random.Generator) -> list[DialogueAct]:
        """Return what the agent understands.

        Args:
            acts: What the user said.
            rng: Source of randomness. It is not used at rate 0.
        """
        if self.rate == 0:
            return list(acts)
        acts, found = list(acts), []
        for act, draw in zip(acts, rng.random(len(acts)).tolist(), strict=True):
            if draw < self.rate and act.domain != GENERAL:
                changed = None if rng.random() < self._deletions else self._changed(act, rng)
                if changed is None:
                    continue
                act = changed
            found.append(act)
        return list(dict.fromkeys(found))

    def _changed(self, act: DialogueAct, rng: np.random.Generator) -> DialogueAct | None:
        if act.intent == REQUEST:
            slot = _other(self._requestable.get(act.domain, ()), act.slot, rng)
            return act._replace(slot=slot) if slot is not None else None
        if act.intent != INFORM or not act.slot:
            return None
        value = _other(self._values.get(act.domain, {}).get(act.slot, ()), act.value, rng)
        return act._replace(value=value) if value is not None else None


def _other(values: Sequence[str], own: str, rng: np.random.Generator) -> str | None:
    """One of the values that is not `own`; ``None`` if there is no other."""
    if all(value == own for value in values):
        return None
    while True:
        value = values[int(rng.random() * len(values))]
        if value != own:
            return value
