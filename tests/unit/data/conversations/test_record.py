"""Lines of a conversation log: what is written is read back, and what is wrong is named."""

import json
import math

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import AGENT, PARTNER, SYSTEM_KEY, Dialogue, Turn
from rl4dialog.data.conversations.record import logged_record, read_dialogues
from rl4dialog.data.rows import Row

WHOLE = Dialogue(
    "g17",
    (
        Turn("an earlier reply", AGENT),
        Turn("hello", PARTNER),
        Turn("hi", AGENT, reward=0.5, ids=(4, 0), token_rewards=(0.25, 0.0), log_probs=(-0.5, -1.25)),
        Turn("", PARTNER),
        Turn("are you there", AGENT, reward=-1.0, truncated=True, ids=(7,)),
        Turn("bye", PARTNER),
    ),
    meta_data={"word": "crane", SYSTEM_KEY: "You are polite."},
    n_given=2,
    outcome={"success": 1.0},
    ended_by="length",
    terminated=False,
    tokenizer="9f2c",
)


def read(record, agent="assistant"):
    """The conversations of a line of a file."""
    return read_dialogues(Row(json.loads(json.dumps(record)), "log.jsonl:3"), 2, agent)


def test_conversation_is_read_as_it_was_written():
    record = logged_record(WHOLE)
    assert record["rewards"] == [None, 0.5, -1.0] and record["n_given"] == 3
    assert read(record) == [WHOLE]
    record = logged_record(Dialogue(0, (Turn("a", PARTNER), Turn("b", AGENT, reward=math.nan))))
    assert record["rewards"] == [None]
    assert read(record)[0].turns[1].reward == 0.0
    record = {"messages": [{"role": "visitor", "content": "a"}, {"role": "guide", "content": "b"}]}
    assert read(record, agent="guide")[0].turns == (Turn("a", PARTNER), Turn("b", AGENT))
    assert read({**record, "agent": "visitor"}, agent="guide")[0].turns == (Turn("a", AGENT), Turn("b", PARTNER))


def test_partner_that_says_nothing_has_empty_messages():
    """The datapool ``conversational`` needs a user's message before each reply."""
    record = logged_record(Dialogue(0, (Turn("a", AGENT), Turn("b", AGENT))))
    assert [message["content"] for message in record["messages"]] == ["", "a", "", "b"]
    assert read(record)[0].turns == (Turn("a", AGENT), Turn("", PARTNER), Turn("b", AGENT))
    assert [read({**record, "n_given": n})[0].n_given for n in (0, 2)] == [0, 1], "the first message is left out"


def line(**keys):
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "more"},
        {"role": "assistant", "content": "no"},
    ]
    return {"messages": messages, **keys}


def with_message(number, **keys):
    record = line(tokenizer="9f2c")
    record["messages"][number] |= keys
    return record


def rewards_of(record):
    return [turn.reward for turn in read(record)[0].turns if turn.speaker == AGENT]


def test_rewards_of_messages_and_of_the_conversation_add_up():
    assert rewards_of(line()) == [0.0, 0.0]
    assert rewards_of(line(reward=2)) == [0.0, 2.0], "on the last token of the agent"
    assert rewards_of(line(rewards=[1, 0.5], reward=2)) == [1.0, 2.5]
    assert rewards_of({**with_message(1, reward=1.0), "reward": -1}) == [1.0, -1.0]
    assert read(line())[0].terminated and not read(line(terminated=False))[0].terminated
    assert read(line())[0].id == 2, "the number of the line"


def test_self_play_is_read_from_either_side():
    messages = [
        {"role": "system", "content": "A bicycle is for sale."},
        {"role": "buyer", "content": "80?", "reward": 0.0},
        {"role": "seller", "content": "no", "reward": 1.0, "token_ids": [3, 4]},
        {"role": "buyer", "content": "90?", "reward": 2.0},
    ]
    buyer, seller = read({"id": "d", "agent": ["buyer", "seller"], "tokenizer": "9f2c", "messages": messages})
    assert (buyer.id, seller.id) == ("d_buyer", "d_seller")
    assert buyer.turns == (Turn("80?", AGENT), Turn("no", PARTNER), Turn("90?", AGENT, reward=2.0))
    assert seller.turns == (Turn("80?", PARTNER), Turn("no", AGENT, reward=1.0, ids=(3, 4)), Turn("90?", PARTNER))
    assert seller.meta_data == {SYSTEM_KEY: "A bicycle is for sale."}
    listed = {"agent": ["buyer", "seller"], "messages": [{"role": m["role"], "content": ""} for m in messages[1:]]}
    both = read({**listed, "rewards": [1, 2, 3]})
    assert [[turn.reward for turn in each.turns if turn.speaker == AGENT] for each in both] == [[1, 3], [2]]


