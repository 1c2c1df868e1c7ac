"""The protocol with a vLLM server, on a stand-in that samples by itself with the weights that it is sent."""

import copy
import socket
import threading

import fake_vllm
import pytest
import torch
from fake_vllm_server import VLLMServer
from http_servers import free_port
from policies_for_vllm import N_PROMPT, N_REPLY, TOKENIZER, policy_without_backend, prompts, update
from tiny import WORDS, make_gpt2

from rl4dialog.core.async_calls import AsyncCalls
from rl4dialog.core.errors import GenerationError
from rl4dialog.features.vllm import server as vllm_server
from rl4dialog.features.vllm.backend import VLLMBackend
from rl4dialog.features.vllm.server import VLLMServerBackend
from rl4dialog.features.vllm.transfer import Sender, described, received
from rl4dialog.text.end_of_turn import EndOfTurn

UPDATE = ["/pause?mode=wait", "/start_weight_update", "/update_weights", "/finish_weight_update"]
UPDATE += ["/reset_prefix_cache", "/resume"]


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(vllm_server, "_POLL_S", 0.01)
    with VLLMServer(make_gpt2(TOKENIZER, seed=1), TOKENIZER, tmp_path) as server:
        yield server


def policy_for(server, end_of_turn=None, settings=None, **kwargs):
    policy = policy_without_backend(None, end_of_turn, **kwargs)
    of_vllm = policy.language_model, policy.end_of_turn, N_PROMPT + N_REPLY
    policy.backend = VLLMServerBackend(*of_vllm, url=server.url, **(settings or {}))
    return policy


def generate(policy, n=6, seed=0, **kwargs):
    torch.manual_seed(seed)
    return policy.generate(prompts(n), **kwargs)


def check_is_of(policy, replies):
    found = (replies.sampler_log_probs - replies.log_probs)[replies.response_mask].abs().max()
    assert found < 1e-4, "the server has other weights than the policy"


SETTINGS = [
    {},
    {"top_k": 3, "temperature": 1.5},
    {"top_p": 0.7, "repetition_penalty": 1.3},
    {"min_length": 4},
    {"max_new_tokens": 3},
    {"do_sample": False},
]


@pytest.mark.parametrize(
    ("end", "kwargs"),
    [
        (EndOfTurn(TOKENIZER, [0, 4, 8]), {}),
        (EndOfTurn(TOKENIZER, [0], WORDS[1]), {"lora": {"r": 2, "lora_alpha": 8}}),
    ],
)
def test_replies_are_those_of_the_engine_in_the_process(server, monkeypatch, end, kwargs):
    fake_vllm.install(monkeypatch)
    policy = policy_for(server, end, **kwargs)
    engines = policy.backend, VLLMBackend(policy.language_model, end, N_PROMPT + N_REPLY, "float32")
    for settings in SETTINGS:
        found = []
        for engine in engines:
            engine.weights_will_change()
        update(policy)
        for policy.backend in engines:
            found.append(generate(policy, 8, **settings))
        assert torch.equal(found[0].flat("response_ids"), found[1].flat("response_ids"))
        assert (found[0].sampler_log_probs is None) == (settings == {"do_sample": False})
        if found[0].sampler_log_probs is not None:
            torch.testing.assert_close(found[0].sampler_log_probs, found[1].sampler_log_probs)


def test_replies_that_are_begun_ahead_have_the_weights_before_the_update(server):
    policy = policy_for(server, settings={"ahead": 1})
    policy.generate_ahead(prompts(6))  # nothing: the server has no weights of the policy yet
    check_is_of(policy, generate(policy))
    version = server.version
    policy.generate_ahead(prompts(6))
    old_weights = copy.deepcopy(policy.state_dict())
    update(policy)
    assert generate(policy, 2).n_tokens and server.version != version, "other prompts are of the new weights"
    served = server.routes.count("/v1/completions")
    ahead = generate(policy)
    assert server.routes.count("/v1/completions") == served
    assert (ahead.sampler_log_probs - ahead.log_probs)[ahead.response_mask].abs().max() > 1e-2
    check_is_of(policy, generate(policy))
    policy.load_state_dict(old_weights)
    torch.testing.assert_close(ahead.sampler_log_probs, policy.sequence_log_probs(ahead), rtol=0, atol=1e-5)


