"""The datapool of generated dialogues."""

from __future__ import annotations

from rl4dialog.core.arguments import Count, NonNegativeInt
from rl4dialog.core.types import Dialogue
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat, SampleUnit, dialogue_samples
from rl4dialog.data.pool import TextGenPool, check_split, limit_samples
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
        """Generate one split.

        Args:
            split: ``train``, ``val`` or ``test``.
            context_size: Number of utterances in a prompt; a dialogue's first utterances are not used as replies.
            seed: Random seed of the dialogues.
            n_train: Number of dialogues in ``train``. A larger number keeps the first ones; likewise below.
            n_val: Number of dialogues in ``val``.
            n_test: Number of dialogues in ``test``.
            format: ``eou`` or ``chat_template``.
            max_size: Keep only the first samples.
            render_chat: Formats chat messages as a prompt; required for ``chat_template``.
            samples: ``replies``: one sample for each reply. ``dialogues``: one for each dialogue, which begins with the
                reply to the first utterance; all later utterances are in the meta data as ``continuation``, for the
                partner ``replay``.

        Returns:
            A pool whose samples have ``emotion``, ``intent`` and ``history`` in their meta data.
        """
        check_split(split)
        dialogue_format = DialogueFormat(format, context_size, render_chat)
        n_dialogues = {"train": n_train, "val": n_val, "test": n_test}[split]
        found = dialogue_samples(generate_dialogues(split, n_dialogues, seed), dialogue_format, samples)
        source = f"{n_dialogues} generated dialogues of 4 to 12 turns, context_size {context_size}"
        pool = cls(limit_samples(found, max_size, "small_talk", split, source))
        pool.use_format(dialogue_format)
        return pool


def generate_dialogues(split: str, n_dialogues: int, seed: int = 0) -> list[Dialogue]:
    """Generate dialogues; the same arguments give the same dialogues on every machine.

    Args:
        split: ``train``, ``val`` or ``test``; each has its own random numbers.
        n_dialogues: Number of dialogues.
        seed: Random seed.

    Returns:
        Dialogues with DailyDialog's act and emotion numbers, and a topic.
    """
    check_split(split)
    return [generate_dialogue(f"{split}_{index}", f"small_talk/{seed}/{split}/{index}") for index in range(n_dialogues)]
