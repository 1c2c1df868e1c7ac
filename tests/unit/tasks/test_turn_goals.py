"""Goals of turns, and which one a reply has."""

import pytest

from rl4dialog.catalog import MetricRegistry
from rl4dialog.core.errors import ConfigError
from rl4dialog.tasks import turn_goals

TOPIC_GOALS = turn_goals.GOAL_SETS["get_acquainted"]


@pytest.mark.parametrize("goals", turn_goals.GOAL_SETS.values(), ids=turn_goals.GOAL_SETS)
def test_all_questions_show_their_goal_and_no_other(goals):
    assert len(goals) in (11, 12)
    for goal in goals:
        for question in goal.questions:
            assert turn_goals.said_goal(question, goals) == goal
            assert [other for other in goals if turn_goals.follows(question, other, goals)] == [goal]


def test_facts_and_reactions_of_the_dialogues_have_their_goals():
    for goal, topic in zip(TOPIC_GOALS, turn_goals.TOPICS, strict=True):
        assert all(turn_goals.follows(fact, goal, TOPIC_GOALS) for fact in topic.facts)
    assert all(turn_goals.follows(text, turn_goals.SMALL_TALK_GOAL, TOPIC_GOALS) for text in turn_goals.REACTIONS)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("my pet is a dog . what do you drink ?", "drink"),
        ("what do you drink ? my pet is a dog .", "drink"),
        ("i travel to peru . my pet is a dog .", "pet"),
        ("oh , i see .", None),
        ("", None),
    ],
)
def test_last_question_counts_and_otherwise_the_last_sentence(text, name):
    found = turn_goals.said_goal(text, TOPIC_GOALS)
    assert (found and found.name) == name


def test_goals_of_convogym_have_its_names():
    asked = "kids", "pets", "marital status", "age and gender", "hobbies", "favorite food"
    talked = "work", "travel", "movies", "music", "politics"
    names = {*(f"ask about {each}." for each in asked), *(f"talk about {each}." for each in talked)}
    assert {goal.name for goal in turn_goals.GOAL_SETS["convogym"]} == names


def test_goals_of_a_config():
    own = {"name": "ask about cars .", "questions": ["do you have a car ?"], "words": ["car"]}
    goals = turn_goals.chosen_goals(["pet", "ask about kids.", own, {"name": "be kind"}], "g")
    assert [goal.name for goal in goals] == ["pet", "ask about kids.", "ask about cars .", "be kind"]
    assert goals[2] == turn_goals.TurnGoal(own["name"], ("do you have a car ?",), ("car",)) and goals[3].questions == ()


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ("convogim", "goals: unknown set of goals 'convogim'; did you mean 'convogym'\\?"),
        ([], "goals: .*List should have at least 1 item"),
        (["pets"], "goals\\[0\\]: unknown goal 'pets'; did you mean 'pet'\\?"),
        (["pet", "pet"], "goals: the goal 'pet' is named twice"),
        ([{"questions": ["a ?"]}], "goals\\[0\\]: the key 'name' is missing"),
        ([{"name": " "}], "goals\\[0\\].name: string should match"),
        ([{"name": "a", "question": ["a ?"]}], "goals\\[0\\].question: .*did you mean 'questions'"),
        ([{"name": "a", "words": "b"}], "goals\\[0\\].words: .*valid array"),
    ],
)
def test_what_goals_cannot_be(chosen, message):
    with pytest.raises(ConfigError, match=message):
        MetricRegistry.get("goal_followed", {"goals": chosen})
