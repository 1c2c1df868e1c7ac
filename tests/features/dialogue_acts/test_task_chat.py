import json

import pytest
from cafe_agent import Cafe
from page_client import Tab
from page_process import served_page

from rl4dialog.core.errors import ConfigError
from rl4dialog.features.dialogue_acts.task_chat import TaskChat, TaskPage, TaskTerminalChat, in_words
from rl4dialog.features.dialogue_acts.tasks.acts import DialogueAct


def test_what_is_said_after_the_end_begins_a_dialogue_without_a_goal():
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


def test_only_a_dialogue_about_a_goal_is_ended_and_only_once():
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


def test_what_is_too_long_or_not_understood_is_no_turn():
    chat = TaskChat(Cafe())
    revision = chat.revision
    with pytest.raises(ConfigError, match="nothing was understood, so the agent did not answer; it knows: cafe"):
        chat.say("blah")
    with pytest.raises(ConfigError, match="a message can have at most 2000 characters, not 2001; shorten it"):
        chat.say("a" * 2001)
    assert chat.turns == [] and chat.revision == revision
    chat.say("a" * 2000)


def test_what_is_not_understood_after_the_end_leaves_the_dialogue():
    chat = TaskChat(Cafe())
    chat.draw_goal()
    chat.say("tea?")
    chat.say("bye")
    record = chat.record()
    with pytest.raises(ConfigError, match="nothing was understood"):
        chat.say("blah")
    assert chat.is_over and chat.score == "Success: the goal is reached." and chat.record() == record


def test_a_reply_that_fails_is_no_dialogue_to_score():
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


def test_every_change_has_a_revision():
    chat, seen = TaskChat(Cafe()), [TaskChat(Cafe()).revision]
    for change in (chat.draw_goal, lambda: chat.say("tea?"), chat.end, chat.reset, chat.draw_goal):
        change()
        seen.append(chat.revision)
    assert chat.record() is None
    assert len(set(seen)) == len(seen)


def test_acts_are_written_as_they_can_be_typed():
    acts = [DialogueAct("request", "cafe", "drink"), DialogueAct("inform", "cafe", "drink", "tea")]
    assert in_words(acts) == "cafe-request(drink) cafe-inform(drink=tea)" and in_words([]) == "none"


AGENTS = []


def begin():
    AGENTS.append(Cafe())
    return AGENTS[-1]


@pytest.fixture(scope="module")
def address():
    with served_page(lambda: TaskPage(begin)) as found:
        yield found


def send(tab, text, acts=True):
    tab.act("send", text=text, acts=acts)


def can_end(tab):
    return bool(tab.props["done"]["interactive"] and tab.props["done"]["visible"])


def test_dialogue_about_a_goal_is_scored_at_its_end(address):
    tab = Tab(address)
    assert "Find tea." in tab.value("help") and tab.turns() == []
    send(tab, "<b>tea</b>?")
    assert tab.turns() == ["<b>tea</b>?", "There is tea."] and can_end(tab)
    assert "understood: cafe-request(drink)" in tab.below(number=0) and "cafe-inform(drink=tea)" in tab.below()
    assert not tab.props["chat-0"]["feedback_options"] and tab.props["chat-0"]["editable"] == "none"
    send(tab, "bye")
    assert "Success: the goal is reached." in tab.below() and "New goal or Free chat begins" in tab.status
    assert not tab.props["text"]["interactive"] and not can_end(tab)
    again = Tab(address, tab.key)
    assert again.turns() == tab.turns() and "Success" in again.below() and not again.props["text"]["interactive"]
    tab.act("goal")
    assert "Find tea." in tab.value("help") and tab.turns() == [] and tab.status == ""
    assert tab.props["text"]["interactive"]
    tab.act("reset")
    assert "Talk about: cafe." in tab.value("help") and "Find tea." not in tab.value("help")
    send(tab, "tea?")
    assert not tab.props["done"]["visible"]
    send(tab, "bye")
    assert "Success" not in tab.below() and not tab.props["text"]["interactive"]


