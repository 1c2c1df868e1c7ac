import json
import re

import pytest
from echo_model import Echo

from rl4dialog.serving.api_request import ApiError, ChatRequest, parse_request


def parse(messages=None, **keys):
    messages = [{"role": "user", "content": "hi"}] if messages is None else messages
    return parse_request(json.dumps({"model": "echo", "messages": messages, **keys}).encode(), Echo(), "echo")


def said(*turns):
    return [dict(zip(("role", "content"), turn.split(": "), strict=True)) for turn in turns]


def test_messages_are_the_prompt_of_a_chat():
    found = parse(said("system: i am tired", "user: hi", "assistant: HI", "user: so ?"))
    assert found.prompt == "i am tired<EOU>hi<EOU>HI<EOU>so ? <EOU>"
    assert found.n_prompt_tokens == len(found.prompt.split())
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    assert parse([{"role": "user", "content": parts}]).prompt == "a b <EOU>"
    assert parse(said("assistant: HI", "user: so ?")).prompt == "HI<EOU>so ? <EOU>"


def test_without_a_system_message_the_persona_is_that_of_the_training():
    model = Echo()
    model.persona = "i am a dog"
    for messages, prompt in (
        (said("user: hi"), "i am a dog<EOU>hi <EOU>"),
        (said("system: i am tired", "user: hi"), "i am tired<EOU>hi <EOU>"),
        ([{"role": "system", "content": ""}, *said("user: hi")], "hi <EOU>"),
    ):
        body = json.dumps({"model": "echo", "messages": messages}).encode()
        assert parse_request(body, model, "echo").prompt == prompt


def test_settings_are_those_of_the_model_unless_the_request_has_others():
    assert parse() == ChatRequest("hi <EOU>", 2, 1, False, False, (), None, {})
    keys = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 7, "stop": "x", "n": 2, "seed": 3, "stream": True}
    found = parse(**keys, stream_options={"include_usage": True})
    assert (found.n, found.stream, found.include_usage, found.stop, found.seed) == (2, True, True, ("x",), 3)
    assert found.generation_kwargs == {"do_sample": True, "temperature": 0.5, "top_p": 0.9, "max_new_tokens": 7}
    greedy = parse(temperature=0, max_completion_tokens=3, stop=["a", "b"])
    assert greedy.generation_kwargs == {"do_sample": False, "max_new_tokens": 3} and greedy.stop == ("a", "b")


def test_values_without_effect_and_bookkeeping_are_accepted():
    unused = {"frequency_penalty": 0.0, "logprobs": False, "tools": [], "response_format": {"type": "text"}}
    assert parse(user="me", metadata={"a": "b"}, n=None, stop=None, **unused) == parse()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "the body is not valid JSON"),
        (b"\xff", "the body is not valid JSON"),
        (b"[" * 100_000, "the body is not valid JSON"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "one half of a surrogate pair"),
        (b'{"\\ud800": 1}', "one half of a surrogate pair"),
        (b'{"metadata": {"\xed\xa0\x80": 1}}', "one half of a surrogate pair"),
        (b"[]", r"must be a JSON object, not \[\]"),
        (b'{"model": "echo"}', "the key 'messages' is missing"),
        (b'{"messages": []}', "the key 'model' is missing"),
    ],
)
def test_body_that_is_no_request_is_refused(body, words):
    with pytest.raises(ApiError, match=words) as raised:
        parse_request(body, Echo(), "echo")
    assert raised.value.status == 400


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"messages": []}, r"\.messages: list should have at least 1 item"),
        ({"messages": said("robot: hi")}, "message 0 of messages has the unknown role 'robot'"),
        ({"messages": said("system: hi")}, "there is no message before the reply"),
        ({"messages": said("user: hi", "user: hi")}, "messages 0 and 1 are both of 'user'"),
        ({"messages": said("user: hi", "assistant: HI")}, "message 1, the last before the reply, is"),
        ({"messages": said("user: a", "system: b", "user: c")}, "message 1 has the role system, which has no place"),
        ({"messages": said("user: a<EOU>b")}, "cannot contain <EOU>"),
        ({"messages": said("user: a", "assistant: <EOU>", "user: b")}, "cannot contain <EOU>"),
        ({"messages": [{"role": "user", "content": None}]}, "content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "content"),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [1]}]}, "message 0 .* has tool_calls"),
        ({"messages": [{"role": "user", "content": "x", "image": "y"}]}, "image"),
        ({"model": "gpt-5"}, "unknown model 'gpt-5'; this server has 'echo'"),
        ({"temperature": -1}, r"\.temperature: input should be greater than or equal to 0"),
        ({"temperature": "hot"}, r"\.temperature: input should be a valid number, got 'hot'"),
        ({"top_p": 0}, r"\.top_p"),
        ({"n": 0}, r"\.n"),
        ({"n": 17}, r"\.n: input should be less than or equal to 16"),
        ({"max_tokens": 0}, r"\.max_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "set either max_tokens or max_completion_tokens"),
        ({"stop": [""]}, r"\.stop"),
        ({"stop": 3}, r"\.stop: input should be a valid list, got 3"),
        ({"stop": list("abcde")}, r"\.stop: list should have at most 4 items"),
        ({"stop": "a" * 1001}, r"\.stop\[0\]: string should have at most 1000 characters"),
        ({"temperature": 1e-39}, "temperature must be at least 1e-15, or 0 for the most likely token, not 1e-39"),
        ({"stream_options": {}}, "works only with stream: true"),
        ({"tools": [{"type": "function"}]}, "tools is not supported"),
        ({"logprobs": True}, "logprobs is not supported"),
        ({"temprature": 1}, "unknown key 'temprature'; this server knows: model, messages"),
    ],
)  # fmt: skip
def test_request_that_cannot_be_answered_is_refused(keys, words):
    with pytest.raises(ApiError) as raised:
        parse(**keys)
    body = raised.value.body()["error"]
    assert raised.value.status == 400 and body["type"] == "invalid_request_error"
    assert re.search(words, body["message"]), body["message"]
    assert body["param"] == next(iter(keys))
