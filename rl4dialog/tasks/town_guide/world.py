"""The world of the town guide: a generated town, goals of its visitors, and a corpus of simulated dialogues."""

from __future__ import annotations

import itertools

import numpy as np

from rl4dialog.core.errors import ConfigError
from rl4dialog.tasks.dialogue_acts.acts import GENERAL, INFORM, REQ_MORE, REQUEST, DialogueAct
from rl4dialog.tasks.dialogue_acts.agenda import AgendaUser
from rl4dialog.tasks.dialogue_acts.belief import BeliefState
from rl4dialog.tasks.dialogue_acts.files import SPLITS
from rl4dialog.tasks.dialogue_acts.lexicalizer import Lexicalizer
from rl4dialog.tasks.dialogue_acts.ontology import CHOICE, Ontology
from rl4dialog.tasks.dialogue_acts.rule_policy import RulePolicy
from rl4dialog.tasks.dialogue_acts.simulation import corpus_dialogue, simulate
from rl4dialog.tasks.dialogue_acts.templates import Templates
from rl4dialog.tasks.dialogue_acts.world import World, make_world
from rl4dialog.tasks.town_guide.goals import draw_goals
from rl4dialog.tasks.town_guide.town import BOOKING_VALUES, ONTOLOGY, WORDS, make_town, places_of

_TOLD = 3
_VALUES = {name: {slot: BOOKING_VALUES[slot] for slot in domain.bookable} for name, domain in ONTOLOGY.domains.items()}
_SHARE = {"train": 1.0, "val": 0.25, "test": 0.25}


def town_guide(seed: int = 0, n_dialogues: int = 400, noise: float = 0.1) -> World:
    """Generate a town with restaurants, hotels, sights and taxis, and dialogues about it.

    The dialogues are those of a rule policy and a simulated user. The policy is careless now and then, so that whoever
    imitates it has something left to learn. No two dialogues have the same goal.

    Args:
        seed: Seed of everything random.
        n_dialogues: Number of training dialogues. Validation and test have a quarter of it each.
        noise: Share of turns in which the policy forgets an act, asks something superfluous, or says something else
            that makes sense.

    Raises:
        ConfigError: If an argument is out of range.
    """
    if n_dialogues < 4:
        raise ConfigError(f"n_dialogues must be at least 4, not {n_dialogues}")
    if not 0 <= noise <= 1:
        raise ConfigError(f"noise must be between 0 and 1, not {noise}")
    rng = np.random.default_rng(seed)
    database = make_town(rng)
    places = places_of(database)
    templates = Templates(ONTOLOGY, database, _VALUES, WORDS)
    lexicalizer = Lexicalizer(ONTOLOGY, database)
    policy = CarelessRulePolicy(ONTOLOGY, lexicalizer, noise, rng)
    user = AgendaUser(ONTOLOGY, places=places)
    sizes = {split: int(n_dialogues * _SHARE[split]) for split in SPLITS}
    goals = iter(draw_goals(rng, database, sum(sizes.values()), templates))
    dialogues = {
        split: [
            corpus_dialogue(goal.id, goal, simulate(policy, user, ONTOLOGY, lexicalizer, goal, rng), templates)
            for goal in itertools.islice(goals, size)
        ]
        for split, size in sizes.items()
    }
    return make_world("town_guide", ONTOLOGY, database, dialogues, places=places, words=WORDS, values=_VALUES)


class CarelessRulePolicy(RulePolicy):
    """A rule policy that does something else in a share of its turns.

    Args:
        ontology: The domains.
        lexicalizer: Finds the entities that fit.
        noise: The share.
        rng: Source of randomness.
    """

    def __init__(self, ontology: Ontology, lexicalizer: Lexicalizer, noise: float, rng: np.random.Generator) -> None:
        super().__init__(ontology, lexicalizer, told=_TOLD)
        self._noise, self._rng = noise, rng

    def act(self, belief: BeliefState, heard: list[DialogueAct]) -> list[DialogueAct]:
        acts = super().act(belief, heard)
        if not belief.active or self._rng.random() >= self._noise:
            return acts
        spec = self._ontology[belief.active]
        kind = int(self._rng.integers(3))
        if kind == 0 and len(acts) > 1:
            forgotten = int(self._rng.integers(len(acts)))
            return [*acts[:forgotten], *acts[forgotten + 1 :]]
        if kind == 1:
            slot = spec.informable[int(self._rng.integers(len(spec.informable)))]
            return list(dict.fromkeys([*acts, DialogueAct(REQUEST, spec.name, slot)]))
        others = [DialogueAct(REQ_MORE, GENERAL)]
        if not spec.generated:
            others += [DialogueAct(INFORM, spec.name, slot, "1") for slot in (CHOICE, spec.key, *spec.requestable)]
        return [others[int(self._rng.integers(len(others)))]]