def test_done_ends_the_dialogue_without_a_goodbye(address):
    tab = Tab(address)
    send(tab, "tea?")
    tab.act("done")
    assert "Success: the goal is reached." in tab.below() and len(tab.turns()) == 2
    tab.act("done")
    assert "error: there is no dialogue about a goal to score" in tab.status


def test_acts_are_hidden_on_request(address):
    tab = Tab(address)
    send(tab, "hm", acts=False)
    assert tab.turns() == ["hm", "(nothing)"] and tab.below() == tab.below(number=0) == ""
    tab.act("acts", acts=True)
    assert "understood: cafe" not in tab.below() and "acts: none" in tab.below()


def test_message_that_is_not_understood_stays_in_the_box(address):
    tab = Tab(address)
    send(tab, "blah")
    assert "error: nothing was understood, so the agent did not answer; it knows: cafe" in tab.status
    assert tab.value("text") == "blah" and tab.turns() == []


@pytest.mark.parametrize("name", ["send", "goal", "reset", "done"])
def test_tab_that_shows_an_older_dialogue_changes_nothing(address, name):
    first = Tab(address)
    second = Tab(address, first.key)
    send(second, "tea?")
    first.act(name, text="more?", acts=True)
    assert "error: this page was out of date" in first.status and first.turns() == second.turns()
    first.act("done")
    assert "Success" in first.below()


def talk_to_agent(*lines):
    printed = []
    rest = iter(lines)

    def read(prompt):
        if (line := next(rest, None)) is None:
            raise EOFError
        return line

    TaskTerminalChat(Cafe(), read, printed.append).run()
    return "".join(printed)


def test_commands_are_listed():
    printed = talk_to_agent("/help", "/quit", "never read")
    for name, command in TaskTerminalChat.commands.items():
        assert f"  /{name}" in printed and command.help in printed


NO_GOAL = "error: there is no dialogue about a goal to score; begin one with a new goal (/goal)"
NOT_UNDERSTOOD = "error: nothing was understood, so the agent did not answer; it knows: cafe\n"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["/goal", "what is there to drink?"], ["Goal: Find tea.", "agent: There is tea.\n"]),
        (
            ["/goal", "tea?", "bye", "/done"],
            ["Goodbye.\nSuccess: the goal is reached.\nA new dialogue begins.\n", NO_GOAL],
        ),
        (["tea?", "bye"], ["agent: Goodbye.\nA new dialogue begins.\n\n"]),
        (["hm"], ["agent: (nothing)\n"]),
        (["/goal", "hm", "/done"], ["Failure: cafe: drink not told."]),
        (["blah", "tea?"], [NOT_UNDERSTOOD, "agent: There is tea.\n\n"]),
        (["/gaol"], ["unknown command '/gaol'; did you mean '/goal'? (/help lists the commands)"]),
    ],
)
def test_dialogue_with_an_agent_prints_what_becomes_of_it(lines, words):
    printed = talk_to_agent(*lines)
    assert all(each in printed for each in words)


def test_acts_are_shown_on_request():
    printed = talk_to_agent("tea?", "/acts", "tea?", "/acts", "tea?")
    assert printed.count("  understood: cafe-request(drink)\n") == 1
    assert printed.count("  acts: cafe-inform(drink=tea)\n") == 1


def test_dialogue_is_saved_with_goal_and_success(tmp_path):
    file = tmp_path / "said.jsonl"
    printed = talk_to_agent(f"/save {file}", "/goal", "tea?", "bye", f"/save {file}", "/save x.txt")
    assert "error: there is no conversation to save yet" in printed
    assert "error: /save needs a .jsonl file, not 'x.txt'" in printed
    (record,) = map(json.loads, file.read_text().splitlines())
    assert record["goal_text"] == "Find tea." and record["success"] is True
    assert [message["content"] for message in record["messages"]] == ["tea?", "There is tea.", "bye", "Goodbye."]
