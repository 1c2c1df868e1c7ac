"""The datapool of generated dialogues; and their judgements, by a rule and by a simulated person, to try out tools."""

from __future__ import annotations

import random
from dataclasses import replace

from rl4dialog.core.arguments import Count, NonNegativeInt
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
