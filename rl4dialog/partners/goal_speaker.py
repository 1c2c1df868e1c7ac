"""A frozen language model that speaks for an agent which chooses goals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from rl4dialog.core.arguments import Count
from rl4dialog.data.dialogue_format import FormatName
from rl4dialog.data.dialogue_text import with_goal
from rl4dialog.envs.outside_partner import PartnersSide, first_prompts
from rl4dialog.partners.language_model import LanguageModelPartner
from rl4dialog.tasks.turn_goals import GoalTurn, Speaker


class LanguageModelSpeaker(Speaker):
    """A frozen language model, which reads the goal after its persona, and speaks in all conversations in one batch.

    Args:
        model_name: Folder or hub id of the model, such as ``model/`` of a supervised run on ``get_acquainted`` with
            ``goals_in_prompt``.
        tokenizer_name: Folder or hub id of its tokenizer; by default that of the model.
        architecture: ``causal`` for decoder-only models, ``seq2seq`` for encoder-decoders.
        format: Format of its prompts: ``eou`` or ``chat_template``. Its own utterances are those of the assistant.
        generation_kwargs: Sampling settings; by default it samples from the whole distribution.
        max_prompt_length: Maximum length of its prompts, passed by the run.
        max_length: Maximum number of tokens of an utterance, passed by the run.

    Raises:
        ConfigError: If the model has random weights or too few positions, or a generation setting is invalid.
        ModelError: If the model cannot be loaded.
        DataError: If its chat template does not support conversations.
    """

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
        self._model = _Model(
            model_name,
            tokenizer_name,
            architecture,
            format,
            "persona",
            generation_kwargs,
            max_prompt_length,
            max_length,
        )

    def speak(self, turns: Sequence[GoalTurn]) -> list[str]:
        side = self._model.side
        personas = [with_goal(turn.meta_info.get("persona", ()), turn.goal.name) for turn in turns]
        read = [(turn.history, {"persona": text}) for turn, text in zip(turns, personas, strict=True)]
        answers = self._model.answers(first_prompts(side, read))
        return [PartnersSide(side).said(ids or ()) for ids in answers]


class _Model(LanguageModelPartner):
    _who, _length_key = "speaker 'lm'", "env.args.max_utterance_length"
