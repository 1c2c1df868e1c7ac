"""Real replies of vLLM beside the policy that they are written for, in an environment of its own (make test-vllm)."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from http_servers import free_port
from policies_for_vllm import N_PROMPT, N_REPLY, TOKENIZER, policy_without_backend, prompts, shake, update
from runs import lines, make_config, write_config
from tiny import make_gpt2, make_llama

from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError, GenerationError
from rl4dialog.features.vllm.backend import VLLMBackend, import_vllm
from rl4dialog.features.vllm.server import VLLMServerBackend
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.training.assembly import Assembly

pytest.importorskip("vllm", reason="vLLM is tested in an environment of its own: make test-vllm")

SCRIPT = Path(__file__).parents[3] / "scripts" / "train_text_generation.py"
# Embedding and output layer with the same weights, or not. vLLM's attention on CPUs needs heads of at least 32 numbers.
MODELS = {
    "tied": lambda: make_gpt2(TOKENIZER, n_embd=64),
    "untied": lambda: make_gpt2(TOKENIZER, n_embd=64, tie_word_embeddings=False),
}


def policy_with(model="tied", end_of_turn=None, url=None, n_prompt=N_PROMPT, adapter_folder=None, **kwargs):
    policy = policy_without_backend(MODELS[model]() if isinstance(model, str) else model, end_of_turn, **kwargs)
    of_vllm = policy.language_model, policy.end_of_turn, n_prompt + N_REPLY
    server = {"url": url, "adapter_folder": adapter_folder}
    policy.backend = VLLMBackend(*of_vllm, "float32") if url is None else VLLMServerBackend(*of_vllm, **server)
    return policy


@contextmanager
def serving(model, tokenizer, folder, port=None, n_tokens=N_PROMPT + N_REPLY, flags=None):
    """A server of a model's architecture, by default with weights of its own; gives its address and process."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    port = port or free_port()
    command = [str(Path(sys.executable).with_name("vllm")), "serve", str(folder), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--dtype", "float32", "--max-model-len", str(n_tokens), "--enforce-eager"]
    command += ["--no-enable-chunked-prefill", "--logprobs-mode", "processed_logprobs"]
    command += flags or ["--load-format", "dummy", "--weight-transfer-config", '{"backend": "rl4dialog"}']
    with Path(folder, f"server_{time.monotonic_ns()}.log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, **SERVER}, start_new_session=True
        )
        try:
            yield f"http://127.0.0.1:{port}", process
        finally:
            kill(process)


def kill(process):
    """What the system does to a server with too little memory, and to its workers."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(condition, process):
    for _ in range(4000):
        if condition():
            return
        assert process.poll() is None, f"it has ended: {process.stderr and process.stderr.read()}"
        time.sleep(0.1)
    raise AssertionError("it does not happen")


def answers(url):
    try:
        return urllib.request.urlopen(f"{url}/health", timeout=10).status == 200
    except OSError:
        return False


@pytest.fixture(scope="module", params=MODELS)
def server(request, tmp_path_factory):
    model = MODELS[request.param]()
    with serving(model, TOKENIZER, tmp_path_factory.mktemp("model")) as (url, process):
        wait_for(lambda: answers(url), process)
        yield request.param, url


def differences(replies):
    return (replies.sampler_log_probs - replies.log_probs)[replies.response_mask].abs()


KINDS = [{}, {"critic": "shared"}, {"lora": {"r": 2, "lora_alpha": 8}}]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kwargs", KINDS)
def test_log_probs_are_those_of_the_policy_after_every_update(model, kwargs):
    check_log_probs(policy_with(model, **kwargs), f"{model} {kwargs}")


def check_log_probs(policy, what):
    """1,000 replies before ten updates and after them, and a few after each one."""
    for n_updates in range(11):
        replies = policy.generate(prompts(1000 if n_updates in (0, 10) else 20))
        found = differences(replies)
        print(f"{what} after {n_updates} updates: mean {found.mean():.2g}, max {found.max():.2g} nats")
        assert found.mean() <= 1e-4
        greedy = policy.generate(prompts(20), do_sample=False)
        backend, policy.backend = policy.backend, None
        assert greedy.response_ids.tolist() == policy.generate(prompts(20), do_sample=False).response_ids.tolist()
        policy.backend = backend
        update(policy, 0.05)


def test_weights_that_did_not_arrive_stop_the_run():
    policy = policy_with()
    policy.generate(prompts(4))
    shake(policy, 1.0)
    with pytest.raises(GenerationError, match=r"differ from the policy's by \d.* nats per token"):
        policy.generate(prompts(50))


def test_filters_limit_the_sampler_as_transformers_do():
    settings = {"top_k": 5, "top_p": 0.9, "temperature": 1.5, "repetition_penalty": 1.3}
    policy = policy_with(generation_kwargs=settings)
    theirs = policy.generate(prompts(200))
    for prompt, mask, ids, reply_mask, log_probs in zip(
        *prompts(200).values(), theirs.response_ids, theirs.response_mask, theirs.sampler_log_probs, strict=True
    ):
        row, reply = prompt[mask.bool()], ids[reply_mask]
        for t in range(len(reply)):
            read = torch.cat([row, reply[:t]])[None]
            with torch.no_grad():
                logits = policy.language_model(read).logits[:, -1]
            processed = policy.settings.processors()(read, logits / settings["temperature"]).log_softmax(-1)[0]
            assert float(log_probs[t]) == pytest.approx(float(processed[reply[t]]), abs=1e-4)


def test_replies_end_where_the_environment_ends_them():
    ends = [id for id in range(len(TOKENIZER)) if id % 4 == 0]
    policy = policy_with(end_of_turn=EndOfTurn(TOKENIZER, ends))
    for min_length in (0, 4):
        replies = policy.generate(prompts(200), min_length=min_length)
        for ids, mask in zip(replies.response_ids, replies.response_mask, strict=True):
            reply = ids[mask].tolist()
            assert not any(id in ends for id in reply[:-1])
            assert reply[-1] in ends or len(reply) == N_REPLY
            assert len(reply) > min_length


def test_turn_marker_ends_a_reply():
    said = policy_with().generate(prompts(100)).response_ids
    marker = TOKENIZER.decode(
        max((pair for pair in said[:, :2].tolist() if min(pair) >= 3), key=said[:, :2].tolist().count)
    )
    end = EndOfTurn(TOKENIZER, [0], marker)
    policy = policy_with(end_of_turn=end)
    replies = policy.generate(prompts(100))
    rows = [ids[mask].tolist() for ids, mask in zip(replies.response_ids, replies.response_mask, strict=True)]
    assert all(end.is_end(row) or len(row) == N_REPLY for row in rows)
    assert not any(end.is_end(row[:n]) for row in rows for n in range(1, len(row)))
    assert any(marker in TOKENIZER.decode(row) for row in rows)


def test_seed_decides_the_replies():
    policy, found = policy_with(), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(policy.generate(prompts(20)).response_ids.tolist())
    assert found[0] == found[1] != found[2]


def test_prompts_beyond_a_batch_are_read():
    """On CPUs, vLLM can read no part of a prompt whose reply has a seed."""
    policy = policy_with(n_prompt=50)
    ids = torch.randint(3, len(TOKENIZER), (200, 50), generator=torch.Generator().manual_seed(0))
    replies = policy.generate({"prompt_ids": ids, "prompt_mask": torch.ones_like(ids, dtype=torch.bool)})
    assert differences(replies).max() < 1e-4


def test_what_needs_a_gpu_is_refused():
    with pytest.raises(ConfigError, match=r"generation\.sleep frees memory of a GPU"):
        import_vllm(1, sleep=True)
    with pytest.raises(ConfigError, match="tensor_parallel_size: 2 needs as many"):
        import_vllm(2)


SERVER = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "HF_HUB_OFFLINE": "1"}
SAMPLING = {"do_sample": True, "top_k": 0}
GAME = {
    "datapool": {"id": "guess_what", "args": {"n_train": 200, "n_val": 20, "n_test": 20}},
    "reward_fn": {"id": "outcome", "args": {"weights": {"success": 1.0}}},
    "env__args": {"max_prompt_length": 64, "max_episode_length": 8, "max_turns": 3, "partner": {"id": "guess_what"}},
}


def training_of(tmp_path, config, n_processes):
    """The command of a run in ``p/e``."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"] if n_processes == 2 else []
    command = [sys.executable, *launcher, str(SCRIPT), "--config_path", str(write_config(tmp_path / "c", config))]
    return [*command, "--base_path_to_store_results", str(tmp_path), "--project_name", "p", "--experiment_name", "e"]


