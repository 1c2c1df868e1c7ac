"""The simulated user as the partner of a language model, which writes delexicalized words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rl4dialog.core.arguments import Count, ErrorRate
from rl4dialog.core.errors import DataError
from rl4dialog.core.protocols import Partner
from rl4dialog.core.types import PartnerReply
from rl4dialog.tasks.dialogue_acts.agenda import AgendaUser, UserSettings
from rl4dialog.tasks.dialogue_acts.belief import BeliefState
from rl4dialog.tasks.dialogue_acts.dialogue import TaskDialogue
from rl4dialog.tasks.dialogue_acts.errors import SemanticErrors
from rl4dialog.tasks.dialogue_acts.goals import goal_of
from rl4dialog.tasks.dialogue_acts.lexicalizer import Lexicalizer
from rl4dialog.tasks.dialogue_acts.outcome import Outcome, outcome_of
from rl4dialog.tasks.dialogue_acts.placeholders import placeholders_in
from rl4dialog.tasks.dialogue_acts.reply_reader import ReplyReader
from rl4dialog.tasks.dialogue_acts.state_text import user_text
from rl4dialog.tasks.dialogue_acts.transcript import failures
from rl4dialog.tasks.dialogue_acts.world import World


class AgendaUserPartner(Partner):
    """A simulated user with a goal, who understands words with placeholders such as ``[restaurant_phone]``.

    The agent reads the user's words as it understood them, its own belief, and how many entities it found. The user
    hears the agent's words with values in place of the placeholders, and says what `AgendaUser` says.

    Its outcome has ``success``, ``complete``, ``match`` and ``inform_f1`` of the dialogue, the ``acts_per_turn`` that
    were said, the ``placeholders_per_turn``, and ``unparsed``: the share of replies in which the user understood
    nothing.

    Args:
        world: What returns the world.
        error_rate: Share of the user's acts that the agent misunderstands.
        max_system_acts: The user hears at most this number of acts a turn. Of more, that many are drawn at random.
            Default: the corpus's 99th percentile.
        user: Arguments of `AgendaUser`: ``max_acts`` and ``patience``.

    Raises:
        ConfigError: If an argument is invalid.
        DataError: At the start of a conversation, if the sample has no goal in this world.
    """

    can_open = True
    outcomes = (
        *("success", "complete", "match", "inform_f1", "acts_per_turn", "placeholders_per_turn"),
        "unparsed",
    )
    checks_samples = True

    def __init__(
        self,
        world: Callable[[], World],
        error_rate: ErrorRate = 0.0,
        max_system_acts: Count | None = None,
        user: UserSettings | None = None,
    ) -> None:
        self._world_of, self._error_rate = world, error_rate
        self._settings: dict[str, Any] = {**(user or {})}
        self._max_acts = max_system_acts
        self._user: AgendaUser | None = None

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._world = world = self._world_of()  # here, so that no world is sent to a worker process
        if meta_info.get("goal") is None:
            raise DataError("partner 'agenda_user' needs samples with a goal; use the datapool task_dialogues")
        if meta_info.get("world", world.fingerprint) != world.fingerprint:
            raise DataError(f"the goal is one of another world, or the database of {world.name} has changed")
        goal = goal_of(meta_info["goal"], world.ontology, "meta_data['goal']")
        rng = np.random.default_rng(seed)
        if self._user is None:
            self._user = AgendaUser(world.ontology, places=world.places, **self._settings)
            requestable = {name: domain.requestable for name, domain in world.ontology.domains.items()}
            self._errors = SemanticErrors(self._error_rate, world.values, requestable)
            self._lexicalizer = Lexicalizer(world.ontology, world.database)
            self._reader = ReplyReader(world.ontology, world.templates)
        max_acts = world.max_system_acts if self._max_acts is None else self._max_acts
        self._dialogue = TaskDialogue(goal, BeliefState(world.ontology), self._lexicalizer, rng, self._errors, max_acts)
        self._n_placeholders = self._n_unparsed = 0
        self._dialogue.listen(self._user.reset(goal, rng))

    def open(self) -> PartnerReply:
        return self._said()

    def reply(self, history: list[str]) -> PartnerReply:
        assert self._user is not None
        text = history[-1]
        said = self._dialogue.say_text(text, self._reader)
        self._n_placeholders += len(placeholders_in(text))
        self._n_unparsed += not self._dialogue.exchanges[-1].chosen
        self._dialogue.listen(self._user.reply(said.acts))
        return self._said()

    def _said(self) -> PartnerReply:
        """The user's last utterance, after what it heard."""
        assert self._user is not None
        dialogue, world = self._dialogue, self._world
        return PartnerReply(
            user_text(dialogue.heard, dialogue.belief, world),
            leaves=self._user.is_over,
            spoken=world.templates.render(dialogue.told, "user"),
            heard=dialogue.exchanges[-1].text if dialogue.exchanges else "",
        )

    @property
    def dialogue(self) -> TaskDialogue:
        """The dialogue in progress."""
        return self._dialogue

    def outcome(self) -> dict[str, float]:
        dialogue = self._dialogue
        numbers = self._judged().numbers()
        n_turns = max(len(dialogue.exchanges), 1)
        numbers |= {"placeholders_per_turn": self._n_placeholders / n_turns, "unparsed": self._n_unparsed / n_turns}
        return {name: numbers[name] for name in self.outcomes}

    def failures(self) -> list[str]:
        assert self._user is not None
        return failures(self._dialogue.exchanges, self._judged(), self._user.is_over)

    def _judged(self) -> Outcome:
        assert self._user is not None
        dialogue, world = self._dialogue, self._world
        return outcome_of(dialogue.goal, dialogue.exchanges, self._user.is_complete, world.ontology, world.database)