def test_replies_ahead_that_a_lost_server_does_not_give_are_those_of_the_new_weights(server):
    policy = policy_for(server, settings={"ahead": 1})
    generate(policy)
    server.spoil = lambda server, route, body: "dead" if route == "/v1/completions" else None
    policy.generate_ahead(prompts(6))
    update(policy)
    assert policy.backend._begun[1].exception() is not None
    server.spoil = lambda server, route, body: None
    check_is_of(policy, generate(policy))


def test_weights_are_sent_in_order_and_only_when_they_have_changed(server):
    policy = policy_for(server)
    server.routes.clear()
    check_is_of(policy, generate(policy))
    assert [route for route in server.routes if route in UPDATE] == UPDATE
    n_sent, seen = server.routes.count("/update_weights"), server.version
    generate(policy)
    assert server.routes.count("/update_weights") == n_sent and server.version == seen
    update(policy)
    check_is_of(policy, generate(policy))
    assert server.version != seen and not server.is_paused


def policy_with_adapters(server, tmp_path, **kwargs):
    settings = {"adapter_folder": str(tmp_path / "shared")}
    return policy_for(server, settings=settings, lora={"r": 2, "lora_alpha": 8}, **kwargs)


def serve_base(server):
    server.llm.module.load_state_dict(make_gpt2(TOKENIZER).state_dict())
    server._initial = copy.deepcopy(server.llm.module.state_dict())


def test_adapters_are_sent_alone_through_a_shared_folder(server, tmp_path):
    serve_base(server)
    server.config["weight_transfer_config"] = None
    server.adapters[f"rl4dialog/127.0.0.1/{free_port()}/abc/def/3"] = {}  # of a run that was killed
    policy = policy_with_adapters(server, tmp_path)
    for _ in range(2):
        update(policy)
        check_is_of(policy, generate(policy))
        check_is_of(policy, generate(policy))
    assert server.routes.count("/v1/load_lora_adapter") == 3 and not set(UPDATE) & set(server.routes)
    assert len(server.adapters) == 1 and not [*(tmp_path / "shared").iterdir()]
    server.restart()
    check_is_of(policy, generate(policy))


def test_server_of_another_base_is_refused_although_a_filter_hides_it(server, tmp_path):
    policy = policy_with_adapters(server, tmp_path, generation_kwargs={"top_k": 5})
    with pytest.raises(GenerationError, match=r"differ from the policy's by \d.* nats per token"):
        generate(policy)


def test_weights_are_checked_at_the_temperature_of_the_log_probs(server):
    policy = policy_for(server, generation_kwargs={"temperature": 0.5, "top_k": 3})
    for _ in range(3):
        update(policy)
        assert generate(policy).n_tokens
    assert policy.backend._n_checks_left == 0


def test_replies_with_adapters_of_a_server_that_dies_are_those_of_the_policy(server, tmp_path):
    serve_base(server)
    policy = policy_with_adapters(server, tmp_path)
    update(policy)
    expected = generate(policy).response_ids
    for route, act in (("/v1/completions", dies), ("/v1/completions", restarts), ("/v1/load_lora_adapter", dies)):
        policy.weights_will_change()
        server.spoil = once(route, act, after=3 * (route == "/v1/completions"))
        replies = generate(policy)
        check_is_of(policy, replies)
        assert torch.equal(replies.response_ids, expected)


def once(route, act, after=0):
    """Do something instead of the answer to the first request of a route, after so many others."""
    left = [after]

    def spoil(server, asked, body):
        if asked != route or left[0] < 0 or (asked == "/v1/completions" and "seed" not in body):
            return None
        left[0] -= 1
        return act(server) if left[0] < 0 else None

    return spoil


def restarts(server):
    server.restart()


def dies(server):
    server.restart()
    return "dead"


def is_down(server):
    """Die, and be back after some requests."""
    server.restart()
    left = [4]

    def spoil(server, route, body):
        left[0] -= 1
        return ("dead" if left[0] % 2 else (503, {})) if left[0] > 0 else None

    server.spoil = spoil
    return 500, {"error": {"message": "EngineCore encountered an issue"}}


