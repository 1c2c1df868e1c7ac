"""Two people get to know each other: each has a persona of five facts, and can ask for those of the other one.

Everything that is said is true to the speaker's persona. The speakers of the generated dialogues are careless: each has
three favorite topics, to which it returns although they were answered. So imitators can still learn to ask for more.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from rl4dialog.core.arguments import Count
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Sample, Turn
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat
from rl4dialog.data.dialogue_text import with_goal
from rl4dialog.data.pool import TextGenPool, size_of
from rl4dialog.data.small_talk.grammar import pick
from rl4dialog.data.splits import shuffled
from rl4dialog.tasks.playing import SeededPlayer
from rl4dialog.tasks.turn_goals import REACTIONS, SMALL_TALK, TOPICS, Topic

GREETINGS = ("hello .", "hi there .", "good morning .", "nice to meet you .")
NOTHING = "nothing special ."
"""Answer to a question about a topic of which the persona has no fact; that of the partner ``facts``."""

_GOALS_BY_TEXT = {text: topic.name for topic in TOPICS for text in (*topic.facts, *topic.questions)}


goal_of = _GOALS_BY_TEXT.get  # the topic of a fact or question; ``None`` for other sentences


N_FACTS = 5
N_FAVORITES = 3
# Shares of what is said.
_ASKS_BACK = 0.3
_ASKS, _TELLS = 0.8, 0.1
_ASKS_A_FAVORITE = 0.7
_REACTS = 0.3


class _Said(NamedTuple):
    """An utterance."""

    text: str
    goal: str
    asks: Topic | None = None  # topic of its question, if it asks one


def draw_persona(seed: str) -> dict[str, str]:
    """Draw facts about five of the topics, in random order; returns the facts by topic."""
    rng = random.Random(seed)
    topics = [TOPICS[i] for i in shuffled(len(TOPICS), f"{seed}/topics")[:N_FACTS]]
    return {topic.name: pick(rng, topic.facts) for topic in topics}


def generate_dialogue(id: str, seed: str, n_turns: int) -> Dialogue:
    """Generate a dialogue of two people: after the partner's greeting, `n_turns` turns.

    In the meta data are the facts of both sides, ``persona`` and ``partner_persona``, and ``goals``: for each
    utterance, the topic that it asks for, or else of which it speaks, or ``small_talk``.
    """
    rng = random.Random(seed)
    personas = [draw_persona(f"{seed}/partner"), draw_persona(f"{seed}/agent")]
    speakers = [_Speaker(rng, persona, f"{seed}/{side}") for side, persona in enumerate(personas)]
    said = [_Said(pick(rng, GREETINGS), SMALL_TALK)]
    for index in range(1, 2 * n_turns + 1):
        said.append(speakers[index % 2].say(said[-1].asks))
    partners, agents = ([*persona.values()] for persona in personas)
    meta_data = {"persona": agents, "partner_persona": partners, "goals": [each.goal for each in said]}
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
            return self._question(answer) if self._rng.random() < _ASKS_BACK else _Said(answer, asked.name)
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

    def _question(self, before: str = "") -> _Said:
        topic = pick(self._rng, self._favorites if self._rng.random() < _ASKS_A_FAVORITE else TOPICS)
        return _Said(f"{before} {pick(self._rng, topic.questions)}".strip(), topic.name, topic)


def favorites(seed: str) -> list[Topic]:
    """Draw the topics for which someone asks most often."""
    return [TOPICS[i] for i in shuffled(len(TOPICS), f"{seed}/favorites")[:N_FAVORITES]]


class AcquaintedPlayer(SeededPlayer):
    """Asks for one of its first `n_favorites` topics at random, or for any, also for the same one again."""

    def __init__(self, n_favorites: int | None = None) -> None:
        super().__init__()
        self._n_favorites = n_favorites

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        super().reset(meta_info, seed)
        self._topics = TOPICS if self._n_favorites is None else favorites(str(seed))[: self._n_favorites]

    def choose(self) -> Topic:
        """Choose the topic of the next question."""
        return self._rng.choice(self._topics)

    def say(self, history: list[str]) -> str:
        return self._rng.choice(self.choose().questions)


class CuriousPlayer(AcquaintedPlayer):
    """Asks for another topic in every turn, in random order; starts again after all of them."""

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        super().reset(meta_info, seed)
        self._unasked: list[Topic] = []

    def choose(self) -> Topic:
        if not self._unasked:
            self._unasked = self._rng.sample(self._topics, len(self._topics))
        return self._unasked.pop()


class GetAcquainted(TextGenPool):
    """Generated dialogues of two people with personas of five facts, who ask about each other, without files.

    Args:
        n_turns: Turns of a dialogue, after the partner's greeting.
        goals_in_prompt: Whether there is one sample for each utterance after the greeting, of both sides. Prompts then
            begin with the persona of who speaks and, if it is the agent, with the goal of the reply. A supervised run
            on them teaches one model both roles of ``env.id: turn_goals``.
    """

    @classmethod
    def prepare(
        cls,
        split: str,
        n_train: Count = 3000,
        n_val: Count = 300,
        n_test: Count = 300,
        n_turns: Count = 4,
        seed: int = 0,
        goals_in_prompt: bool = False,
        format: FormatName = "eou",
        render_chat: RenderChat | None = None,
    ) -> GetAcquainted:
        """Generate the dialogues of one split, which has its own random numbers.

        There is one sample per dialogue. Its prompt has the agent's persona and the partner's greeting, and its
        reference is the first reply. In its meta data are ``history``, ``persona``, ``partner_persona``, the
        ``continuation`` with all later utterances, and ``goals``: the topic of each utterance, or ``small_talk``. With
        ``goals_in_prompt``, instead of the last two, the ``goal`` of the reply: ``None`` if it is the partner's, and
        ``small_talk`` if it is "nothing special .".
        """
        dialogue_format = DialogueFormat(format, None, render_chat, in_conversation=goals_in_prompt)
        dialogues = generate_dialogues(split, size_of(split, n_train, n_val, n_test), n_turns, seed)
        samples_of = _samples_with_goals if goals_in_prompt else _samples_of
        samples = [sample for dialogue in dialogues for sample in samples_of(dialogue, dialogue_format)]
        pool = cls(samples, dialogue_format=dialogue_format)
        few = {"one_topic": partial(AcquaintedPlayer, 1), "favorites": partial(AcquaintedPlayer, N_FAVORITES)}
        pool.players = {**few, "random": AcquaintedPlayer, "curious": CuriousPlayer}
        return pool


def generate_dialogues(split: str, n_dialogues: int, n_turns: int = 4, seed: int = 0) -> list[Dialogue]:
    """Generate dialogues with ``persona``, ``partner_persona`` and ``goals``; the same ones on every machine."""
    return [
        generate_dialogue(f"{split}_{index}", f"get_acquainted/{seed}/{split}/{index}", n_turns)
        for index in range(n_dialogues)
    ]


def _samples_of(dialogue: Dialogue, dialogue_format: DialogueFormat) -> Iterator[Sample]:
    greeting, reply, *continuation = (turn.text for turn in dialogue.turns)
    prompt = dialogue_format.prompt([greeting], " ".join(dialogue.meta_data["persona"]))
    meta_data = {**dialogue.meta_data, "history": [greeting], "continuation": continuation}
    yield Sample(dialogue.id, prompt, [reply], meta_data)


def _samples_with_goals(dialogue: Dialogue, dialogue_format: DialogueFormat) -> Iterator[Sample]:
    """Yield a sample for each utterance after the greeting, as both sides of `turn_goals` are asked for it."""
    texts, personas = [turn.text for turn in dialogue.turns], ("partner_persona", "persona")
    for i, turn in enumerate(dialogue.turns[1:], 1):
        own, other = (dialogue.meta_data[personas[side]] for side in (i % 2, 1 - i % 2))
        # "nothing special ." is no way to speak of a topic.
        label = SMALL_TALK if turn.text == NOTHING else dialogue.meta_data["goals"][i]
        goal = label if turn.speaker == AGENT else None
        prompt = dialogue_format.prompt(texts[:i], " ".join(own) if goal is None else with_goal(own, goal))
        meta_data = {"history": texts[:i], "persona": own, "partner_persona": other, "goal": goal}
        yield Sample(f"{dialogue.id}_{i}", prompt, [turn.text], meta_data)
