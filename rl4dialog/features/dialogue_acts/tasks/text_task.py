"""The task for language models: datapool and partner, and what the agent reads in a turn.

It reads the user's words as it understood them, its belief, and what it found, as in the context-to-text task of
Budzianowski et al. 2018, "MultiWOZ" (arXiv 1810.00278). It writes words with placeholders.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rl4dialog.core.arguments import Count, ErrorRate
from rl4dialog.core.errors import DataError
from rl4dialog.core.protocols import Partner
from rl4dialog.core.types import PartnerReply, Sample
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat
from rl4dialog.data.pool import TextGenPool, check_split, size_of
from rl4dialog.features.dialogue_acts.tasks.acts import DONT_CARE, DialogueAct
from rl4dialog.features.dialogue_acts.tasks.agenda import AgendaUser, SemanticErrors, UserSettings
from rl4dialog.features.dialogue_acts.tasks.dialogue import BeliefState, Lexicalizer, TaskDialogue
from rl4dialog.features.dialogue_acts.tasks.goals import goal_of, goal_text
from rl4dialog.features.dialogue_acts.tasks.outcome import Outcome, failures, outcome_of
from rl4dialog.features.dialogue_acts.tasks.placeholders import ReplyReader, delexicalize, placeholders_in
from rl4dialog.features.dialogue_acts.tasks.world import CorpusDialogue, World

NOTHING_HEARD = "..."
SEPARATOR = " | "
_MANY = 4


def user_text(heard: Sequence[DialogueAct], belief: BeliefState, world: World) -> str:
    """Words of a user as the agent understood them, and the belief after them.

    Such as ``What is the phone number of the restaurant? | restaurant: food thai; wants phone; offered; 2 found``.
    """
    return f"{world.templates.render(heard, 'user') or NOTHING_HEARD}{SEPARATOR}{_state(belief, world)}"


def _state(belief: BeliefState, world: World) -> str:
    """The belief about the domain that is being talked about, and the number of entities that satisfy it."""
    name = belief.active
    if not name:
        return "nothing known"
    about = belief.domains[name]
    values = {**about.constraints, **about.booking}
    known = ", ".join(f"{slot} {'any' if value == DONT_CARE else value}" for slot, value in values.items())
    n_found = len(world.database.query(name, about.constraints))
    parts = {
        known: known,
        f"wants {', '.join(about.requested)}": about.requested,
        "offered": about.offered,
        "booked": about.reference,
        f"{n_found if n_found < _MANY else 'many'} found": not world.ontology[name].generated,
    }
    return f"{name}: {'; '.join(part for part, is_true in parts.items() if is_true)}".rstrip(": ")


class AgendaUserPartner(Partner):
    """A simulated user with a goal, who understands words with placeholders such as ``[restaurant_phone]``.

    The agent reads the user's words as it understood them, its own belief, and how many entities it found. The user
    hears the agent's words with values in place of the placeholders, and says what `AgendaUser` says.

    Its outcome has ``success``, ``complete``, ``match`` and ``inform_f1`` of the dialogue, the ``acts_per_turn`` that
    were said, the ``placeholders_per_turn``, and the share of replies that the user did not understand, ``unparsed``.

    Args:
        world: What returns the world.
        error_rate: Share of the user's acts that the agent misunderstands.
        max_system_acts: The user hears at most this number of acts a turn. Of more, that many are drawn at random.
            Default: the corpus's 99th percentile.
        user: Arguments of `AgendaUser`: ``max_acts`` and ``patience``.
    """

    role = "You are a user with a goal in the town: you say what you look for, and ask for what you want to know."
    can_open = True
    outcomes = ("success", "complete", "match", "inform_f1", "acts_per_turn", "placeholders_per_turn", "unparsed")
    checks_samples = True

    def __init__(
        self,
        world: Callable[[], World],
        error_rate: ErrorRate = 0.0,
        max_system_acts: Count | None = None,
        user: UserSettings | None = None,
    ) -> None:
        self._world_of, self._error_rate, self._max_acts = world, error_rate, max_system_acts
        self._settings: dict[str, Any] = {**(user or {})}

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._world = world = self._world_of()  # here, so that no world is sent to a worker process
        if meta_info.get("goal") is None:
            raise DataError("partner 'agenda_user' needs samples with a goal; use the datapool task_dialogues")
        if meta_info.get("world", world.fingerprint) != world.fingerprint:
            raise DataError(f"the goal is one of another world, or the database of {world.name} has changed")
        goal = goal_of(meta_info["goal"], world.ontology, "meta_data['goal']")
        self._rng = rng = np.random.default_rng(seed)  # an attribute, so that it can be reseeded
        self._user = AgendaUser(world.ontology, places=world.places, **self._settings)
        self._reader = ReplyReader(world.templates)
        errors = SemanticErrors(self._error_rate, world.ontology, world.values)
        lexicalizer = Lexicalizer(world.database)
        max_acts = world.max_system_acts if self._max_acts is None else self._max_acts
        self._dialogue = TaskDialogue(goal, BeliefState(world.ontology), lexicalizer, rng, errors, max_acts)
        self._n_placeholders = self._n_unparsed = 0
        self._dialogue.listen(self._user.reset(goal, rng))

    def secret(self) -> str:
        return goal_text(self._dialogue.goal.domains, self._world.templates)

    def open(self) -> PartnerReply:
        return self._said()

    def reply(self, history: list[str]) -> PartnerReply:
        text = history[-1]
        said = self._dialogue.say_text(text, self._reader)
        self._n_placeholders += len(placeholders_in(text))
        self._n_unparsed += not self._dialogue.exchanges[-1].chosen
        self._dialogue.listen(self._user.reply(said.acts))
        return self._said()

    def _said(self) -> PartnerReply:
        """The user's last utterance, after what it heard."""
        dialogue, world = self._dialogue, self._world
        return PartnerReply(
            user_text(dialogue.heard, dialogue.belief, world),
            leaves=self._user.is_over,
            spoken=world.templates.render(dialogue.told, "user"),
            heard=dialogue.exchanges[-1].text if dialogue.exchanges else "",
        )

    @property
    def dialogue(self) -> TaskDialogue:
        return self._dialogue

    def outcome(self) -> dict[str, float]:
        dialogue = self._dialogue
        numbers = self._judged().numbers()
        n_turns = max(len(dialogue.exchanges), 1)
        numbers |= {"placeholders_per_turn": self._n_placeholders / n_turns, "unparsed": self._n_unparsed / n_turns}
        return {name: numbers[name] for name in self.outcomes}

    def failures(self) -> list[str]:
        return failures(self._dialogue.exchanges, self._judged(), self._user.is_over)

    def _judged(self) -> Outcome:
        dialogue = self._dialogue
        return outcome_of(dialogue.goal, dialogue.exchanges, self._user.is_complete, self._world.database)