@pytest.mark.parametrize("act", [restarts, dies, is_down])
@pytest.mark.parametrize("route", ["/v1/completions", *UPDATE])
def test_replies_of_a_server_that_restarts_are_those_of_the_policy(server, caplog, route, act):
    policy = policy_for(server)
    generate(policy)
    update(policy)
    expected = generate(policy).response_ids
    if route != "/v1/completions":  # so that the weights are sent again
        policy.weights_will_change()
    server.spoil = once(route, act, after=3 * (route == "/v1/completions"))
    n_restarts = server.n_restarts
    replies = generate(policy)
    check_is_of(policy, replies)
    assert torch.equal(replies.response_ids, expected)
    assert server.n_restarts == n_restarts + 1 and server.version.startswith("rl4dialog/") and not server.is_paused
    if route == "/v1/completions":
        assert f"{server.url} was restarted, so the policy's weights are sent again" in caplog.text


def test_server_that_restarts_between_rollouts_gets_the_weights_again(server):
    policy = policy_for(server)
    first = generate(policy).response_ids
    server.restart()
    replies = generate(policy)
    check_is_of(policy, replies)
    assert torch.equal(replies.response_ids, first)


def answers(status, **content):
    return lambda server: (status, content)


def is_taken(server):
    server.version = "rl4dialog/127.0.0.1/1/abc/def/3"


def hangs(server):
    threading.Event().wait(60)
    return "dead"


def is_another(server):
    server.restart()
    server.n_rows = 7


@pytest.mark.parametrize(
    ("route", "act", "words"),
    [
        ("/v1/completions", answers(400, error="bad"), r"/v1/completions answered with HTTP status 400: .*bad"),
        ("/v1/completions", answers(500, error="oom"), r"/v1/completions answered with HTTP status 500: .*oom"),
        ("/v1/completions", answers(200, choices=[]), "answered with no tokens with log-probabilities"),
        (
            "/v1/completions",
            answers(200, choices=[{"token_ids": [3], "logprobs": None}]),
            "answered with no tokens with log-probabilities",
        ),
        ("/v1/completions", is_taken, r"has weights of another run \(rl4dialog/127.* start a server for each run"),
        ("/v1/completions", is_another, r"serves another model .* its vocabulary has 7 ids"),
        ("/v1/completions", hangs, r"no answer within 0.5 s \(generation\.timeout_s\)"),
        ("/start_weight_update", answers(500, error="no engine"), "/start_weight_update answered .*no engine"),
        ("/update_weights", answers(500, error="another model"), "/update_weights answered .*another model"),
        ("/update_weights", hangs, r"no answer within 0.5 s \(generation\.timeout_s\)"),
        ("/reset_prefix_cache", answers(200, success=False), "keeps cached prompts of the old weights"),
    ],
)
def test_fault_ends_with_one_message_that_names_the_server(server, route, act, words):
    policy = policy_for(server)
    generate(policy)
    if act is hangs:
        policy.backend._calls = AsyncCalls(timeout_s=0.5, retries=0, key="generation")
    if route != "/v1/completions":
        policy.weights_will_change()
    server.spoil = once(route, act)
    with pytest.raises(GenerationError, match=f"generation.url: {server.url}.*{words}"):
        generate(policy)
    assert not server.is_paused or act is hangs


def test_server_that_does_not_come_back_ends_the_run(server):
    policy = policy_for(server, settings={"timeout_s": 30.0})
    generate(policy)
    policy.backend._timeout_s = 0.3
    server.spoil = lambda server, route, body: "dead"
    with pytest.raises(GenerationError, match=f"generation.url: {server.url}/weight_info cannot be reached"):
        generate(policy)


def lacks_routes(server):
    server.spoil = lambda server, route, body: None if "v1" in route else (404, {})


def wants_key(server):
    server.spoil = lambda server, route, body: (401, {"error": "Unauthorized"}) if "v1" in route else None


def belongs_to_another(server):
    server.listener = socket.create_server(("127.0.0.1", 0))
    server.version = f"rl4dialog/127.0.0.1/{server.listener.getsockname()[1]}/abc/def/3"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lacks_routes, "is not vLLM 0.32 or newer, or was started without VLLM_SERVER_DEV_MODE=1"),
        (wants_key, "/v1/models answered with HTTP status 401"),
        (lambda server: server.config.update(weight_transfer_config=None), "--weight-transfer-config .* not None"),
        (
            lambda server: server.config["model_config"].update(logprobs_mode="raw_logprobs"),
            "needs --logprobs-mode processed_logprobs, not raw_logprobs",
        ),
        (
            lambda server: server.config["device_config"].update(device="cpu"),
            "needs --no-enable-chunked-prefill on a CPU",
        ),
        (lambda server: setattr(server, "max_model_len", 9), "needs a --max-model-len of at least 14, not 9"),
        (lambda server: setattr(server, "n_rows", 7), "serves another model"),
        (lambda server: setattr(server, "n_rows", 700), "serves another model"),
        (belongs_to_another, "has weights of another run"),
        (lambda server: setattr(server, "url", f"http://127.0.0.1:{free_port()}"), "cannot be reached.*vllm.md"),
    ],
)
def test_server_that_cannot_serve_the_run_is_refused_at_once(server, change, words):
    change(server)
    with pytest.raises(GenerationError, match=f"generation.url: .*{words}") as error:
        policy_for(server)
    assert server.url in str(error.value)


