"""The datapool: generated dialogues of two people with personas."""

from __future__ import annotations

from collections.abc import Iterator

from rl4dialog.core.arguments import Count
from rl4dialog.core.types import AGENT, Dialogue, Sample
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat
from rl4dialog.data.openings import with_goal
from rl4dialog.data.pool import TextGenPool, check_counts, check_split
from rl4dialog.tasks.get_acquainted.grammar import generate_dialogue
from rl4dialog.tasks.get_acquainted.players import AcquaintedPlayer, CuriousPlayer, FavoritesPlayer, OneTopicPlayer
from rl4dialog.tasks.get_acquainted.topics import NOTHING, SMALL_TALK


class GetAcquainted(TextGenPool):
    """Generated dialogues of two people with personas of five facts, who ask about each other, without files."""

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
        """Generate the dialogues of one split.

        Args:
            split: ``train``, ``val`` or ``test``; each has its own random numbers.
            n_train: Number of dialogues in ``train``. A larger number keeps the first ones; likewise below.
            n_val: Number of dialogues in ``val``.
            n_test: Number of dialogues in ``test``.
            n_turns: Turns of a dialogue, after the partner's greeting.
            seed: Random seed of the dialogues.
            goals_in_prompt: Whether there is one sample for each utterance after the greeting, of both sides. Prompts
                then begin with the persona of who speaks and, if it is the agent, with the goal of the reply. A
                supervised run on them teaches one model both roles of ``env.id: turn_goals``.
            format: ``eou`` or ``chat_template``.
            render_chat: Formats chat messages as a prompt; required for ``chat_template``.

        Returns:
            A pool with one sample per dialogue. The prompt has the agent's persona and the partner's greeting, and the
            reference is the first reply. In the meta data are ``history``, ``persona``, ``partner_persona``, the
            ``continuation`` with all later utterances, and ``goals``: the topic of each utterance, or ``small_talk``.
            With ``goals_in_prompt``, instead of the last two, the ``goal`` of the reply: ``None`` if it is the
            partner's, and ``small_talk`` if it is "nothing special .".

        Raises:
            DataError: If an argument is invalid.
        """
        check_split(split)
        sizes = {"n_train": n_train, "n_val": n_val, "n_test": n_test}
        check_counts("get_acquainted", {**sizes, "n_turns": n_turns})
        dialogue_format = DialogueFormat(format, None, render_chat, in_conversation=goals_in_prompt)
        dialogues = generate_dialogues(split, sizes[f"n_{split}"], n_turns, seed)
        if goals_in_prompt:
            pool = cls([sample for dialogue in dialogues for sample in _samples_with_goals(dialogue, dialogue_format)])
        else:
            pool = cls([_sample_of(dialogue, dialogue_format) for dialogue in dialogues])
        pool.use_format(dialogue_format)
        pool.players = {
            "one_topic": OneTopicPlayer,
            "favorites": FavoritesPlayer,
            "random": AcquaintedPlayer,
            "curious": CuriousPlayer,
        }
        return pool


def generate_dialogues(split: str, n_dialogues: int, n_turns: int = 4, seed: int = 0) -> list[Dialogue]:
    """Generate dialogues; the same arguments give the same dialogues on every machine.

    Args:
        split: ``train``, ``val`` or ``test``.
        n_dialogues: Number of dialogues.
        n_turns: Turns of a dialogue, after the partner's greeting.
        seed: Random seed.

    Returns:
        Dialogues with ``persona``, ``partner_persona`` and ``goals`` in their meta data.
    """
    return [
        generate_dialogue(f"{split}_{index}", f"get_acquainted/{seed}/{split}/{index}", n_turns)
        for index in range(n_dialogues)
    ]


def _sample_of(dialogue: Dialogue, dialogue_format: DialogueFormat) -> Sample:
    greeting, reply, *continuation = (turn.text for turn in dialogue.turns)
    prompt = dialogue_format.prompt([greeting], " ".join(dialogue.meta_data["persona"]))
    meta_data = {**dialogue.meta_data, "history": [greeting], "continuation": continuation}
    return Sample(dialogue.id, prompt, [reply], meta_data)


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
