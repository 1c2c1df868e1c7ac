"""A dialogue in progress, from the agent's side: what it understands, believes and says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl4dialog.tasks.dialogue_acts.acts import DONT_CARE, DialogueAct
from rl4dialog.tasks.dialogue_acts.belief import BeliefState
from rl4dialog.tasks.dialogue_acts.errors import SemanticErrors
from rl4dialog.tasks.dialogue_acts.goals import Goal
from rl4dialog.tasks.dialogue_acts.lexicalizer import Lexicalizer, Said
from rl4dialog.tasks.dialogue_acts.outcome import Exchange
from rl4dialog.tasks.dialogue_acts.placeholders import filled, placeholders_in
from rl4dialog.tasks.dialogue_acts.reply_reader import ReplyReader


class TaskDialogue:
    """The turns of a dialogue, and the agent's belief.

    Args:
        goal: The user's goal.
        belief: The agent's belief, at its beginning.
        lexicalizer: Fills the agent's acts with values.
        rng: Source of everything random in errors and in what the user hears.
        errors: What the agent misunderstands; nothing by default.
        max_acts: The user hears at most this number of the agent's acts a turn. Of more, that many are drawn.

    Attributes:
        goal: The goal.
        belief: The belief.
        told: The user's last acts.
        heard: The same, as the agent understood them.
        exchanges: The turns so far.
    """

    def __init__(
        self,
        goal: Goal,
        belief: BeliefState,
        lexicalizer: Lexicalizer,
        rng: np.random.Generator,
        errors: SemanticErrors | None = None,
        max_acts: int | None = None,
    ) -> None:
        self.goal, self.belief = goal, belief
        self.told: Sequence[DialogueAct] = ()
        self.heard: list[DialogueAct] = []
        self.exchanges: list[Exchange] = []
        self._lexicalizer, self._rng, self._errors, self._max_acts = lexicalizer, rng, errors, max_acts

    def listen(self, told: Sequence[DialogueAct], heard: list[DialogueAct] | None = None) -> None:
        """Hear an utterance of the user, and update the belief.

        Args:
            told: What the user says.
            heard: What the agent understands; by default the same with errors.
        """
        self.told = told
        self.heard = self.with_errors(told) if heard is None else heard
        self.belief.hear(self.heard)

    def with_errors(self, acts: Sequence[DialogueAct]) -> list[DialogueAct]:
        """Return acts with semantic errors."""
        return list(acts) if self._errors is None else self._errors.understood(acts, self._rng)

    def say(self, chosen: Sequence[DialogueAct]) -> tuple[Said, int]:
        """Say delexicalized acts, and update the belief.

        Returns:
            What is said, and how many of the acts the user does not hear, because they are too many.
        """
        spoken = chosen
        if self._max_acts is not None and len(chosen) > self._max_acts:
            kept = self._rng.choice(len(chosen), self._max_acts, replace=False)
            spoken = [chosen[i] for i in sorted(kept)]
        said = self._lexicalizer.say(spoken, self.belief, self.goal)
        self.belief.say(said.acts)
        self.exchanges.append(
            Exchange(tuple(self.told), tuple(self.heard), tuple(chosen), tuple(said.acts), tuple(said.bookings))
        )
        return said, len(chosen) - len(spoken)

    def say_text(self, text: str, reader: ReplyReader) -> Said:
        """Say what a user understands of words with placeholders; the user hears their values.

        Args:
            text: The agent's words.
            reader: Understands them.

        Returns:
            What is said.
        """
        said, _ = self.say(reader.read(text, self.belief.active))
        values = {act[1:]: value for act, value in said.values.items()}
        for _, name, slot, number in placeholders_in(text):  # "no [restaurant_food] restaurants" is about a constraint
            about = self.belief.domains.get(name)
            wanted = about.constraints.get(slot, DONT_CARE) if about is not None else DONT_CARE
            if number == "1" and wanted != DONT_CARE:
                values.setdefault((name, slot, number), wanted)
        self.reword(filled(text, values))
        return said

    def reword(self, text: str, reaching: Sequence[DialogueAct] | None = None) -> None:
        """Note the words of the last turn.

        Args:
            text: The agent's words.
            reaching: What the user understands of them; by default what was said.
        """
        last = self.exchanges[-1]
        self.exchanges[-1] = last._replace(text=text, said=last.said if reaching is None else tuple(reaching))
