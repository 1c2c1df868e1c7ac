import asyncio
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import product

import httpx
import pytest
from echo_model import Echo

from rl4dialog.core.errors import ModelError
from rl4dialog.policies.answering import PartialReply
from rl4dialog.serving.api_request import ChatRequest
from rl4dialog.serving.api_server import Completions, make_app, stopped
from rl4dialog.serving.server import Address

openai = pytest.importorskip("openai", reason="needs openai, a part of rl4dialog[dev]")
uvicorn = pytest.importorskip("uvicorn", reason="needs uvicorn, a part of rl4dialog[serve]")


@contextmanager
def serving(model=None, api_key=None):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        app = make_app(model or Echo(), "echo", Address("127.0.0.1", port), api_key)
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
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
        with pytest.raises(openai.BadRequestError, match="unknown key 'best_of'"):
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
