"""Dialogues between a policy and a simulated user, without an environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from rl4dialog.tasks.dialogue_acts.acts import DialogueAct
from rl4dialog.tasks.dialogue_acts.agenda import AgendaUser
from rl4dialog.tasks.dialogue_acts.belief import BeliefState
from rl4dialog.tasks.dialogue_acts.corpus import CorpusDialogue, CorpusTurn
from rl4dialog.tasks.dialogue_acts.dialogue import TaskDialogue
from rl4dialog.tasks.dialogue_acts.errors import SemanticErrors
from rl4dialog.tasks.dialogue_acts.goals import Goal
from rl4dialog.tasks.dialogue_acts.lexicalizer import Lexicalizer
from rl4dialog.tasks.dialogue_acts.ontology import Ontology
from rl4dialog.tasks.dialogue_acts.outcome import Exchange
from rl4dialog.tasks.dialogue_acts.templates import Templates


class ActPolicy(Protocol):
    """What chooses the agent's acts, such as `RulePolicy`."""

    def act(self, belief: BeliefState, heard: list[DialogueAct]) -> list[DialogueAct]:
        """Choose delexicalized acts."""


def simulate(
    policy: ActPolicy,
    user: AgendaUser,
    ontology: Ontology,
    lexicalizer: Lexicalizer,
    goal: Goal,
    rng: np.random.Generator,
    max_turns: int = 20,
    errors: SemanticErrors | None = None,
) -> list[Exchange]:
    """Hold a dialogue.

    Args:
        policy: The policy.
        user: The user; `is_complete` is about this dialogue afterwards.
        ontology: The domains.
        lexicalizer: Fills the policy's acts with values.
        goal: The user's goal.
        rng: Source of everything random in user and errors.
        max_turns: Largest number of the agent's turns.
        errors: What the agent misunderstands; nothing by default.

    Returns:
        The turns, up to the one after which the user leaves.
    """
    dialogue = TaskDialogue(goal, BeliefState(ontology), lexicalizer, rng, errors)
    told = user.reset(goal, rng)
    while not user.is_over and len(dialogue.exchanges) < max_turns:
        dialogue.listen(told)
        said, _ = dialogue.say(policy.act(dialogue.belief, dialogue.heard))
        told = user.reply(said.acts)
    return dialogue.exchanges


def corpus_dialogue(
    id: str, goal: Goal, exchanges: Sequence[Exchange], templates: Templates | None = None
) -> CorpusDialogue:
    """A simulated dialogue as one of a corpus: what was understood, and what was said.

    Args:
        id: Identifier.
        goal: The user's goal.
        exchanges: The dialogue.
        templates: Words of both sides; without them, the dialogue has none.
    """
    turns = [
        CorpusTurn(
            exchange.heard,
            exchange.said,
            templates.render(exchange.user, "user") if templates is not None else "",
            templates.render(exchange.said, "agent") if templates is not None else "",
        )
        for exchange in exchanges
    ]
    return CorpusDialogue(id, tuple(turns), goal)
