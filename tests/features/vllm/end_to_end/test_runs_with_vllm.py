"""Whole runs whose replies a stand-in for vLLM generates."""

import fake_vllm
import pytest
import torch
from apart import finished
from fake_vllm_server import VLLMServer
from pages import yaml_of
from runs import changed, lines, make_config, run_folder, trained_run
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rl4dialog.core.config import GenerationConfig, parse_config
from rl4dialog.training.assembly import Assembly
from rl4dialog.training.building.components import check_components
from tests.end_to_end.test_processes import FSDP, LORA, assert_same_by_one_and, plain_config


def test_run_with_a_vllm_server_samples_with_the_weights_of_the_moment(tmp_path):
    """The server is restarted while the replies of the second iteration are sampled."""
    config = make_config(tmp_path, alg__args__learning_rate=1e-2)
    config["train_evaluation"] |= {"max_eval_samples": 2, "metrics": []}
    parts = Assembly(parse_config(config, "config.yml"))
    with VLLMServer(parts.initial_model, parts.tokenizer, tmp_path / "served") as server:

        def restart_in_mid_run(server, route, body):
            if server.version.endswith("/2") and route == "/v1/completions" and server.n_restarts == 1:
                server.restart()

        server.spoil = restart_in_mid_run
        config["generation"] = {"backend": "vllm_server", "url": server.url}
        logged = lines(trained_run(tmp_path, config) / "rollout_info.jsonl")
    assert len(logged) == 2 and server.n_restarts > 1
    for iteration in logged:
        assert abs(iteration["rollout/sampler_kl"]) < 1e-4
        assert 1 <= iteration["rollout/sampler_max_ratio"] < 1.01


def test_run_begins_the_replies_of_the_next_rollout_ahead(tmp_path):
    config = make_config(tmp_path, alg__args__importance_correction="token", alg__args__ent_coef=1.0)
    config["alg"]["args"]["learning_rate"] = 1e-2
    config["train_evaluation"] |= {"max_eval_samples": 2, "metrics": []}
    parts = Assembly(parse_config(config, "config.yml"))
    with VLLMServer(parts.initial_model, parts.tokenizer, tmp_path / "served") as server:
        config["generation"] = {"backend": "vllm_server", "url": server.url, "ahead": 1}
        first, second = lines(trained_run(tmp_path, config) / "rollout_info.jsonl")
    assert abs(first["rollout/sampler_kl"]) < 1e-4 < abs(second["rollout/sampler_kl"])
    assert first["rollout/sampler_max_ratio"] < 1.01 < second["rollout/sampler_max_ratio"]


@pytest.mark.parametrize("lora", [None, {"r": 2}])
def test_run_with_vllm_evaluates_and_samples_with_the_weights_of_the_moment(tmp_path, monkeypatch, lora):
    """On a stand-in for vLLM, which has no other weights than those it is sent."""
    fake_vllm.install(monkeypatch)
    generation = {"backend": "vllm", "sleep": True}
    config = make_config(tmp_path, generation=generation, lora=lora, alg__args__learning_rate=1e-2)
    config["train_evaluation"] |= {"max_eval_samples": 2, "metrics": []}
    for iteration in lines(trained_run(tmp_path, config) / "rollout_info.jsonl"):
        assert abs(iteration["rollout/sampler_kl"]) < 1e-4
        assert 1 <= iteration["rollout/sampler_max_ratio"] < 1.01
        assert "rollout/truncated_mass" not in iteration
    llm = fake_vllm.LLM.last
    assert llm.max_model_len == 24 + 10
    # Before the first iteration, after it (evaluation and rollout share them), and after the last.
    assert llm.calls.count("reload_weights") == 3 and llm.calls.count("sleep") == 2
    saved = AutoModelForCausalLM.from_pretrained(run_folder(tmp_path) / "model").state_dict()
    for name, tensor in llm.module.state_dict().items():
        torch.testing.assert_close(tensor, saved[name], rtol=0, atol=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("variables", [{}, FSDP], ids=["copies", "shards"])
def test_two_processes_share_a_vllm_server_as_one(tmp_path, variables):
    config = changed(plain_config(tmp_path, "ppo", "causal"), {**LORA, "train_evaluation.n_iters": 2})
    config.pop("warm_start")
    parts = Assembly(parse_config(config, "config.yml"))
    with VLLMServer(parts.initial_model, parts.tokenizer, tmp_path / "served") as server:
        config["generation"] = {"backend": "vllm_server", "url": server.url}
        for n, environment in ((1, {}), (2, variables)):
            finished(tmp_path, config, n, **environment)
        assert_same_by_one_and(2, tmp_path, n_iters=2)
        saved = load_file(tmp_path / "p" / "by_2" / "model" / "model.safetensors")
        served = server.llm.module.state_dict()
        assert served.keys() - saved.keys() <= {"lm_head.weight"} and len(saved) > 10
        for name, weight in saved.items():
            torch.testing.assert_close(served[name], weight, rtol=0, atol=1e-6)


def test_generation_by_example_is_valid(tmp_path, monkeypatch):
    fake_vllm.install(monkeypatch)
    server = {"backend": "vllm_server", "url": "http://127.0.0.1:8000"}
    for settings in ({"backend": "vllm"}, server):
        end = " " if settings["backend"] == "vllm" else "\n"
        block = yaml_of("docs/vllm.md", f"generation:\n  backend: {settings['backend']}{end}")
        config = parse_config(make_config(tmp_path, **block), "vllm.md")
        check_components(config)
        assert config.generation == GenerationConfig(**settings), "the other values are the defaults"
