"""The partner behind an HTTP server: its requests, its retries and its failures."""

import copy
import gzip
import json
import pickle
import re
import socket
import time
from urllib.parse import parse_qs

import pytest
from http_servers import Server, flood, saying

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.errors import ConfigError, DataError, PartnerError
from rl4dialog.core.time_limit import TimeIsUp, time_limit
from rl4dialog.core.types import PartnerReply, Sample
from rl4dialog.partners.http import HttpPartner
from rl4dialog.tasks.guess_what import BlindPlayer
from rl4dialog.tasks.playing import play

META = {"history": ["hello"], "topic": "tea"}


def make_partner(url, meta_data=None, **args):
    fast = {"retry_wait_s": 0.0, "timeout_s": 5.0}
    partner = PartnerRegistry.get("http", {"url": url, **fast, **args})
    partner.reset(META if meta_data is None else meta_data, seed=7)
    return partner


def test_request_has_the_whole_conversation_and_the_answer_is_read():
    answer = {"text": "yes \u00e9", "reward": -1, "over": True, "outcome": {"success": 1}, "references": ["a"]}
    with Server(saying(**answer)) as server:
        partner = make_partner(server.url, outcomes=["success"], gives_references=True)
        reply = partner.reply(["hello", "tea \ud800 ?"])
        assert reply == PartnerReply("yes \u00e9", reward=-1.0, leaves=True, info={"references": ["a"]})
        assert partner.outcome() == {"success": 1.0}
        (request,) = server.sent()
    assert request.pop("session")
    assert request == {"seed": 7, "meta_data": META, "history": ["hello", "tea \ud800 ?"]}


def test_only_the_text_is_required_and_may_be_null():
    with Server(saying(text=None)) as server:
        assert make_partner(server.url).reply(["hello"]) == PartnerReply(None)


def test_sessions_differ_and_stay_during_a_conversation():
    with Server(saying(text="ok")) as server:
        partner = make_partner(server.url)
        partner.reply(["a"])
        partner.reply(["a", "ok", "b"])
        partner.reset(META, seed=7)
        partner.reply(["a"])
        first, second, other = (request["session"] for request in server.sent())
    assert first == second != other


def test_environments_share_a_connection_that_stays_open():
    with Server(saying(text="ok")) as server:
        partner = make_partner(server.url)
        for _ in range(5):
            partner.reply(["a"])
        copies = [copy.deepcopy(partner), pickle.loads(pickle.dumps(partner))]
        for one in copies:
            assert one.reply(["a", "ok", "b"]) == PartnerReply("ok")
        assert len(server.clients) == 1
        assert len({request["session"] for request in server.sent()}) == 1


def test_opening_is_the_answer_to_an_empty_history():
    with Server(saying(text="good morning")) as server:
        partner = make_partner(server.url, can_open=True)
        assert partner.can_open and partner.open() == PartnerReply("good morning")
        assert server.sent()[0]["history"] == []


def test_only_the_named_meta_data_is_sent():
    with Server(saying(text="ok")) as server:
        make_partner(server.url, {"a": 1, "b": object()}, meta_keys=["a"]).reply(["x"])
        assert server.sent()[0]["meta_data"] == {"a": 1}


def send_half(handler):
    handler.send('{"text": "ye')


def break_off(handler):
    handler.send('{"text": "ye', n_bytes=500)


def hang(handler):
    time.sleep(0.5)
    handler.send('{"text": "late"}')


def drip(handler):
    """Send a byte now and then, each soon enough, but all together too slowly."""
    handler.send(b"", n_bytes=100)
    for _ in range(20):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)


def raw(content, status=200):
    return lambda handler: handler.send(content, status)


def zipped(handler):
    handler.send(gzip.compress(b'{"text": "a"}'), Content_Encoding="gzip")


