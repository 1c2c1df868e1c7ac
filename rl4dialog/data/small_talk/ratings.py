"""Ratings of generated dialogues by a rule, to try out the tools for human ratings."""

from __future__ import annotations

import random
from dataclasses import replace

from rl4dialog.core.types import AGENT, Dialogue, RatedDialogue
from rl4dialog.data.small_talk.grammar import generate_dialogue

N_DIALOGUES = 400
RATING = "interest"
_LOWEST, _HIGHEST = 1, 5


def rated_small_talk() -> tuple[list[RatedDialogue], list[RatedDialogue]]:
    """Generate rated dialogues and their rated replies; the same ones on every machine.

    The rating ``interest`` of a reply, from 1 to 5, is 4 if the reply asks a question and otherwise 2, plus -1, 0 or 1
    at random. That of a dialogue is the mean over the agent's replies.

    Returns:
        All dialogues, and all replies of the agent in them.
    """
    dialogues, replies = [], []
    for number in range(N_DIALOGUES):
        seed = f"small_talk/ratings/{number}"
        dialogue, rng = generate_dialogue(f"rated_{number}", seed), random.Random(f"{seed}/noise")
        given: list[float] = []
        for i, turn in enumerate(dialogue.turns):
            if turn.speaker != AGENT:
                continue
            given.append(_rating(turn.text, rng))
            until: Dialogue = replace(dialogue, id=f"{dialogue.id}_{i}", turns=dialogue.turns[: i + 1], n_given=i)
            replies.append(RatedDialogue(until, {RATING: given[-1]}, dialogue.id))
        dialogues.append(RatedDialogue(dialogue, {RATING: sum(given) / len(given)}, dialogue.id))
    return dialogues, replies


def _rating(reply: str, rng: random.Random) -> float:
    # random() alone has the same sequence in all versions of Python.
    noise = int(rng.random() * 3) - 1
    return float(min(max((4 if "?" in reply else 2) + noise, _LOWEST), _HIGHEST))
