"""A reward model's score of whole conversations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from reward_models import save_reward_model

from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn
from rl4dialog.data.dialogue_text import dialogue_text
from rl4dialog.metrics.sequence_classifier import SequenceClassifier
from rl4dialog.rewards.conversation_reward_model import ConversationRewardModel

TURNS = tuple(
    Turn(text, speaker)
    for text, speaker in [
        ("hello there", PARTNER),
        ("how are you?", AGENT),
        ("fine", PARTNER),
        ("good to know", AGENT),
        ("hello", PARTNER),
    ]
)
DIALOGUE = Dialogue(1, TURNS, n_given=1)
OTHER = replace(DIALOGUE, turns=TURNS[:3])


def scores_of(name: str, *dialogues: Dialogue) -> list[float]:
    classifier = SequenceClassifier.from_pretrained(name, truncation_side="left")
    return [classifier.logits([dialogue_text(dialogue)])[0, 0].item() for dialogue in dialogues]


def test_score_is_paid_at_the_end(tmp_path: Path) -> None:
    name = save_reward_model(tmp_path, "dialogue")
    reward = ConversationRewardModel(name)
    ((expected,), found) = (scores_of(name, DIALOGUE), reward([OTHER, DIALOGUE], [False, True]))
    assert found == [0.0, pytest.approx(expected, abs=1e-6)]
    assert reward([OTHER], [False]) == [0.0]


def test_changes_by_turn_sum_to_the_score(tmp_path: Path) -> None:
    name = save_reward_model(tmp_path, "dialogue")
    first, last = scores_of(name, OTHER, DIALOGUE)
    found = ConversationRewardModel(name, "every_turn")([OTHER, DIALOGUE], [False, True])
    assert found == [0.0, pytest.approx([first, last - first], abs=1e-6)]


def test_model_of_replies_and_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not the folder of a reward model"):
        ConversationRewardModel(str(tmp_path))
    with pytest.raises(ConfigError, match="scores replies; use it as the reward learned_reward"):
        ConversationRewardModel(save_reward_model(tmp_path, "reply"))
