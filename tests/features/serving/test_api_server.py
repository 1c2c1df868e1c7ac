import asyncio
import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import product
from types import SimpleNamespace

import httpx
import pytest
from echo_model import Echo

from rl4dialog.core.errors import ModelError
from rl4dialog.features.serving.api_server import ApiError, ChatRequest, Completions, make_app, parse_request, stopped
from rl4dialog.features.serving.replies import PartialReply
from rl4dialog.features.serving.server import Address


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
    assert parse(user="me", metadata={"a": "b"}, n=None, stop=None, audio=None, web_search={}, **unused) == parse()
    messages = [{"role": "user", "content": "hi", "name": "Ann", "audio": None, "annotations": [], "x": "", "y": {}}]
    assert parse(messages) == parse()


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
        ({"messages": []}, r"invalid: messages: list should have at least 1 item"),
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
        ({"messages": [{"role": "user", "content": "x", "image": "y"}]}, "request: 'image' of messages: unknown key"),
        ({"messages": [{"role": "assistant", "content": "x", "audio": {"id": "a"}}]}, "'audio' of messages: unknown"),
        ({"messages": ["hi"]}, r"invalid: messages\[0\]: input should be a valid dictionary, got 'hi'"),
        ({"model": "gpt-5"}, "unknown model 'gpt-5'; this server has 'echo'"),
        ({"temperature": -1}, r"invalid: temperature: input should be greater than or equal to 0"),
        ({"temperature": "hot"}, r"invalid: temperature: input should be a valid number, got 'hot'"),
        ({"top_p": 0}, r"invalid: top_p"),
        ({"n": 0}, r"invalid: n"),
        ({"n": 17}, r"invalid: n: input should be less than or equal to 16"),
        ({"max_tokens": 0}, r"invalid: max_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "set either max_tokens or max_completion_tokens"),
        ({"stop": [""]}, r"invalid: stop"),
        ({"stop": 3}, r"invalid: stop: input should be a valid list, got 3"),
        ({"stop": list("abcde")}, r"invalid: stop: list should have at most 4 items"),
        ({"stop": "a" * 1001}, r"invalid: stop\[0\]: string should have at most 1000 characters"),
        ({"temperature": 1e-39}, "temperature must be at least 0.01, or 0 for the most likely token, not 1e-39"),
        ({"stream_options": {}}, "works only with stream: true"),
        ({"tools": [{"type": "function"}]}, "tools is not supported"),
        ({"logprobs": True}, "logprobs is not supported"),
        ({"temprature": 1}, "temprature: unknown key; did you mean 'temperature'"),
    ],
)  # fmt: skip
def test_request_that_cannot_be_answered_is_refused(keys, words):
    with pytest.raises(ApiError) as raised:
        parse(**keys)
    body = raised.value.body()["error"]
    assert raised.value.status == 400 and body["type"] == "invalid_request_error"
    assert re.search(words, body["message"]), body["message"]
    assert body["param"] == next(iter(keys))


@pytest.mark.parametrize(
    ("n_letters", "limit", "n_cut", "words"),
    [
        (20_001, 8, 0, "the messages have 20,001 characters, but the model reads at most 8 tokens"),
        (70_000, 1000, 0, "the messages have 70,000 characters, but the model reads at most 1,000 tokens"),
        (9, 8, 3, "the last message alone needs 11 tokens, but the model reads at most 8 tokens"),
    ],
)
def test_what_the_model_cannot_read_is_refused_before_it_is_tokenized(n_letters, limit, n_cut, words):
    model = Echo()
    model.max_prompt_tokens = limit
    if n_cut:
        model.reads = SimpleNamespace(prompt_ids=[0] * limit, n_dropped=1, n_cut=n_cut)
    else:
        model.read = None  # which is not called
    body = json.dumps({"model": "echo", "messages": said(f"user: {'a' * n_letters}")}).encode()
    with pytest.raises(ApiError, match=words) as raised:
        parse_request(body, model, "echo")
    error = raised.value.body()["error"]
    assert (raised.value.status, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")


openai = pytest.importorskip("openai", reason="needs openai, a part of rl4dialog[dev]")
uvicorn = pytest.importorskip("uvicorn", reason="needs uvicorn, a part of rl4dialog[serve]")


@contextmanager
def serving(model=None, api_key=None):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        app = make_app(model or Echo(), "echo", Address("127.0.0.1", port), api_key)
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="secret", max_retries=0) as client:
            while not server.started:
                time.sleep(0.01)
            yield client
        server.should_exit = True
        thread.join()


