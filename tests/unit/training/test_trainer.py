"""The trainer, transformers' trainer without side effects, and the plan."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from reward_models import TEXTS
from rich.console import Console
from runs import make_config
from tiny import make_gpt2
from transformers import LlamaConfig, LlamaForCausalLM

from rl4dialog.core.config import kinds, parse_config
from rl4dialog.core.errors import CheckpointError
from rl4dialog.core.registry import import_object
from rl4dialog.core.run_format import FORMAT, KEY
from rl4dialog.core.yaml_loader import load_yaml
from rl4dialog.policies import graph_sampler
from rl4dialog.training import memory
from rl4dialog.training import trainer as module
from rl4dialog.training.plan import print_plan
from rl4dialog.training.resumable_trainer import pad_labelled_texts, unchanged
from rl4dialog.training.tiny_bert import train_tokenizer
from rl4dialog.training.trainee import Trainee


def test_every_kind_of_run_has_its_trainee_checks_and_plan():
    for kind in kinds():
        assert issubclass(import_object(kind.trainee), Trainee)
        assert callable(import_object(kind.check)) and callable(import_object(kind.plan))


def test_a_config_is_of_one_kind_beside_reinforcement_learning_on_text_which_takes_what_is_left():
    configs = [load_yaml(path) for path in (Path(__file__).parents[3] / "task_configs").glob("*/*_*.yml")]
    claimed = [[kind for kind in kinds()[1:] if kind.claims(config)] for config in configs]
    assert max(map(len, claimed)) == 1 and {kind for (kind,) in filter(None, claimed)} == {*kinds()[1:]}


@pytest.mark.parametrize("training", [True, False])
def test_unchanged_restores_mode_and_generator_also_after_an_error(tokenizer, training):
    model = make_gpt2(tokenizer).train(training)
    state = torch.random.get_rng_state()
    with pytest.raises(KeyError), unchanged(model):
        torch.manual_seed(5)
        model.train(not training)
        model.config.use_cache = False
        raise KeyError
    assert model.training == training
    assert model.config.use_cache is True
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(("labels", "dtype"), [([0.25, 1.0], torch.float32), ([3, 0], torch.int64)])
def test_labelled_texts_are_padded_on_the_right(labels, dtype):
    tokenizer = train_tokenizer(TEXTS, 300, 64)
    ids = tokenizer([TEXTS[0], " ".join(TEXTS)])["input_ids"]
    examples = [{"input_ids": row, "labels": label} for row, label in zip(ids, labels, strict=True)]
    batch = pad_labelled_texts(tokenizer, examples)
    assert batch["input_ids"][0, : len(ids[0])].tolist() == ids[0]
    assert batch["input_ids"][1].tolist() == ids[1]
    assert batch["attention_mask"].sum(dim=1).tolist() == [len(ids[0]), len(ids[1])]
    assert batch["attention_mask"][:, 0].all()
    assert batch["labels"].tolist() == labels and batch["labels"].dtype == dtype


def plan(tmp_path, **overrides):
    """Its rows."""
    console = Console(record=True, width=200)
    print_plan(parse_config(make_config(tmp_path, **overrides), "test"), console)
    rows = [line.strip("│ ").split("│") for line in console.export_text().splitlines() if line.count("│") == 3]
    return {name.strip(): value.strip() for name, value in rows}


@pytest.mark.parametrize(("bootstraps", "expected"), [(True, "those whose last reply is cut"), (False, "none")])
def test_bootstrapped_conversations_are_named(tmp_path, bootstraps, expected):
    found = plan(
        tmp_path,
        reward_fn={"id": "length_penalty", "args": {"max_length": 5}},
        env__args__partner={"id": "scripted", "args": {"replies": ["yes", "no"]}},
        env__args__max_turns=2,
        env__args__max_prompt_length=40,
        env__args__bootstrap_truncated=bootstraps,
    )
    assert found["bootstrapped conversations"].startswith(expected)


LOOP = {"generation__backend": "transformers"}
SEQ2SEQ = {"alg__policy": {"id": "seq2seq_lm_actor_critic_policy", "args": {"model_name": "builtin/tiny-t5"}}}


@pytest.mark.parametrize(
    ("on_gpu", "overrides", "expected"),
    [
        (False, {}, "transformers, because graphs need a CUDA device"),
        (True, {}, "graph"),
        (True, LOOP, "transformers, because generation.backend is transformers"),
        (True, SEQ2SEQ, "transformers, because the cross-attention of an encoder-decoder is not captured"),
    ],
)
def test_sampler_is_named_with_the_reason(tmp_path, monkeypatch, on_gpu, overrides, expected):
    monkeypatch.setattr(memory, "trains_on_gpu", lambda args: on_gpu)
    monkeypatch.setattr(memory, "rows_per_pass", lambda *args: None)  # would ask the GPU for its memory
    monkeypatch.setattr("rl4dialog.training.plan.whole_memory", lambda args: (1e6, "on the GPU"))  # so would this
    reward = {"id": "length_penalty", "args": {"max_length": 5}}
    rows = plan(tmp_path, reward_fn=reward, **overrides)
    assert rows["generation backend"].startswith(expected)
    assert ("memory: kept in updates" in rows) == (expected == "graph")
    assert (rows["memory: program"] == "512 MiB") == on_gpu


def test_graphs_of_a_model_that_cannot_be_captured_are_refused_in_the_plan(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "trains_on_gpu", lambda args: True)
    monkeypatch.setattr(memory, "rows_per_pass", lambda *args: None)
    monkeypatch.setattr("rl4dialog.training.plan.whole_memory", lambda args: (1e6, "on the GPU"))
    monkeypatch.setattr(graph_sampler, "UNCAPTURED", dict.fromkeys(("gpt2", "llama"), "it reads back"))
    reward = {"id": "length_penalty", "args": {"max_length": 5}}
    assert plan(tmp_path, reward_fn=reward)["generation backend"] == "transformers, because it reads back"


@pytest.mark.parametrize("is_half", [True, False])
def test_keys_and_values_are_half_as_wide_under_autocast(is_half):
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=3, hidden_size=64, num_attention_heads=4))
    cache = memory._cache_bytes(model, 10, 6, is_half)
    assert cache == 2 * 3 * 16 * 64 * (2 if is_half else 4)


@pytest.mark.parametrize("error", [KeyError("n_updates"), TypeError("not a list"), ValueError("bad"), OverflowError()])
def test_a_checkpoint_with_another_state_is_named(error, tmp_path):
    def restore(checkpoint):
        raise error

    runner = SimpleNamespace(trainee=SimpleNamespace(restore=restore))
    (tmp_path / "config.json").write_text(json.dumps({KEY: FORMAT}))
    checkpoint = SimpleNamespace(path=tmp_path / "checkpoints" / "iteration_000003")
    with pytest.raises(CheckpointError, match=rf"iteration_000003 cannot be .*{type(error).__name__}.*remove it"):
        module.Trainer._resume(runner, checkpoint)
