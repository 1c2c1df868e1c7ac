"""The datapool: dialogues of a world in words, with the belief and the number of entities found in the prompts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Sample
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat
from rl4dialog.data.pool import TextGenPool, check_split
from rl4dialog.tasks.dialogue_acts.belief import BeliefState
from rl4dialog.tasks.dialogue_acts.corpus import CorpusDialogue, CorpusTurn
from rl4dialog.tasks.dialogue_acts.goals import goal_text
from rl4dialog.tasks.dialogue_acts.placeholders import Delexicalizer
from rl4dialog.tasks.dialogue_acts.state_text import user_text
from rl4dialog.tasks.dialogue_acts.world import World


class TaskDialogues(TextGenPool):
    """Dialogues of a task with the user's goal, for the partner ``agenda_user``."""

    @classmethod
    def prepare(
        cls,
        split: str,
        world: Callable[[], World],
        n_val: Count | None = None,
        n_test: Count | None = None,
        format: FormatName = "eou",
        render_chat: RenderChat | None = None,
    ) -> TaskDialogues:
        """Read the dialogues of one split whose goal can be reached.

        The user speaks in the words of templates, as in a simulation. The agent's words are those of the corpus, with
        placeholders such as ``[restaurant_phone]`` in place of values.

        Args:
            split: ``train``, ``val`` or ``test``.
            world: What returns the world.
            n_val: Number of samples in ``val``. If there are fewer goals, each occurs several times, with another seed
                of the user. Default: one per dialogue.
            n_test: The same for ``test``.
            format: ``eou`` or ``chat_template``.
            render_chat: Formats chat messages as a prompt; required for ``chat_template``.

        Returns:
            A pool with one sample per goal. The prompt is the user's first utterance, and the reference is the agent's
            reply. In the meta data are ``history``, the ``goal``, the ``goal_text`` in words, the ``world`` (a hash of
            its acts and database), and the ``continuation``, which contains all later utterances, starting with the
            user's answer.

        Raises:
            DataError: If files of the world are missing or malformed, or a split has no dialogue with a goal.
        """
        check_split(split)
        built = world()
        goals = {id(goal) for goal in built.goals[split]}
        chosen = [dialogue for dialogue in built.dialogues[split] if id(dialogue.goal) in goals]
        spoken = [(dialogue, said) for dialogue in chosen if (said := _utterances(dialogue, built))]
        if not spoken:
            raise DataError(f"datapool 'task_dialogues': the {split} split of {built.name} has no dialogue in words")
        size = {"train": None, "val": n_val, "test": n_test}[split] or len(spoken)
        dialogue_format = DialogueFormat(format, None, render_chat)
        samples = []
        for number, (dialogue, (first, reply, *continuation)) in zip(
            range(size), itertools.cycle(spoken), strict=False
        ):
            assert dialogue.goal is not None
            round_ = number // len(spoken)
            meta_data = {
                "history": [first],
                "goal": dialogue.goal.to_json(),
                "world": built.fingerprint,
                "goal_text": goal_text(dialogue.goal.domains, built.templates),
                "continuation": continuation,
            }
            id_ = f"{dialogue.id}_{round_ + 1}" if round_ else dialogue.id
            samples.append(Sample(id_, dialogue_format.prompt([first]), [reply], meta_data))
        pool = cls(samples)
        pool.use_format(dialogue_format)
        return pool


def _utterances(dialogue: CorpusDialogue, world: World) -> list[str]:
    """Utterances of both sides, the user's first, up to the agent's last one."""
    delexicalize = Delexicalizer(world.templates)
    belief, said = BeliefState(world.ontology), list[str]()
    for user, turn in _heard(dialogue, world):
        belief.hear(user)
        reply = " ".join(delexicalize(turn.system_text, turn.system, belief.active).split())
        if not reply:
            break
        said += [user_text(user, belief, world), reply]
        belief.say(turn.system)
    return said


def _heard(dialogue: CorpusDialogue, world: World) -> Iterator[tuple[tuple, CorpusTurn]]:
    """Turns with the user's acts; where there are none, such as goodbyes, with what the templates understand."""
    for turn in dialogue.turns:
        yield turn.user or tuple(world.templates.parse(turn.user_text)), turn