def ask(client, *texts, **keys):
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    return client.chat.completions.create(**{"model": "echo", "messages": messages, **keys})


def test_whole_replies():
    model = Echo()
    with serving(model) as client:
        found = ask(client, "hi there", temperature=0.5, seed=4, n=2)
        assert [choice.message.content for choice in found.choices] == ["HI THERE"] * 2
        assert [choice.index for choice in found.choices] == [0, 1]
        assert found.choices[0].finish_reason == "stop" and found.model == "echo"
        assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (3, 4, 7)
        (prompt, seed, kwargs), (_, other, _) = model.asked
        assert (prompt, seed, kwargs) == ("hi there <EOU>", 4, {"do_sample": True, "temperature": 0.5})
        assert other not in (None, seed)
        assert ask(client, "a", "A", "silence").choices[0].message.content == ""
        assert model.asked[-1][0] == "a<EOU>A<EOU>silence <EOU>"
        said = [
            {"role": "user", "content": "hi"},
            found.choices[0].message.model_dump(),
            {"role": "user", "content": "so"},
        ]
        ask(client, messages=said)
        assert model.asked[-1][0] == "hi<EOU>HI THERE<EOU>so <EOU>"


def test_streamed_replies_are_the_whole_ones():
    with serving() as client:
        chunks = list(ask(client, "a b c", stream=True, n=2, stream_options={"include_usage": True}))
        *replies, usage = chunks
        for index in (0, 1):
            own = [chunk.choices[0] for chunk in replies if chunk.choices[0].index == index]
            assert [choice.delta.content for choice in own] == ["", "A", " B", " C", None]
            assert own[0].delta.role == "assistant"
            assert [choice.finish_reason for choice in own] == [None] * 4 + ["stop"]
        assert len({chunk.id for chunk in chunks}) == 1 and usage.usage.total_tokens == 4 + 6


@pytest.mark.parametrize(
    ("stop", "text"),
    [("C", "A B"), (["x", "B C"], "A"), ("CD", "A B C"), ("B", "A"), (["C", "A"], ""), ("D ", "A B C")],
)
def test_reply_ends_before_a_stop_text(stop, text):
    with serving() as client:
        assert ask(client, "a b c", stop=stop).choices[0].message.content == text
        chunks = [chunk.choices[0].delta.content or "" for chunk in ask(client, "a b c", stop=stop, stream=True)]
        assert "".join(chunks) == text


class Revising(Echo):
    def stream(self, *args, **kwargs):
        yield PartialReply("A B", (1, 2), False)
        yield PartialReply("AB", (1, 2), True, ended=False)


def test_reply_at_the_length_limit_and_a_reply_that_is_revised():
    with serving(Revising()) as client:
        choice = ask(client, "x").choices[0]
        assert (choice.message.content, choice.finish_reason) == ("AB", "length")
        with pytest.raises(openai.APIError, match="revised text that was already sent"):
            list(ask(client, "x", stream=True))


def test_models_are_listed():
    with serving() as client:
        assert [model.id for model in client.models.list()] == ["echo"]
        assert client.models.retrieve("echo").owned_by == "rl4dialog"
        with pytest.raises(openai.NotFoundError, match="unknown model; this server has 'echo'"):
            client.models.retrieve("other")


def test_errors_have_openais_form():
    with serving() as client:
        with pytest.raises(openai.BadRequestError) as raised:
            ask(client, "hi", model="other")
        assert raised.value.code == "model_not_found" and raised.value.param == "model"
        with pytest.raises(openai.BadRequestError, match="best_of: unknown key"):
            ask(client, "hi", extra_body={"best_of": 2}, stream=True)
        with pytest.raises(openai.APIStatusError, match="requests are limited to") as too_large:
            ask(client, "x" * 2**20)
        assert too_large.value.status_code == 413
        with pytest.raises(openai.NotFoundError, match="POST /v1/embeddings is not supported; known: POST /v1/chat"):
            client.embeddings.create(model="echo", input="x")
        url = f"{client.base_url}chat/completions"
        assert httpx.post(url, content="{").json()["error"]["type"] == "invalid_request_error"
        assert httpx.get(url).status_code == 405
        refused = httpx.post(url, json={}, headers={"Origin": "http://example.org"})
        assert refused.status_code == 403 and "example.org" in refused.json()["error"]["message"]
        refused = httpx.get(url, headers={"Host": "example.org"})
        assert refused.status_code == 403 and "rl4dialog serve --allow_host" in refused.json()["error"]["message"]