@pytest.mark.parametrize(
    ("n_processes", "overrides"),
    [
        (1, {"alg__args__importance_correction": "token"}),
        (1, {**GAME, "alg__policy__args__critic": "shared"}),  # the cache of prefixes helps from turn to turn
        (2, {}),
    ],
)
def test_run_samples_from_its_policy_and_ends_cleanly(tmp_path, n_processes, overrides):
    config = make_config(
        tmp_path,
        generation={"backend": "vllm"},
        env__n_envs=4,
        train_evaluation__n_iters=3,
        alg__args__learning_rate=1e-2,
        alg__policy__args__generation_kwargs=SAMPLING,
        **overrides,
    )
    command = training_of(tmp_path, config, n_processes)
    run = subprocess.run(command, capture_output=True, text=True, timeout=500, env=dict(os.environ))
    assert run.returncode == 0, run.stderr
    assert "Traceback" not in run.stderr and "Error" not in run.stderr, run.stderr
    logged = lines(tmp_path / "p" / "e" / "rollout_info.jsonl")
    assert len(logged) == 3
    for line in logged:
        assert abs(line["rollout/sampler_kl"]) < 1e-4 and line["rollout/sampler_max_ratio"] < 1.001
    if "reward_fn" not in overrides:  # in so few games, nobody succeeds
        assert abs(logged[-1]["rollout/kl"]) > 1e-4, "the policy has changed"


