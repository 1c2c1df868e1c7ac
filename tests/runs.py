"""Whole runs, small enough for a test: a config over a few DailyDialog files, started through the command line."""

import copy
import json
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from stand_in_data import write_dialogues

from rl4dialog import catalog, cli
from rl4dialog.core.registry import Registry

SMALL = {  # overrides of a shipped config
    "env.args.max_episode_length": 8,
    "alg.args.n_steps": 8,
    "alg.args.batch_size": 8,
    "alg.args.n_epochs": 1,
    "warm_start.n_epochs": 1,
    "train_evaluation.n_iters": 1,
    "train_evaluation.max_eval_samples": 4,
}
CONFIG = {
    "seed": 0,
    "tokenizer": {"model_name": "builtin/tiny-gpt2", "vocab_size": 300},
    "datapool": {"id": "daily_dialog", "args": {"context_size": 2}},
    "reward_fn": {"id": "rouge", "args": {"rouge_type": "rouge1"}},
    "env": {"n_envs": 2, "vec_env": "dummy", "args": {"max_prompt_length": 24, "max_episode_length": 10}},
    "alg": {
        "id": "ppo",
        "args": {"n_steps": 16, "batch_size": 16, "n_epochs": 1, "learning_rate": 1e-4},
        "kl_div": {"coeff": 0.1, "target_kl": 0.2},
        "policy": {
            "id": "causal_lm_actor_critic_policy",
            "args": {"model_name": "builtin/tiny-gpt2", "generation_kwargs": {"do_sample": True}},
        },
    },
    "train_evaluation": {
        "n_iters": 2,
        "eval_every": 1,
        "eval_batch_size": 8,
        "max_eval_samples": 6,
        "metrics": [{"id": "rouge"}, {"id": "length"}],
    },
}

DENSE_REWARD = {"id": "chrf"}
"""Differs from reply to reply, where the config's own is 0 for most: for tests in which weights have to move."""
SHORT = {
    "train_evaluation__n_iters": 1,
    "train_evaluation__max_eval_samples": 2,
    "train_evaluation__metrics": [{"id": "length"}],
}
"""Overrides for a run of one iteration, whose evaluations are as small as can be."""


def make_config(tmp_path, **overrides):
    """The small config; overrides are dotted keys with ``__`` for the dot."""
    path = str(write_dialogues(tmp_path / "dialogues"))
    return changed(changed(CONFIG, {"datapool.args.path": path}), overrides)


def changed(config, overrides, without=...):
    """A copy of a config with other values of dotted keys; the value ``without`` takes a key away."""
    config = copy.deepcopy(config)
    for dotted, value in overrides.items():
        *path, last = dotted.replace("__", ".").split(".")
        block = config
        for key in path:
            block = block.setdefault(key, {})
        if value is without:
            block.pop(last, None)
        else:
            block[last] = value
    return config


def supervised(model="gpt2", **training_args):
    """The block ``alg`` of a supervised run."""
    kind, name = "seq2seq" if model == "t5" else "causal", f"builtin/tiny-{model}"
    return {"id": "supervised", "model_type": kind, "model_name": name, "training_args": training_args}


def write_config(tmp_path, config):
    tmp_path.mkdir(parents=True, exist_ok=True)
    path = tmp_path / "config.yml"
    path.write_text(config if isinstance(config, str) else yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path


def train(tmp_path, config, *flags):
    """Run the command line; the run folder is ``tmp_path / "runs" / "p" / "e"``."""
    return cli.main(train_arguments(tmp_path, config, *flags))


def train_arguments(tmp_path, config, *flags):
    """The command line of :func:`train`."""
    return [
        *("train", "--config_path", str(write_config(tmp_path, config))),
        *("--base_path_to_store_results", str(tmp_path / "runs")),
        *("--project_name", "p", "--experiment_name", "e", *flags),
    ]


def run_folder(tmp_path):
    return tmp_path / "runs" / "p" / "e"


def trained_run(tmp_path, config, *flags):
    """The folder of a run that trained."""
    assert train(tmp_path, config, *flags) == 0
    return run_folder(tmp_path)


def lines(path):
    """The records of a ``.jsonl`` file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def contents(folder):
    """All that a run computed: log lines without times, predictions, and every tensor and state of its checkpoints."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.name.endswith(".jsonl"):
            found[name] = [without_times(line) for line in lines(path)]
        elif path.name.endswith(".jsonl.gz"):
            found[name] = path.read_bytes()
        elif path.name.endswith("predictions.json"):
            found[name] = json.loads(path.read_text(encoding="utf-8"))
        elif path.name == "state.json":
            found[name] = without_times(json.loads(path.read_text(encoding="utf-8")))
            del found[name]["log_sizes"]
        elif path.suffix == ".safetensors":
            found[name] = {key: tensor.numpy().tobytes() for key, tensor in load_file(path).items()}
    return found


def without_times(record):
    """A record without the times and memory in it."""
    if isinstance(record, list):
        return [without_times(each) for each in record]
    if not isinstance(record, dict):
        return record
    measured = ("_s", "_runtime", "_per_second")
    return {
        key: without_times(value)
        for key, value in record.items()
        if not (key.startswith(("time/", "memory/")) or key.endswith(measured))
    }


def assert_same_run(one, other):
    a, b = contents(one), contents(other)
    assert a.keys() == b.keys()
    assert any(name.endswith("optimizer.safetensors") for name in a)
    assert [name for name in a if a[name] != b[name]] == []


SAMPLING = {"do_sample": True, "top_k": 20, "max_new_tokens": 8}


@contextmanager
def complete_run(folder, config):
    """Trains in a folder that a whole test module reads; its cache is in there too.

    Modules of files in the folder are forgotten at the end, so that others may import files of the same name.
    """
    with pytest.MonkeyPatch.context() as patch:
        keep_registries(patch)
        patch.setenv("RL4DIALOG_CACHE", str(folder / "cache"))
        torch.set_num_threads(1)
        try:
            assert train(folder, config) == 0
            yield
        finally:
            for name, module in [*sys.modules.items()]:
                if (file := getattr(module, "__file__", None)) and Path(file).is_relative_to(folder):
                    del sys.modules[name]


def module_run(config_of):
    """A fixture: the folder of a complete run that all tests of a module read, and leave as it is."""

    @pytest.fixture(scope="module")
    def run(tmp_path_factory):
        folder = tmp_path_factory.mktemp("whole")
        with complete_run(folder, config_of(folder)):
            yield run_folder(folder)

    return run


def keep_registries(patch):
    """Have what is registered from now on forgotten when the patch is undone."""
    for registry in (value for value in vars(catalog).values() if isinstance(value, Registry)):
        patch.setattr(registry, "_entries", dict(registry._entries))