def test_model_that_fails_is_an_error_and_the_server_lives():
    model = Echo()
    with serving(model) as client:
        model.fails_with = ModelError("no weights")
        with pytest.raises(openai.InternalServerError, match="no weights"):
            ask(client, "a b")
        with pytest.raises(openai.APIError, match="no weights"):
            list(ask(client, "a b", stream=True))
        model.fails_with = ZeroDivisionError("oh")
        with pytest.raises(openai.InternalServerError, match="ZeroDivisionError: oh"):
            ask(client, "a b")
        model.fails_with = None
        assert ask(client, "a b").choices[0].message.content == "A B"


def test_key_is_required_if_there_is_one():
    with serving(api_key="secret") as client:
        assert ask(client, "a").choices[0].message.content == "A"
        with pytest.raises(openai.AuthenticationError, match="the API key is missing or wrong"):
            ask(client.with_options(api_key="s"), "a")
        for headers in ({}, {"Authorization": "Bearer s\u00e9cret".encode("latin-1")}):
            assert httpx.get(f"{client.base_url}models", headers=headers).status_code == 401


class Slow(Echo):
    n_running = most_running = n_tokens = 0

    def stream(self, *args, **kwargs):
        self.n_running += 1
        self.most_running = max(self.most_running, self.n_running)
        try:
            for part in super().stream(*args, **kwargs):
                self.n_tokens += 1
                time.sleep(0.02)
                yield part
        finally:
            self.n_running -= 1


def test_messages_that_the_model_does_not_read_are_counted_in_the_answer():
    model = Echo()
    with serving(model) as client:
        for n in (0, 2):
            model.reads = SimpleNamespace(prompt_ids=[0], n_dropped=n, n_cut=0)
            answers = [ask(client, "a", "b", "c"), *ask(client, "a", "b", "c", stream=True)]
            assert len(answers) > 2 and {answer.model_dump().get("dropped_messages", 0) for answer in answers} == {n}


def test_others_are_answered_while_a_prompt_is_read():
    model, listed = Echo(), threading.Event()

    def read(prompt):
        assert listed.wait(60)
        return Echo().read(prompt)

    model.read = read
    with serving(model) as client, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(ask, client, "a b")
        assert client.models.list().data
        listed.set()
        assert slow.result().choices[0].message.content == "A B"


def test_concurrent_requests_are_answered_one_after_the_other():
    model = Slow()
    with serving(model) as client, ThreadPoolExecutor(6) as pool:
        texts = [f"a{i} b c" for i in range(6)]
        replies = list(pool.map(lambda text: ask(client, text).choices[0].message.content, texts))
    assert replies == [text.upper() for text in texts] and model.most_running == 1


@pytest.mark.parametrize("stream", [False, True])
def test_client_that_left_costs_nothing_more(stream):
    model = Slow()
    with serving(model) as client:
        body = {"model": "echo", "messages": [{"role": "user", "content": "a " * 500}], "n": 16, "stream": stream}
        content = json.dumps(body)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost:{client.base_url.port}\r\n"
        with ExitStack() as left:
            for _ in range(5):
                one = left.enter_context(socket.create_connection((client.base_url.host, client.base_url.port)))
                one.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n{content}".encode())
            while not model.n_tokens:
                time.sleep(0.01)
        assert ask(client, "a b").choices[0].message.content == "A B"
    assert len(model.asked) <= 6 and model.n_tokens < 200  # no further choice; at most the token in progress


def test_client_that_does_not_read_does_not_hold_up_others():
    async def read_one_event_while_another_asks():
        completions = Completions(Echo(), "echo")
        slow = completions.events(ChatRequest("a b c", 3, 2, True, False, (), None, {}))
        begun = [await anext(slow)]
        other = await asyncio.wait_for(completions.whole(ChatRequest("x y", 2, 1, False, False, (), None, {})), 60)
        assert other["choices"][0]["message"]["content"] == "X Y"
        return begun + [event async for event in slow]

    events = asyncio.run(read_one_event_while_another_asks())
    assert len(events) == 2 * 5 + 1 and events[-1] == "data: [DONE]\n\n"


def test_beginning_of_a_stop_text_is_held_back_as_a_naive_search_would():
    texts = ["".join(characters) for n in range(6) for characters in product("ab", repeat=n)]
    for stop in filter(None, texts):
        for text in texts:
            sizes = [n for n in range(len(stop)) if text.endswith(stop[:n])]
            parts = stopped(iter([PartialReply(text, (), False)]), [stop])
            assert stop in text or next(parts).text == text[: len(text) - max(sizes)]