@pytest.mark.parametrize("kwargs", [KINDS[0], KINDS[2]])
def test_log_probs_of_a_server_are_those_of_the_policy_after_every_update(server, kwargs):
    model, url = server
    check_log_probs(policy_with(model, url=url, **kwargs), f"server, {model} {kwargs}")


def test_server_takes_adapters_alone(tmp_path):
    """Adapters of a Llama: vLLM 0.32 has none for GPT-2."""
    model = make_llama(TOKENIZER, hidden_size=64, num_attention_heads=2)
    flags = ["--enable-lora", "--max-lora-rank", "8"]
    with serving(model, TOKENIZER, tmp_path / "model", flags=flags) as (url, process):
        wait_for(lambda: answers(url), process)
        policy = policy_with(model, url=url, adapter_folder=str(tmp_path), lora={"r": 2, "lora_alpha": 8})
        check_log_probs(policy, "server with adapters")
        assert not any(path.is_dir() for path in tmp_path.iterdir() if path.name != "model")


SETTINGS = [
    {"top_k": 5, "top_p": 0.9, "temperature": 1.5, "repetition_penalty": 1.3},
    {"min_length": 4},
    {"max_new_tokens": 3},
]


def test_server_writes_what_the_engine_in_the_process_writes(server):
    model, url = server
    # Embedding and output layer with the same weights, or not, make no difference for the settings.
    for end in (EndOfTurn(TOKENIZER, range(0, len(TOKENIZER), 4)), EndOfTurn(TOKENIZER, [0], TOKENIZER.decode([7]))):
        policies = ()  # the end of an engine disturbs others in its process
        policies = policy_with(model, end), policy_with(model, end, url)
        for settings in SETTINGS:
            found = []
            for policy in policies:
                torch.manual_seed(0)
                found.append(policy.generate(prompts(100), **settings))
            assert found[0].response_ids.tolist() == found[1].response_ids.tolist()
            torch.testing.assert_close(found[0].sampler_log_probs, found[1].sampler_log_probs, rtol=0, atol=1e-4)


def test_server_of_another_model_is_refused(server):
    model, url = server
    larger = MODELS[model]()
    larger.resize_token_embeddings(len(TOKENIZER) + 1, mean_resizing=False)
    with pytest.raises(GenerationError, match=f"{url} serves another model .* has {len(TOKENIZER)} ids"):
        VLLMServerBackend(larger, EndOfTurn(TOKENIZER, [0]), N_PROMPT + N_REPLY, url)
    for n_layer, words in ((1, "the policy is another model: it has no weights for"), (3, "update_weights answered")):
        policy = policy_with(make_gpt2(TOKENIZER, n_embd=64, n_layer=n_layer), url=url)
        with pytest.raises(GenerationError, match=words):
            policy.generate(prompts(4))
    # What was broken off does not count.
    assert differences(policy_with(model, url=url).generate(prompts(50))).mean() <= 1e-4


@pytest.mark.parametrize("n_processes", [1, 2])
def test_run_survives_a_server_that_is_killed(tmp_path, n_processes):
    """PPO in conversations; the server is killed in mid-run and started again."""
    port = free_port()
    config = make_config(
        tmp_path,
        **GAME,
        generation={"backend": "vllm_server", "url": f"http://127.0.0.1:{port}"},
        env__n_envs=4,
        train_evaluation__n_iters=40,
        train_evaluation__eval_every=40,
        alg__args__learning_rate=1e-2,
        alg__policy__args__generation_kwargs=SAMPLING,
    )
    parts = Assembly(parse_config(config, "c.yml"))
    policy_model = make_gpt2(parts.tokenizer, n_embd=64, n_positions=64 + 8)
    policy_model.save_pretrained(tmp_path / "policy")
    config["alg"]["policy"]["args"]["model_name"] = str(tmp_path / "policy")
    model = tmp_path / "model", port, 64 + 8
    logged = tmp_path / "p" / "e" / "rollout_info.jsonl"
    command = training_of(tmp_path, config, n_processes)
    with serving(policy_model, parts.tokenizer, *model) as (url, first):
        wait_for(lambda: answers(url), first)
        run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
        try:
            wait_for(lambda: logged.exists() and logged.read_text().count("\n") > 1, run)
            kill(first)
            with serving(policy_model, parts.tokenizer, *model):
                errors = run.communicate(timeout=500)[1]
        finally:
            run.kill()
    assert run.returncode == 0 and "Traceback" not in errors, errors
    assert f"{url} was restarted, so the policy's weights are sent again" in errors
    assert len(lines(logged)) == 40
    for line in lines(logged):
        assert abs(line["rollout/sampler_kl"]) < 1e-4 and line["rollout/sampler_max_ratio"] < 1.001
