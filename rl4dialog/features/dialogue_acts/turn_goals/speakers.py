"""Who speaks to reach the goals of turns, and is not trained."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import ConfigError
from rl4dialog.data.dialogue_format import FormatName
from rl4dialog.data.dialogue_text import with_goal
from rl4dialog.envs.conversation import PartnersSide, first_prompts
from rl4dialog.partners.language_model import LanguageModelPartner
from rl4dialog.tasks.turn_goals import TurnGoal


class GoalTurn(NamedTuple):
    """A turn that is to be spoken."""

    goal: TurnGoal  # its goal
    history: list[str]  # all utterances so far; the last one is the partner's
    meta_info: dict[str, Any]  # the sample's ``meta_data``
    seed: int  # seed of the turn


class Speaker(ABC):
    """Puts goals into words, for many conversations at once. It is not trained."""

    def check(self, goals: Sequence[TurnGoal]) -> None:  # noqa: B027 (a language model reads any name)
        """Raise a `ConfigError` if it cannot speak to reach these goals."""

    @abstractmethod
    def speak(self, turns: Sequence[GoalTurn]) -> list[str]:
        """Return one utterance for each turn."""


class ScriptedSpeaker(Speaker):
    """Says one of the goal's questions, at random."""

    def check(self, goals: Sequence[TurnGoal]) -> None:
        for goal in goals:
            if not goal.questions:
                cure = "add questions: [...] to it in env.args.goals"
                raise ConfigError(
                    f"speaker 'scripted' says the questions of a goal, and {goal.name!r} has none; {cure}"
                )

    def speak(self, turns: Sequence[GoalTurn]) -> list[str]:
        return [random.Random(turn.seed).choice(turn.goal.questions) for turn in turns]


class LanguageModelSpeaker(LanguageModelPartner, Speaker):
    """A frozen language model, which reads the goal after its persona, and speaks in all conversations in one batch.

    Args:
        model_name: Folder or hub id of the model, such as ``model/`` of a supervised run on ``get_acquainted`` with
            ``goals_in_prompt``.
    """

    _who, _length_key = "speaker 'lm'", "env.args.max_utterance_length"

    def __init__(
        self,
        model_name: str,
        tokenizer_name: str | None = None,
        architecture: Literal["causal", "seq2seq"] = "causal",
        format: FormatName = "eou",
        generation_kwargs: dict[str, Any] | None = None,
        max_prompt_length: Count = 192,
        max_length: Count = 32,
    ) -> None:
        lengths: Any = {"max_prompt_length": max_prompt_length, "max_length": max_length}
        kwargs = {"persona_key": "persona", "generation_kwargs": generation_kwargs, **lengths}
        super().__init__(model_name, tokenizer_name, architecture, format, **kwargs)

    def speak(self, turns: Sequence[GoalTurn]) -> list[str]:
        side = self.side
        personas = [with_goal(turn.meta_info.get("persona", ()), turn.goal.name) for turn in turns]
        read = [(turn.history, {"persona": text}) for turn, text in zip(turns, personas, strict=True)]
        answers = self.answers(first_prompts(side, read))
        return [PartnersSide(side).said(ids or ()) for ids in answers]
