"""The partner behind a chat endpoint: its messages, its concurrent requests, its retries and its failures."""

import copy
import json
import pickle
import re
import threading

import pytest
from http_servers import Server

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.types import PartnerReply

KEY = "sk-secret"


def completion(text):
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]})


def says(text, status=200, **headers):
    return lambda handler: handler.send(completion(text) if status == 200 else f"no, {KEY}", status, **headers)


def make_partner(server, **args):
    fast = {"model": "m", "retry_wait_s": 0.0, "timeout_s": 20.0}
    partner = PartnerRegistry.get("openai", {"base_url": base_url(server), **fast, **args})
    partner.reset({"partner_persona": ["i own a dog .", "i like tea ."]}, seed=7)
    return partner


def base_url(server):
    return server.url.replace("/reply", "/v1")


def test_its_own_utterances_are_the_assistants_and_the_persona_is_in_the_system_message():
    with Server(says(" a poodle .\n")) as server:
        partner = make_partner(server, instructions="Answer briefly.", generation_kwargs={"temperature": 0.5})
        assert partner.reply(["hello", "hi", "which dog ?"]) == PartnerReply("a poodle .")
        assert server.sent() == [
            {
                "model": "m",
                "messages": [
                    {"role": "system", "content": "Answer briefly.\n\ni own a dog . i like tea ."},
                    {"role": "user", "content": "hello"},
                    {"role": "assistant", "content": "hi"},
                    {"role": "user", "content": "which dog ?"},
                ],
                "max_tokens": 128,
                "temperature": 0.5,
                "seed": 7,
            }
        ]


def test_first_message_is_the_users_and_none_is_empty():
    with Server(says("hi")) as server:
        partner = make_partner(server, send_seed=False, max_tokens=None)
        partner.reset({}, seed=0)
        assert partner.open() == PartnerReply("hi")
        partner.reply(["hi", ""])
        first, second = server.sent()
    opening = {"role": "user", "content": "Start the conversation."}
    assert first == {"model": "m", "messages": [opening]}
    assert second["messages"] == [opening, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "..."}]


@pytest.mark.parametrize("concurrency", [4, 2])
def test_expected_requests_are_under_way_together_up_to_the_limit(concurrency):
    together = threading.Barrier(concurrency, timeout=20)

    def wait(handler):
        together.wait()
        handler.send(completion(handler.body.decode().split('"content":"')[-1][0]))

    with Server(wait) as server:
        first = make_partner(server, concurrency=concurrency, send_seed=False)
        partners = [first, *(copy.deepcopy(first) for _ in range(3))]
        for name, partner in zip("abcd", partners, strict=True):
            partner.expect([name])
        assert [partner.reply([name]).text for name, partner in zip("abcd", partners, strict=True)] == list("abcd")
        assert len(server.requests) == 4


def test_another_history_than_expected_is_asked_anew():
    with Server(lambda handler: handler.send(completion(f"{len(json.loads(handler.body)['messages'])}"))) as server:
        partner = make_partner(server)
        partner.expect(["a"])
        assert partner.reply(["a", "b", "c"]) == PartnerReply("4")
        partner.expect(["a"])
        for one in (pickle.loads(pickle.dumps(partner)), copy.deepcopy(partner)):
            assert one.reply(["a"]) == PartnerReply("2")


def raw(content, status=200):
    return lambda handler: handler.send(content, status)


# What the server does, the number of attempts, and what the message says besides the address.
FAILURES = {
    "401": (says(None, 401), 1, r"status 401: 'no, \*\*\*'; check the API key .* PARTNER_KEY, {}api_key_env"),
    "404": (says(None, 404), 1, r"status 404: .*; check {}base_url and {}model"),
    "429": (says(None, 429), 3, r"status 429: .*; lower {}concurrency, or increase {}retries"),
    "500": (says(None, 500), 3, r"status 500: 'no, \*\*\*'; {}retries sets"),
    "half a JSON": (raw('{"choices": [{"mess'), 3, r"did not answer with a chat completion: .*; check {}base_url"),
    "null": (says(None), 3, r"did not answer with a chat completion"),
    "no text": (says(" \n"), 3, r"answered without text; {}max_tokens may be too low"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_failure_names_the_address_and_the_argument_but_not_the_key(name, monkeypatch):
    monkeypatch.setenv("PARTNER_KEY", KEY)
    behave, n_attempts, words = FAILURES[name]
    with Server(behave) as server:
        partner = make_partner(server, api_key_env="PARTNER_KEY")
        reply = partner.reply(["hello"])
        assert reply.text is None and reply.failed is not None and KEY not in reply.failed + repr(vars(partner))
        assert reply.failed.startswith(f"{base_url(server)}/chat/completions ")
        words = words.replace("{}", r"env\.args\.partner\.args\.")
        assert re.search(words, reply.failed), reply.failed
        assert reply.failed.endswith(f"({n_attempts} attempt{'s' if n_attempts > 1 else ''})")
        assert len(server.requests) == n_attempts


def test_endpoint_that_is_not_there_is_a_failure():
    with Server(says("ok")) as server:
        partner = make_partner(server, retries=0)
    failed = partner.reply(["a"]).failed
    assert failed is not None
    assert re.search(r"cannot be reached: \w+: .*; check env\.args\.partner\.args\.base_url \(1 attempt\)$", failed)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"base_url": "localhost"}, "env.args.partner.args.base_url must be an address such as http://localhost:8000/v1"),
        ({"base_url": "http://me:pw@localhost/v1"}, "env.args.partner.args.base_url must not contain credentials"),
        ({"api_key_env": "NO_SUCH_KEY"}, "env.args.partner.args.api_key_env is 'NO_SUCH_KEY', but this environment"),
        ({"api_key_env": "sk-pw"}, "api_key_env: input should be the name of an environment variable"),
        ({"generation_kwargs": {"stream": True}}, "generation_kwargs cannot contain stream: the partner sets it"),
        ({"generation_kwargs": {"max_tokens": 3}}, "cannot contain max_tokens: set max_tokens itself"),
        ({"concurrency": 0}, "concurrency"),
    ],
)  # fmt: skip
def test_bad_argument_is_an_error_that_names_it(args, words):
    with pytest.raises(ConfigError, match=re.escape(words)) as error:
        PartnerRegistry.check("openai", {"base_url": "http://localhost/v1", "model": "m", **args}, "args")
        PartnerRegistry.get("openai", {"base_url": "http://localhost/v1", "model": "m", **args})
    assert "pw" not in str(error.value)