HTML = "<html><body>Bad gateway</body></html>"
# What the server does, the number of attempts, and what the message says.
FAILURES = {
    "HTML": (raw(HTML), 3, r"did not answer with JSON, but with '<html><body>Bad"),
    "half a JSON": (send_half, 3, r"""did not answer with JSON, but with '\{"text": "ye'"""),
    "broken off": (break_off, 3, r"cannot be reached: RemoteProtocolError"),
    "nested": (raw("[" * 100_000), 3, r"did not answer with JSON"),
    "slow": (hang, 3, r"failed: no answer within 0\.2 s \(env\.args\.partner\.args\.timeout_s\)"),
    "dripping": (drip, 3, r"failed: no answer within 0\.2 s \(env\.args\.partner\.args\.timeout_s\)"),
    "500": (raw("oh no", 500), 3, r"answered with HTTP status 500: 'oh no'"),
    "429": (raw("slow down", 429), 3, r"answered with HTTP status 429"),
    "404": (raw("not here", 404), 1, r"answered with HTTP status 404: 'not here'"),
    "400": (raw('{"error": "no such scene"}', 400), 1, r"status 400: '\{\"error\": \"no such scene\"\}'"),
    "redirection": (raw("", 302), 1, r"answered with HTTP status 302"),
    "NaN": (raw('{"text": "a", "reward": NaN}'), 1, r"answer\.reward: input should be a finite number, got nan"),
    "reward in words": (raw('{"text": "a", "reward": "1"}'), 1, r"\.reward: input should be a valid number, got '1'"),
    "no text": (raw('{"reward": 1}'), 1, r"the key 'text' is missing"),
    "number as text": (raw('{"text": 3}'), 1, r"\.text: input should be a valid string, got 3"),
    "over in words": (raw('{"text": "a", "over": "no"}'), 1, r"\.over: input should be a valid boolean, got 'no'"),
    "unknown key": (raw('{"text": "a", "rewards": 1}'), 1, r"unknown key; did you mean 'reward'\?"),
    "a list": (raw('["a", 1.0]'), 1, r"invalid answer: input should be .*dictionary"),
    "NaN in the outcome": (raw('{"text": "a", "outcome": {"success": NaN}}'), 1, r"\.outcome\.success: .*finite"),
    "endless": (flood, 1, r"answered with more than 4194304 bytes \("),
    "compressed": (zipped, 1, r"answered with the Content-Encoding 'gzip'; answers must not be compressed"),
    "no outcome": (raw('{"text": "a"}'), 1, r"returned the outcome \{\}, without 'success'"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failure_names_the_address_the_session_and_the_attempts(name):
    behave, n_attempts, words = FAILURES[name]
    outcomes = ["success"] if "outcome" in name else None
    with Server(behave) as server:
        partner = make_partner(server.url, timeout_s=0.2 if name in ("slow", "dripping") else 5.0, outcomes=outcomes)
        reply = partner.reply(["hello", "tea ?"])
        assert reply.text is None and reply.failed is not None
        assert re.search(words, reply.failed), reply.failed
        attempts = "1 attempt" if n_attempts == 1 else f"{n_attempts} attempts"
        assert reply.failed.startswith(server.url)
        assert re.search(rf"\(session \w{{32}}, {attempts}\)$", reply.failed), reply.failed
        assert len(server.requests) == n_attempts


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_server_that_is_not_there_is_a_failure():
    url = f"http://127.0.0.1:{free_port()}/"
    failed = make_partner(url, retries=1).reply(["hello", "tea ?"]).failed
    assert failed is not None and failed.startswith(f"{url} cannot be reached: ConnectError: ")
    assert failed.endswith(", 2 attempts)")


def times(n, behave):
    """Behave like this the first times, and then well."""
    left = [None] * n

    def first(handler):
        if left:
            left.pop()
            behave(handler)
        else:
            handler.send('{"text": "ok"}')

    return first


@pytest.mark.parametrize("name", ["HTML", "half a JSON", "broken off", "500", "429"])
@pytest.mark.parametrize("n_failures", [1, 2])
def test_temporary_failures_are_retried_with_the_same_request(name, n_failures):
    with Server(times(n_failures, FAILURES[name][0])) as server:
        assert make_partner(server.url).reply(["hello", "tea ?"]) == PartnerReply("ok")
        assert len(server.requests) == n_failures + 1 and len(set(server.requests)) == 1


def test_waits_double_and_follow_the_server(monkeypatch):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    monkeypatch.setattr("rl4dialog.core.async_calls.asyncio.sleep", sleep)
    with Server(times(3, raw("", 500))) as server:
        make_partner(server.url, retries=3, retry_wait_s=0.5).reply(["a"])
    with Server(times(1, lambda handler: handler.send("", 503, Retry_After="4"))) as server:
        make_partner(server.url, retries=3, retry_wait_s=0.5).reply(["a"])
    assert waits == [0.5, 1.0, 2.0, 4.0]


def test_time_limit_of_the_environment_interrupts_and_the_next_request_is_clean():
    with Server(times(1, hang)) as server:
        partner = make_partner(server.url)
        with pytest.raises(TimeIsUp), time_limit(0.1):
            partner.reply(["a"])
        assert partner.reply(["a"]) == PartnerReply("ok")
        assert len(server.clients) == 2


def test_failed_conversation_names_the_sample():
    with Server(raw("no", 404)) as server, pytest.raises(PartnerError, match=r"sample 'x_1'.*/reply answered.*404"):
        play(BlindPlayer(), HttpPartner(server.url), Sample("x_1", "hello", []), 3, 0)


def visdial_answer(handler):
    handler.send('["a dog", 0.25]', Content_Type="text/html")  # as Flask declares a text


VISDIAL = {"protocol": "visdial_rl", "meta_data": {"img_features": [0.5, -1.0]}}


def test_visdial_rl_sends_the_form_of_its_server():
    with Server(visdial_answer) as server:
        partner = make_partner(server.url, **VISDIAL)
        reply = partner.reply(["a dog & a man", "what is it?", "a dog", "is it big?"])
        assert reply == PartnerReply("a dog", reward=0.25)
        fields = {name: value for name, (value,) in parse_qs(server.requests[0].decode(), strict_parsing=True).items()}
    assert fields.pop("caption") == "a dog & a man"
    assert {name: json.loads(value) for name, value in fields.items()} == {
        "history": [
            {"speaker": "question", "text": "what is it?"},
            {"speaker": "answer", "text": "a dog"},
            {"speaker": "question", "text": "is it big?"},
        ],
        "img_features": [0.5, -1.0],
        "generation_kwargs": {"inference": "greedy", "beamSize": 1},
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"text": "a"}', r"must be \[text, reward\]"),
        ('["a"]', r"must be \[text, reward\]"),
        ('["a", NaN]', r"finite number"),
        ('["a", "b"]', r"valid number, got 'b'"),
        ('[" ", 0.1]', r"an answer without words"),
        ("Internal Server Error", r"did not answer with JSON"),
    ],
)
def test_invalid_answer_of_visdial_rl_is_a_failure(content, words):
    with Server(raw(content)) as server:
        failed = make_partner(server.url, **VISDIAL).reply(["caption", "a ?"]).failed
    assert failed is not None and re.search(words, failed), failed


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"url": "localhost:8000"}, "url of partner 'http' must be an address such as http://localhost:8000/reply"),
        ({"url": "http://me:pw@localhost"}, "must not contain credentials"),
        ({"protocol": "xml"}, "protocol"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"retries": -1}, "retries"),
        ({"protocol": "visdial_rl", "outcomes": ["rank"]}, "outcomes cannot be set with protocol: visdial_rl"),
        ({"protocol": "visdial_rl", "can_open": True}, "can_open cannot be set"),
        ({"generation_kwargs": {"beamSize": 2}}, "generation_kwargs cannot be set with protocol: json"),
    ],
)
def test_bad_argument_is_an_error_that_names_it(args, words):
    with pytest.raises(ConfigError, match=words) as error:
        PartnerRegistry.get("http", {"url": "http://localhost:8000", **args})
    assert "pw" not in str(error.value)


@pytest.mark.parametrize(
    ("args", "meta_data", "words"),
    [
        ({}, {"x": {1, 2}}, r"sends the meta_data of each sample as JSON.*name those to send in meta_keys"),
        ({}, {"x": float("nan")}, r"not possible"),
        ({"meta_keys": ["topic"]}, {"a": 1}, r"meta_data\['topic'\].*missing; the keys are: a"),
        ({"protocol": "visdial_rl"}, {}, r"list of numbers in meta_data\['img_features'\], not None"),
        ({"protocol": "visdial_rl"}, {"img_features": [{1}]}, r"meta_data\['img_features'\] as JSON"),
    ],
)
def test_sample_that_cannot_be_sent_is_an_error(args, meta_data, words):
    with pytest.raises(DataError, match=words):
        HttpPartner("http://localhost:1", **args).reset(meta_data, 0)
