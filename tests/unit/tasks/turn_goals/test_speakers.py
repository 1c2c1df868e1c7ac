"""The scripted speaker."""

from __future__ import annotations

import pytest

from rl4dialog.core.errors import ConfigError
from rl4dialog.tasks.turn_goals.goals import GOAL_SETS, TurnGoal
from rl4dialog.tasks.turn_goals.speakers import GoalTurn, ScriptedSpeaker


def test_scripted_speaker_says_each_of_its_questions() -> None:
    goals, speaker = GOAL_SETS["get_acquainted"], ScriptedSpeaker()
    turns = [GoalTurn(goal, ["hello ."], {}, seed) for goal in goals for seed in range(40)]
    said = speaker.speak(turns)
    assert set(said) == {question for goal in goals for question in goal.questions}
    assert speaker.speak(turns) == said


def test_goal_without_questions_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"speaker 'scripted' .* 'be kind' has none; add questions"):
        ScriptedSpeaker().check([TurnGoal("be kind")])