SAID_TWICE = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}]
SPOKEN_BY_THREE = [{"role": role, "content": ""} for role in "abc"]
WRONG = {
    "version": (line(version=2), "version: input should be 1, got 2"),
    "no_messages": (line(messages=[]), "messages must be a list of messages with role and content, not []"),
    "role": (with_message(2, role="usr"), "message 2 has the unknown role 'usr'; did you mean 'user'?"),
    "no_role": (with_message(2, role=None), "message 2 of messages has the unknown role None"),
    "speakers": ({"agent": "a", "messages": SPOKEN_BY_THREE}, "messages has 3 speakers (a, b, c)"),
    "no_agent": (line(messages=line()["messages"][:1]), "no message of the agent 'assistant' (roles: user)"),
    "no_agent_after": (line(n_given=4), "messages has no message of the agent 'assistant' after n_given: 4"),
    "agent": (line(agent="asistant"), "no message of the agent 'asistant'; did you mean 'assistant'?"),
    "agents": (line(agent=[]), "agent: input should be a valid string or List should have at least 1 item"),
    "twice": (line(messages=SAID_TWICE), "messages 0 and 1 are both of 'user', but the two sides must alternate"),
    "system": (with_message(2, role="system"), "message 2 has the role system, which has no place"),
    "n_given": (line(n_given=5), "n_given is 5, but there are 4 messages"),
    "both": ({**with_message(1, reward=1), "rewards": [1, 2]}, "rewards and the reward of a message are both given"),
    "n_rewards": (line(rewards=[1.0]), "rewards must have one number per message of the agent, 2, not 1"),
    "some_rewards": (line(rewards=[1.0, None]), "rewards has no number (null) for some messages after n_given: 0"),
    "nan": (line(rewards=[math.nan, 0]), "rewards[0]: input should be a finite number, got nan"),
    "large": (with_message(1, reward=1e16), "messages[1].reward: input should be less than or equal to 1000000"),
    "given": (line(n_given=2, rewards=[1.0, 0.0]), "message 1 has a reward, but is one of the n_given: 2"),
    "whose": (line(agent=["assistant", "user"], reward=1), "reward does not say which of several agents gets it"),
    "users": (with_message(0, reward=1.0), "message 0 has reward, but is not the agent's (role: user)"),
    "negative": (with_message(1, token_ids=[1, -1]), "messages[1].token_ids[1]: input should be greater than"),
    "no_ids": (with_message(1, token_ids=[]), "messages[1].token_ids: list should have at least 1 item"),
    "hash": ({**with_message(1, token_ids=[1]), "tokenizer": None}, "message 1 has token_ids, but the line has no tok"),
    "length": (with_message(1, token_ids=[1, 2], token_rewards=[0.5]), "has 1 token_rewards, but 2 token_ids"),
    "empty": (with_message(1, token_rewards=[]), "message 1 has 0 token_rewards, but no token_ids"),
    "no_length": (with_message(1, log_probs=[-0.5]), "message 1 has 1 log_probs, but no token_ids"),
    "log_probs": (with_message(1, token_ids=[1], log_probs=[-math.inf]), "messages[1].log_probs[0]: input should be"),
    "terminated": (line(terminated=1), "terminated: input should be a valid boolean, got 1"),
    "ended_by": (line(ended_by="time"), "ended_by: input should be 'agent', 'partner', 'max_turns' or 'length', got"),
    "outcome": (line(outcome={"success": "yes"}), "outcome.success: input should be a valid number, got 'yes'"),
    "id": (line(id=[1]), "column 'id' must contain text, not [1]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_line_is_named_with_file_and_line(name):
    record, message = WRONG[name]
    with pytest.raises(DataError) as error:
        read(record)
    assert str(error.value).startswith("log.jsonl:3: ") and message in str(error.value)
