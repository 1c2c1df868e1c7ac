"""A language model that was trained for a task in words, in a conversation with a person."""

from __future__ import annotations

from collections.abc import Sequence

from rl4dialog.core.errors import ConfigError
from rl4dialog.inference.loading import LoadedPolicy
from rl4dialog.inference.task_agent import TaskAgent
from rl4dialog.tasks.dialogue_acts.acts import INFORM, DialogueAct
from rl4dialog.tasks.dialogue_acts.belief import BeliefState
from rl4dialog.tasks.dialogue_acts.dialogue import TaskDialogue
from rl4dialog.tasks.dialogue_acts.goals import Goal
from rl4dialog.tasks.dialogue_acts.lexicalizer import Lexicalizer
from rl4dialog.tasks.dialogue_acts.outcome import Exchange
from rl4dialog.tasks.dialogue_acts.reply_reader import ReplyReader
from rl4dialog.tasks.dialogue_acts.state_text import user_text
from rl4dialog.training.building.task import task_world


class WordsAgent(TaskAgent):
    """A language model that writes placeholders, which the person reads as values.

    What the person says is understood by the world's templates, without semantic errors. The model reads it in the
    words of templates, with belief and database counts, as in training.

    Args:
        loaded: The policy.
        name: Name for display.
        seed: Seed of the goals and of the replies.
    """

    def __init__(self, loaded: LoadedPolicy, name: str, seed: int | None = None) -> None:
        world = task_world(loaded.config.task)
        if world is None:
            raise ConfigError(f"{name} was not trained for a task")
        self._loaded, self._seed = loaded, seed
        args = loaded.config.env.args if loaded.config.env is not None else None
        self._n_shown = args.context_turns if args is not None else None
        super().__init__(name, world(), seed)
        self._lexicalizer = Lexicalizer(self.world.ontology, self.world.database)
        self._reader = ReplyReader(self.world.ontology, self.world.templates)

    @property
    def _exchanges(self) -> Sequence[Exchange]:
        return self._dialogue.exchanges

    def _begin(self, goal: Goal) -> None:
        self._dialogue = TaskDialogue(goal, BeliefState(self.world.ontology), self._lexicalizer, self._rng)
        self._history: list[str] = []

    def _understand(self, text: str) -> list[DialogueAct]:
        active = [DialogueAct(INFORM, self._dialogue.belief.active)] if self._exchanges else []
        said = self._exchanges[-1].said if self._exchanges else ()
        return self.world.templates.parse(text, [*active, *said])

    def _answer(self, understood: list[DialogueAct]) -> Exchange:
        dialogue = self._dialogue
        dialogue.listen(understood)
        told = user_text(understood, dialogue.belief, self.world)
        shown = self._history if self._n_shown is None else self._history[len(self._history) - self._n_shown + 1 :]
        seed = None if self._seed is None else self._seed + len(self._history)
        reply = self._loaded.chat(told, shown, seed=seed)
        self._history += [told, reply]
        dialogue.say_text(reply, self._reader)
        return dialogue.exchanges[-1]
