"""A dialogue with an agent that says what the test wants."""

from __future__ import annotations

import pytest
from cafe_agent import Cafe

from rl4dialog.core.errors import ConfigError
from rl4dialog.serving.task_chat import TaskChat, in_words
from rl4dialog.tasks.dialogue_acts.acts import DialogueAct


def test_goodbye_ends_and_scores_the_dialogue() -> None:
    chat = TaskChat(Cafe())
    chat.draw_goal()
    assert chat.goal == "Find tea." and chat.record() is None
    chat.say("tea?")
    assert not chat.is_over
    chat.say("bye")
    assert chat.is_over and chat.score == "Success: the goal is reached."
    record = chat.record()
    assert record is not None and (record["goal_text"], record["success"]) == ("Find tea.", True)
    assert [each["content"] for each in record["messages"]] == ["tea?", "There is tea.", "bye", "Goodbye."]


def test_what_is_said_after_the_end_begins_a_dialogue_without_a_goal() -> None:
    chat = TaskChat(Cafe())
    chat.draw_goal()
    chat.say("tea?")
    chat.end()
    assert chat.is_over
    chat.say("tea?")
    assert (chat.is_over, chat.goal, chat.score, len(chat.turns)) == (False, "", "", 1)
    assert chat.record() == {
        "messages": [{"role": "user", "content": "tea?"}, {"role": "assistant", "content": "There is tea."}],
        "model": "cafe agent",
    }


def test_only_a_dialogue_about_a_goal_is_ended_and_only_once() -> None:
    chat = TaskChat(Cafe())
    chat.say("tea?")
    with pytest.raises(ConfigError, match="there is no dialogue about a goal to score; begin one"):
        chat.end()
    chat.draw_goal()
    assert chat.turns == []
    with pytest.raises(ConfigError, match=r"\(/goal\)"):
        chat.end()
    chat.say("hm")
    chat.end()
    assert chat.score == "Failure: cafe: drink not told."
    with pytest.raises(ConfigError, match="there is no dialogue about a goal"):
        chat.end()


def test_what_is_too_long_or_not_understood_is_no_turn() -> None:
    chat = TaskChat(Cafe())
    revision = chat.revision
    with pytest.raises(ConfigError, match="nothing was understood, so the agent did not answer; it knows: cafe"):
        chat.say("blah")
    with pytest.raises(ConfigError, match="a message can have at most 2000 characters, not 2001; shorten it"):
        chat.say("a" * 2001)
    assert chat.turns == [] and chat.revision == revision
    chat.say("a" * 2000)


def test_what_is_not_understood_after_the_end_leaves_the_dialogue() -> None:
    chat = TaskChat(Cafe())
    chat.draw_goal()
    chat.say("tea?")
    chat.say("bye")
    record = chat.record()
    with pytest.raises(ConfigError, match="nothing was understood"):
        chat.say("blah")
    assert chat.is_over and chat.score == "Success: the goal is reached." and chat.record() == record


def test_a_reply_that_fails_is_no_dialogue_to_score() -> None:
    agent = Cafe()
    chat = TaskChat(agent)
    chat.draw_goal()
    agent.fails_with = RuntimeError("out of memory")
    with pytest.raises(RuntimeError):
        chat.say("tea?")
    agent.n_replies = 1  # an agent that counts what it was asked
    with pytest.raises(ConfigError, match="there is no dialogue about a goal"):
        chat.end()
    assert not chat.is_over


def test_chats_have_different_revisions() -> None:
    assert TaskChat(Cafe()).revision != TaskChat(Cafe()).revision


def test_every_change_has_a_revision() -> None:
    chat, seen = TaskChat(Cafe()), []
    for change in (chat.draw_goal, lambda: chat.say("tea?"), chat.end, chat.reset, chat.draw_goal):
        change()
        seen.append(chat.revision)
    assert len(set(seen)) == len(seen)


def test_acts_are_written_as_they_can_be_typed() -> None:
    acts = [DialogueAct("request", "cafe", "drink"), DialogueAct("inform", "cafe", "drink", "tea")]
    assert in_words(acts) == "cafe-request(drink) cafe-inform(drink=tea)" and in_words([]) == "none"
