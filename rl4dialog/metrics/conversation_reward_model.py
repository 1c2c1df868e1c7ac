"""A reward model's score of whole conversations."""

from __future__ import annotations

from rl4dialog.core.arguments import Count
from rl4dialog.core.types import Dialogue
from rl4dialog.data.dialogue_text import dialogue_text
from rl4dialog.metrics.per_dialogue_metric import PerDialogueMetric
from rl4dialog.metrics.reward_model import load_reward_model


class ConversationRewardModelMetric(PerDialogueMetric):
    """Score of a conversation by a reward model, such as a held-out one that is not part of the reward.

    Args:
        model_name: Folder of a run with ``alg.id: reward_model`` on ratings of dialogues, or the ``model/`` in it.
        batch_size: Conversations per forward pass.

    Raises:
        ConfigError: If the model scores single replies, or reads texts of another format.
        ModelError: If it is not a reward model, or cannot be loaded.
    """

    def __init__(self, model_name: str, batch_size: Count = 32) -> None:
        self._model = load_reward_model(model_name, "dialogue", batch_size, "metric 'conversation_reward_model'")

    def dialogue_scores(self, dialogues: list[Dialogue]) -> dict[str, list[float]]:
        scores = self._model.scores([dialogue_text(dialogue) for dialogue in dialogues])
        return {"conversation/reward_model": scores}
