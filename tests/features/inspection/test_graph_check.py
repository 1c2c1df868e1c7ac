"""The check for who has a new GPU; graphs are played by called steps."""

from types import SimpleNamespace

import pytest
from tiny import make_env, make_llama, make_policy

from rl4dialog import cli
from rl4dialog.features.inspection.graph_check import compare, fallback, problem_of
from rl4dialog.policies import graph_sampler
from rl4dialog.policies.graph_sampler import GraphSampler, _View
from rl4dialog.text.end_of_turn import EndOfTurn

PROMPTS = [[3, 4, 5], [6, 7], [7, 8, 9, 3], [4, 4]] * 4


@pytest.fixture
def policy(tokenizer, monkeypatch):
    init = GraphSampler.__init__
    monkeypatch.setattr(graph_sampler, "spare_bytes", lambda device: 10**9)

    def with_graphs(sampler, *args, **kwargs):
        init(sampler, *args, **kwargs)
        sampler._captures = True

    monkeypatch.setattr(GraphSampler, "__init__", with_graphs)
    monkeypatch.setattr(GraphSampler, "_captured", lambda sampler, view, step: SimpleNamespace(replay=step))
    env = make_env(
        tokenizer, max_prompt_length=40, max_episode_length=24, end_of_turn=EndOfTurn(tokenizer, range(0, 24, 4))
    )
    policy = make_policy(env, make_llama(tokenizer), critic="none", lora={"r": 2})
    policy.sampler = "graph"
    return policy


def test_right_graphs_have_no_problem(policy):
    found = compare(policy, PROMPTS, n_rounds=2)
    assert problem_of(policy, found) is None and found["sizes"] > 1 and found["same_share"] == 1
    assert max(found["difference_to_loop"], found["difference_to_training"]) < 1e-4
    assert any(p.abs().max() > 0 for n, p in policy.language_model.named_parameters() if "lora_B" in n)


def test_wrong_graphs_do(policy, monkeypatch):
    assert policy._graph_sampler is not None
    init = _View.__init__

    def with_other_mask(view, *args):
        init(view, *args)
        view.mask = view.mask.clone()

    monkeypatch.setattr(_View, "__init__", with_other_mask)
    assert "log-probabilities" in problem_of(policy, compare(policy, PROMPTS, n_rounds=1))


def test_loop_in_place_of_graphs_is_a_problem(policy):
    compare(policy, PROMPTS, n_rounds=1)
    (key, _), *_ = policy._graph_sampler._graphs.items()
    policy._graph_sampler._graphs[key] = None
    assert fallback(policy) == f"there is none for {key[0]} rows of {key[1]} columns"
    vars(policy)["_graph_sampler"] = None
    assert "capture failed" in fallback(policy)
    policy.sampler = "transformers"
    assert fallback(policy) == "generation.backend is transformers"


def test_machine_without_a_gpu_is_told_so(capsys):
    assert cli.main(["doctor", "--gpu"]) == 2
    assert "PyTorch finds no CUDA device here; without one, no graphs are used" in capsys.readouterr().err
    assert cli.main(["doctor"]) == 2
    assert "doctor needs --config_path, or --gpu" in capsys.readouterr().err
