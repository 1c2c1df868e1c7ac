"""A reward model's score of whole conversations as a reward."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Literal

from rl4dialog.core.arguments import Count, NonNegative
from rl4dialog.core.protocols import BatchedConversationReward
from rl4dialog.core.types import Dialogue
from rl4dialog.data.dialogue_text import dialogue_text
from rl4dialog.metrics.reward_model import load_reward_model


class ConversationRewardModel(BatchedConversationReward):
    """The score of a conversation by a reward model, paid when the conversation is over.

    Args:
        model_name: Folder of a run with ``alg.id: reward_model`` on ratings of dialogues, or the ``model/`` in it.
        shaping: ``end`` pays the score for the last utterance. ``every_turn`` pays for each utterance the change of the
            score of the conversation so far (a potential, Ng, Harada and Russell 1999), which adds up to the same.
        batch_size: Conversations per forward pass.
        std_penalty: For a reward model with several models (``alg.ensemble``): what is subtracted from their mean score
            per standard deviation of their scores.

    Raises:
        ConfigError: If the model scores single replies, or reads texts of another format.
        ModelError: If it is not a reward model, or cannot be loaded.
    """

    def __init__(
        self,
        model_name: str,
        shaping: Literal["end", "every_turn"] = "end",
        batch_size: Count = 32,
        std_penalty: NonNegative = 0.0,
    ) -> None:
        self._each_turn, self._std_penalty = shaping == "every_turn", std_penalty
        who = "reward 'conversation_reward_model'"
        self._model = load_reward_model(model_name, "dialogue", batch_size, who, std_penalty)

    def __call__(self, dialogues: list[Dialogue], overs: list[bool]) -> list[float | list[float]]:
        read = [self._read(dialogue) if over else [] for dialogue, over in zip(dialogues, overs, strict=True)]
        scores = iter(self._model.scores([text for texts in read for text in texts], self._std_penalty))
        found: list[float | list[float]] = []
        for texts in read:
            own = [next(scores) for _ in texts]
            if self._each_turn and own:
                found.append([own[0], *(after - before for before, after in itertools.pairwise(own))])
            else:
                found.append(own[-1] if own else 0.0)
        return found

    def _read(self, dialogue: Dialogue) -> list[str]:
        """The conversation, or with ``every_turn`` the conversation after each turn, up to the partner's answer."""
        if not self._each_turn:
            return [dialogue_text(dialogue)]
        return [dialogue_text(replace(dialogue, turns=dialogue.turns[:end])) for end in dialogue.turn_bounds[1:]]
