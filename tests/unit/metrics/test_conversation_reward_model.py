"""A reward model's score of conversations, as a metric."""

from __future__ import annotations

from pathlib import Path

import pytest
from reward_models import save_reward_model

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn
from rl4dialog.metrics.conversation_reward_model import ConversationRewardModelMetric
from rl4dialog.rewards.conversation_reward_model import ConversationRewardModel

DIALOGUES = [
    Dialogue(1, (Turn("hello there", PARTNER), Turn("how are you?", AGENT), Turn("fine", PARTNER)), n_given=1),
    Dialogue(2, (Turn("good to know", PARTNER), Turn("hello", AGENT), Turn("hello", PARTNER)), n_given=1),
]


def test_scores_equal_those_of_the_reward(tmp_path: Path) -> None:
    name = save_reward_model(tmp_path, "dialogue")
    found = ConversationRewardModelMetric(name).compute(DIALOGUES)
    expected = ConversationRewardModel(name)(DIALOGUES, [True, True])
    scores, mean = found["conversation/reward_model"]
    assert scores == pytest.approx(expected, abs=1e-6)
    assert mean == pytest.approx(sum(scores or []) / 2)


def test_model_of_replies_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"metric 'conversation_reward_model': .* scores replies"):
        ConversationRewardModelMetric(save_reward_model(tmp_path, "reply"))
