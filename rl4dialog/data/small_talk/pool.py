"""The datapool of generated dialogues; and their judgements, by a rule and by a simulated person, to try out tools."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from rl4dialog.core.arguments import Count, NonNegativeInt
from rl4dialog.core.feedback import Feedback, JudgedReply
from rl4dialog.core.types import AGENT, Dialogue, RatedDialogue
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat, SampleUnit, dialogue_samples
from rl4dialog.data.pool import TextGenPool, check_split, limit_samples, size_of
from rl4dialog.data.small_talk.grammar import generate_dialogue


class SmallTalk(TextGenPool):
    """Small generated dialogues with acts and emotions, from a seeded grammar, without files or network."""

    @classmethod
    def prepare(
        cls,
        split: str,
        context_size: Count = 3,
        seed: int = 0,
        n_train: NonNegativeInt = 2000,
        n_val: NonNegativeInt = 250,
        n_test: NonNegativeInt = 250,
        format: FormatName = "eou",
        max_size: Count | None = None,
        render_chat: RenderChat | None = None,
        samples: SampleUnit = "replies",
    ) -> SmallTalk:
        """Generate one split, whose samples have ``emotion``, ``intent`` and ``history`` in their meta data."""
        n_dialogues = size_of(split, n_train, n_val, n_test)
        dialogue_format = DialogueFormat(format, context_size, render_chat)
        found = dialogue_samples(generate_dialogues(split, n_dialogues, seed), dialogue_format, samples)
        source = f"{n_dialogues} generated dialogues of 4 to 12 turns, context_size {context_size}"
        return cls(limit_samples(found, max_size, "small_talk", split, source), dialogue_format=dialogue_format)


def generate_dialogues(split: str, n_dialogues: int, seed: int = 0) -> list[Dialogue]:
    """Generate dialogues with DailyDialog's acts and emotions, and a topic; the same ones on every machine."""
    check_split(split)
    return [generate_dialogue(f"{split}_{index}", f"small_talk/{seed}/{split}/{index}") for index in range(n_dialogues)]


_N_RATED = 400
RATING = "interest"
_LOWEST, _HIGHEST = 1, 5


def rated_small_talk() -> tuple[list[RatedDialogue], list[RatedDialogue]]:
    """Generate rated dialogues and their rated replies; the same ones on every machine.

    The rating ``interest`` of a reply, from 1 to 5, is 4 if the reply asks a question and otherwise 2, plus -1, 0 or 1
    at random. That of a dialogue is the mean over the agent's replies.
    """
    dialogues, replies = [], []
    for number in range(_N_RATED):
        seed = f"small_talk/ratings/{number}"
        dialogue, rng = generate_dialogue(f"rated_{number}", seed), random.Random(f"{seed}/noise")
        given: list[float] = []
        for i, turn in enumerate(dialogue.turns):
            if turn.speaker != AGENT:
                continue
            # random() alone has the same sequence in all versions of Python.
            noise = int(rng.random() * 3) - 1
            given.append(float(min(max((4 if "?" in turn.text else 2) + noise, _LOWEST), _HIGHEST)))
            until: Dialogue = replace(dialogue, id=f"{dialogue.id}_{i}", turns=dialogue.turns[: i + 1], n_given=i)
            replies.append(RatedDialogue(until, {RATING: given[-1]}, dialogue.id))
        dialogues.append(RatedDialogue(dialogue, {RATING: sum(given) / len(given)}, dialogue.id))
    return dialogues, replies


N_DIALOGUES = 1600
QUESTION, BEST_N_WORDS, PER_WORD = 2.0, 8, 0.2
_MODEL = "small_talk"
_START = datetime(2026, 1, 1, tzinfo=UTC)


def utility(reply: str) -> float:
    """What the person thinks of a reply: 2 for a question, minus 0.2 for each word more or less than eight."""
    return QUESTION * ("?" in reply) - PER_WORD * abs(len(reply.split()) - BEST_N_WORDS)


@dataclass
class SimulatedPerson:
    """A person who judges replies by the utility above, to try out how much can be learned from feedback.

    It chooses by the model of Bradley and Terry (1952): the first reply with the probability sigmoid((u1 - u2) /
    temperature). With the probability `error_rate`, the judgement is flipped.
    """

    temperature: float = 0.5
    error_rate: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        self._rng = random.Random(f"person/{self.seed}")

    def prefers_first(self, first: str, second: str) -> bool:
        """Choose between two replies."""
        return self._says_yes(utility(first) - utility(second))

    def likes(self, reply: str) -> bool:
        """Rate a reply: up, if it is better than a plain statement of eight words."""
        return self._says_yes(utility(reply) - 0.5)

    def correction(self, candidates: Sequence[str]) -> str:
        """Write the best of some replies."""
        return max(candidates, key=utility)

    def _says_yes(self, advantage: float) -> bool:
        draw, error = self._rng.random(), self._rng.random()
        is_better = advantage > 0
        if self.temperature > 0:
            is_better = draw < 1 / (1 + math.exp(-max(min(advantage / self.temperature, 50), -50)))
        return is_better != (error < self.error_rate)


def small_talk_feedback(n_dialogues: int = N_DIALOGUES, person: SimulatedPerson | None = None) -> list[Feedback]:
    """Let a simulated person judge replies in generated dialogues; the same ones on every machine.

    The candidates are the next utterance of the dialogue and one of another dialogue. Of four dialogues, the person
    chooses between two replies in two, rates a reply in one, and corrects one in one, or rates it if none is better.
    """
    person = person or SimulatedPerson()
    dialogues = [generate_dialogue(f"judged_{i}", f"small_talk/feedback/{i}") for i in range(n_dialogues)]
    return [_judged(dialogues, number, person) for number in range(n_dialogues)]


def _judged(dialogues: Sequence[Dialogue], number: int, person: SimulatedPerson) -> Feedback:
    rng = random.Random(f"small_talk/feedback/{number}/candidates")
    texts = [turn.text for turn in dialogues[number].turns]
    n_before = 1 + 2 * int(rng.random() * (len(texts) // 2))
    other = dialogues[int(rng.random() * len(dialogues))].turns
    others = [turn.text for turn in other if turn.text != texts[n_before]]
    candidates = [texts[n_before], others[int(rng.random() * len(others))]]
    if rng.random() < 0.5:
        candidates.reverse()
    judged = [JudgedReply(_MODEL, text) for text in candidates]
    time = (_START + timedelta(minutes=number)).isoformat(timespec="milliseconds")
    give = functools.partial(Feedback, turns=texts[:n_before], time=time, id=f"small_talk_{number}")
    kind = ("preference", "rating", "preference", "correction")[number % 4]
    if kind == "preference":
        return give(kind, replies=judged, chosen=0 if person.prefers_first(*candidates) else 1)
    correction = person.correction([*candidates, *others])
    if kind == "rating" or correction == candidates[0]:
        return give("rating", replies=judged[:1], rating=1 if person.likes(candidates[0]) else -1)
    return give(kind, replies=judged[:1], correction=correction)
