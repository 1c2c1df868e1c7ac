"""The feedback of a simulated person on generated small talk."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from rl4dialog.core.feedback import Feedback, JudgedReply
from rl4dialog.core.types import Dialogue
from rl4dialog.data.small_talk.grammar import generate_dialogue

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