class TaskDialogues(TextGenPool):
    """Dialogues of a task with the user's goal, for the partner ``agenda_user``.

    Args:
        world: What returns the world.
        n_val: Number of samples in ``val``; of fewer goals, each occurs several times. Default: one per dialogue.
        n_test: The same for ``test``.
    """

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

        There is one sample per goal. Its prompt is the user's first utterance, and its reference is the agent's reply.
        In its meta data are ``history``, the ``goal``, the ``goal_text`` in words, the ``world`` (a hash of acts and
        database), and the ``continuation``, which contains all later utterances, starting with the user's answer.
        """
        check_split(split)
        built = world()
        goals = {id(goal) for goal in built.goals[split]}
        chosen = [dialogue for dialogue in built.dialogues[split] if id(dialogue.goal) in goals]
        spoken = [(dialogue, said) for dialogue in chosen if (said := _utterances(dialogue, built))]
        if not spoken:
            raise DataError(f"datapool 'task_dialogues': the {split} split of {built.name} has no dialogue in words")
        size = size_of(split, len(spoken), n_val or len(spoken), n_test or len(spoken))
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
        return cls(samples, dialogue_format=dialogue_format)


def _utterances(dialogue: CorpusDialogue, world: World) -> list[str]:
    """Utterances of both sides, the user's first, up to the agent's last one."""
    belief, said = BeliefState(world.ontology), list[str]()
    for turn in dialogue.turns:
        # Where there are no acts, such as for goodbyes, the user says what the templates understand.
        user = turn.user or tuple(world.templates.parse(turn.user_text))
        belief.hear(user)
        reply = " ".join(delexicalize(turn.system_text, turn.system, belief.active, world.templates).split())
        if not reply:
            break
        said += [user_text(user, belief, world), reply]
        belief.say(turn.system)
    return said