def test_server_that_cannot_take_the_adapters_is_refused_at_once(server, tmp_path):
    server.config["lora_config"] = None
    with pytest.raises(GenerationError, match=r"needs --enable-lora for generation\.adapter_folder, not None"):
        policy_with_adapters(server, tmp_path)
    server.config["lora_config"] = {}
    (tmp_path / "shared").write_text("a file")
    policy = policy_with_adapters(server, tmp_path)
    with pytest.raises(GenerationError, match=r"generation\.adapter_folder: .*shared"):
        generate(policy)
    (tmp_path / "shared").unlink()
    server.spoil = lambda server, route, body: (404, "Not Found") if route == "/v1/load_lora_adapter" else None
    with pytest.raises(GenerationError, match="needs VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"):
        policy_with_adapters(server, tmp_path)
    server.spoil = lambda server, route, body: None
    belongs_to_another(server)
    server.adapters = {f"rl4dialog/127.0.0.1/{free_port()}/abc/def/3": {}, server.version: {}}
    with pytest.raises(GenerationError, match="has weights of another run"):
        policy_with_adapters(server, tmp_path)


def test_server_of_a_run_that_has_ended_can_be_used_again(server):
    server.version = f"rl4dialog/127.0.0.1/{free_port()}/abc/def/3"
    server.is_paused = True  # as a run that was killed leaves it
    policy = policy_for(server)
    check_is_of(policy, generate(policy))


def test_port_and_key_are_those_of_the_settings(server, monkeypatch):
    monkeypatch.setenv("KEY_OF_VLLM", "secret")
    port = free_port()
    policy = policy_for(server, settings={"transfer_port": port, "api_key_env": "KEY_OF_VLLM"})
    check_is_of(policy, generate(policy))
    assert server.version.startswith(f"rl4dialog/127.0.0.1/{port}/") and "Bearer secret" in server.headers
    with pytest.raises(GenerationError, match=rf"generation.transfer_port: 127.0.0.1:{port} cannot be opened"):
        policy_for(server, settings={"transfer_port": port})


WEIGHTS = [
    ("a", torch.randn(3, 5)),
    ("b", torch.randn(4).bfloat16()),
    ("c", torch.tensor(7)),
    ("d", torch.randn(6, 2).T),
    ("e", torch.empty(0, 3)),
]


def test_weights_arrive_at_all_workers_and_nowhere_else():
    sender, got = Sender("127.0.0.1", 0, 5.0), []
    place = {"host": sender.host, "port": sender.port, "timeout_s": 5.0, **described(WEIGHTS)}
    stranger = socket.create_connection((sender.host, sender.port))
    stranger.sendall(b"wrong")
    workers = [threading.Thread(target=lambda: got.append(list(received(token="right", **place)))) for _ in range(2)]
    for worker in workers:
        worker.start()
    sender.send(WEIGHTS, 2, "right", lambda: False)
    for worker in workers:
        worker.join()
    for weights in got:
        assert [name for name, _ in weights] == list("abcde")
        for (_, theirs), (_, ours) in zip(weights, WEIGHTS, strict=True):
            assert theirs.dtype == ours.dtype and torch.equal(theirs, ours)
    assert len(got) == 2 and stranger.recv(1) == b""


def test_weights_that_are_broken_off_are_an_error():
    sender = Sender("127.0.0.1", 0, 5.0)
    place = {"host": sender.host, "port": sender.port, "token": "t", "timeout_s": 5.0, **described(WEIGHTS)}
    thread = threading.Thread(target=sender.send, args=(WEIGHTS[:1], 1, "t", lambda: False))
    thread.start()
    with pytest.raises(ConnectionError, match="before all weights were sent"):
        list(received(**place))
    thread.join()
    sender.send(WEIGHTS, 1, "t", lambda: True)  # the server has given up, which does not block
