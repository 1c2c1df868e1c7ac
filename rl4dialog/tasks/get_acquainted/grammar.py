"""Generated personas and dialogues, in which everything that is said is true to the speaker's persona.

The speakers are careless: each has three favorite topics, to which it returns although they were answered. So a model
that imitates the dialogues can still learn to ask for something new.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple

from rl4dialog.core.types import PARTNER, Dialogue, Turn
from rl4dialog.data.small_talk.frame import pick
from rl4dialog.data.splits import shuffled
from rl4dialog.tasks.get_acquainted.topics import GREETINGS, NOTHING, REACTIONS, SMALL_TALK, TOPICS, Topic

N_FACTS = 5
N_FAVORITES = 3
# Shares of what is said.
_ASKS_BACK = 0.3
_ASKS, _TELLS = 0.8, 0.1
_ASKS_A_FAVORITE = 0.7
_REACTS = 0.3


class _Said(NamedTuple):
    """An utterance: its text, its goal, and the topic of its question, if it asks one."""

    text: str
    goal: str
    asks: Topic | None = None


def draw_persona(seed: str) -> dict[str, str]:
    """Draw facts about five of the topics, in random order; returns the facts by topic."""
    rng = random.Random(seed)
    topics = [TOPICS[i] for i in shuffled(len(TOPICS), f"{seed}/topics")[:N_FACTS]]
    return {topic.name: pick(rng, topic.facts) for topic in topics}


def generate_dialogue(id: str, seed: str, n_turns: int) -> Dialogue:
    """Generate a dialogue of two people.

    Args:
        id: Id of the dialogue.
        seed: Random seed, which determines everything else.
        n_turns: Utterances of the agent, each with the partner's answer, after the partner's greeting.

    Returns:
        The dialogue. Its ``meta_data`` has the facts of both sides, ``persona`` and ``partner_persona``, and ``goals``:
        for each utterance, the topic that it asks for, or else of which it speaks, or ``small_talk``.
    """
    rng = random.Random(seed)
    personas = [draw_persona(f"{seed}/partner"), draw_persona(f"{seed}/agent")]
    speakers = [_Speaker(rng, persona, f"{seed}/{side}") for side, persona in enumerate(personas)]
    said = [_Said(pick(rng, GREETINGS), SMALL_TALK)]
    for index in range(1, 2 * n_turns + 1):
        said.append(speakers[index % 2].say(said[-1].asks))
    meta_data = {
        "persona": [*personas[1].values()],
        "partner_persona": [*personas[0].values()],
        "goals": [each.goal for each in said],
    }
    return Dialogue(id, tuple(Turn(each.text, PARTNER + i % 2) for i, each in enumerate(said)), meta_data=meta_data)


class _Speaker:
    """One of the two people."""

    def __init__(self, rng: random.Random, persona: Mapping[str, str], seed: str) -> None:
        self._rng, self._persona = rng, persona
        self._favorites = favorites(seed)

    def say(self, asked: Topic | None) -> _Said:
        """Answer the other one's question, or else ask, tell or react."""
        if asked is not None:
            answer = self._persona.get(asked.name, NOTHING)
            if self._rng.random() >= _ASKS_BACK:
                return _Said(answer, asked.name)
            question = self._question()
            return question._replace(text=f"{answer} {question.text}")
        point = self._rng.random()
        if point < _ASKS:
            question = self._question()
            if self._rng.random() >= _REACTS:
                return question
            return question._replace(text=f"{pick(self._rng, REACTIONS)} {question.text}")
        if point < _ASKS + _TELLS:
            goal = pick(self._rng, [*self._persona])
            return _Said(self._persona[goal], goal)
        return _Said(pick(self._rng, REACTIONS), SMALL_TALK)

    def _question(self) -> _Said:
        topic = pick(self._rng, self._favorites if self._rng.random() < _ASKS_A_FAVORITE else TOPICS)
        return _Said(pick(self._rng, topic.questions), topic.name, topic)


def favorites(seed: str) -> list[Topic]:
    """Draw the topics for which someone asks most often."""
    return [TOPICS[i] for i in shuffled(len(TOPICS), f"{seed}/favorites")[:N_FAVORITES]]
