"""What is kept of a run while it trains, what is passed over, and which resumptions are refused."""

import errno
import json
import os
import signal

import pytest
import torch
from runs import lines, make_config, run_folder, train, trained_run
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rl4dialog import cli
from rl4dialog.algorithms.on_policy.ppo import PPO
from rl4dialog.core.errors import TrainingError
from rl4dialog.policies import saving
from rl4dialog.runs.run_folder import only_writer
from rl4dialog.training.checkpoint import best_checkpoint, newest_checkpoint
from rl4dialog.training.evaluation import Evaluator


def config_of(tmp_path, **overrides):
    settings = {
        "train_evaluation__n_iters": 3,
        "train_evaluation__save_every": 1,
        "train_evaluation__max_eval_samples": 2,
        "train_evaluation__metrics": [{"id": "length"}],
        **overrides,
    }
    return make_config(tmp_path, **settings)


def train_but_for_the_end(tmp_path, config, *flags):
    """A run that was killed after its last iteration."""
    (trained_run(tmp_path, config, *flags) / "result.json").unlink()


def kept(tmp_path):
    return sorted(int(path.name.split("_")[1]) for path in (run_folder(tmp_path) / "checkpoints").glob("iteration_*"))


def contents(tmp_path):
    """Every file of the run."""
    return {path: path.read_bytes() for path in run_folder(tmp_path).rglob("*") if path.is_file()}


def test_last_and_best_are_kept_and_load_with_transformers(tmp_path):
    keep = {"train_evaluation__keep_last": 1, "train_evaluation__keep_best": "length/words"}
    # Without a run to resume, auto begins one.
    assert train(tmp_path, config_of(tmp_path, **keep, train_evaluation__n_iters=4), "--resume", "auto") == 0
    words = {
        line["epoch"]: line["metrics"]["length/words"]
        for line in lines(run_folder(tmp_path) / "val_split_metrics.jsonl")
        if 0 < line["epoch"] < 4
    }
    best = best_checkpoint(run_folder(tmp_path))
    assert best is not None
    assert best["value"] == max(words.values()) == words[best["iteration"]]
    assert kept(tmp_path) == sorted({best["iteration"], 4})
    model = run_folder(tmp_path) / "checkpoints" / "iteration_000004" / "model"
    assert AutoModelForCausalLM.from_pretrained(model).num_parameters() > 0
    assert len(AutoTokenizer.from_pretrained(model)) == 300


def test_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path, caplog, capsys):
    config = config_of(tmp_path)
    train_but_for_the_end(tmp_path, config)
    newest = run_folder(tmp_path) / "checkpoints" / "iteration_000003"
    with (newest / "optimizer.safetensors").open("r+b") as file:
        file.truncate(100)
    assert train(tmp_path, config, "--resume") == 0
    assert "optimizer.safetensors has 100 bytes" in caplog.text
    assert "Resumed after iteration 2 of 3" in capsys.readouterr().err
    found = newest_checkpoint(run_folder(tmp_path))
    assert found is not None
    assert found.iteration == 3
    assert [line["iteration"] for line in lines(run_folder(tmp_path) / "rollout_info.jsonl")] == [1, 2, 3]


def test_full_disk_at_save_time_costs_the_checkpoint_and_not_the_run(tmp_path, caplog, monkeypatch):
    real, n_saved = saving.save_file, 0

    def full_after_the_first(tensors, path):
        nonlocal n_saved
        n_saved += 1
        if n_saved > 3:  # critic and optimizer of iteration 0, and the critic of iteration 1
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(tensors, path)

    monkeypatch.setattr(saving, "save_file", full_after_the_first)
    assert train(tmp_path, config_of(tmp_path)) == 0
    assert "the checkpoint of iteration 1 could not be saved" in caplog.text
    assert "No space left" in caplog.text
    assert os.listdir(run_folder(tmp_path) / "checkpoints") == ["iteration_000000"]
    assert len(lines(run_folder(tmp_path) / "training_info.jsonl")) == 3


def test_run_that_was_stopped_after_its_last_iteration_does_what_follows_it_once(tmp_path, capsys, monkeypatch):
    settings = {"n_iters": 1, "save_every": None, "keep_best": "length/words"}
    config = config_of(tmp_path, **{f"train_evaluation__{key}": value for key, value in settings.items()})
    interruptions = [lambda: _raise(KeyboardInterrupt), lambda: os.kill(os.getpid(), signal.SIGTERM)]
    run = Evaluator.run

    def interrupted(self, policy, split, epoch, *rest):
        if (split, epoch) == ("val", 1) and interruptions:
            interruptions.pop(0)()
        return run(self, policy, split, epoch, *rest)

    monkeypatch.setattr(Evaluator, "run", interrupted)
    assert train(tmp_path, config) == 130
    assert best_checkpoint(run_folder(tmp_path)) is None
    assert train(tmp_path, config, "--resume") == cli.EXIT_INTERRUPTED
    assert "stopped by SIGTERM after iteration 1; saved" in capsys.readouterr().err
    best = best_checkpoint(run_folder(tmp_path))
    assert best is not None and best["iteration"] == 1
    assert train(tmp_path, config, "--resume") == 0
    for split in ("val", "test"):
        assert [line["epoch"] for line in lines(run_folder(tmp_path) / f"{split}_split_metrics.jsonl")] == [0, 1]
    assert len(lines(run_folder(tmp_path) / "training_info.jsonl")) == 1


def test_same_command_continues_an_interrupted_run_and_begins_one_that_never_trained_anew(
    tmp_path, capsys, caplog, monkeypatch, refused
):
    config = config_of(tmp_path)
    with monkeypatch.context() as fails:
        fails.setattr(PPO, "train", lambda *args: _raise(TrainingError))
        refused(train(tmp_path, config, "--set", "seed=7"))
    assert kept(tmp_path) == [0]
    interruptions = [lambda: os.kill(os.getpid(), signal.SIGTERM)]
    run = Evaluator.run

    def interrupted(self, policy, split, epoch, *rest):
        if epoch == 1 and interruptions:
            interruptions.pop(0)()
        return run(self, policy, split, epoch, *rest)

    monkeypatch.setattr(Evaluator, "run", interrupted)
    assert train(tmp_path, config) == cli.EXIT_INTERRUPTED
    assert "ended before its first iteration; this one replaces it" in caplog.text
    refused(train(tmp_path, config, "--set", "seed=7"), "seed was 0 and is now 7")
    assert train(tmp_path, config) == 0
    assert "resumed after iteration 1; --overwrite would start again\n" in capsys.readouterr().err
    assert [line["iteration"] for line in lines(run_folder(tmp_path) / "training_info.jsonl")] == [1, 2, 3]


def _raise(error):
    raise error


def test_resumptions_that_make_no_sense_are_refused(tmp_path, capsys, refused):
    config = config_of(tmp_path)
    refused(train(tmp_path, config, "--resume"), "no run to resume in")
    assert not run_folder(tmp_path).exists()
    train_but_for_the_end(tmp_path, config)
    capsys.readouterr()
    refused(train(tmp_path, config, "--resume", "--overwrite"), "pass only one of them")
    for change, message in (
        ("alg.args.learning_rate=0.5", "alg.args.learning_rate was 0.0001 and is now 0.5"),
        ("train_evaluation.n_iters=1", "is a checkpoint of iteration 3, but train_evaluation.n_iters is 1"),
    ):
        refused(train(tmp_path, config, "--resume", "--set", change), message)
    before = contents(tmp_path)
    for path in (tmp_path / "dialogues").glob("*_train.txt"):
        path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]), encoding="utf-8")
    words = ("the samples of datapool 'daily_dialog' or their order have changed", "(split train)")
    refused(train(tmp_path, config, "--resume"), *words)
    assert contents(tmp_path) == before
    unknown = ("--overwrite", "--set", "train_evaluation.keep_best=length/word")
    refused(train(tmp_path, config, *unknown), "no metric 'length/word'; did you mean 'length/words'?")


def test_run_that_another_process_trains_is_refused(tmp_path, refused):
    config = config_of(tmp_path)
    with only_writer(run_folder(tmp_path)):
        for flags in ((), ("--resume", "auto"), ("--overwrite",)):
            refused(train(tmp_path, config, *flags), "another process is writing to the run in")
        assert os.listdir(run_folder(tmp_path)) == [".lock"]


def test_another_reference_is_refused(tmp_path, capsys, refused):
    assert train(tmp_path, config_of(tmp_path, train_evaluation__n_iters=0)) == 0
    model = tmp_path / "start"
    (run_folder(tmp_path) / "model").rename(model)
    named = {"tokenizer": {"model_name": str(model)}, "alg__policy__args__model_name": str(model)}
    config = config_of(tmp_path, **named, train_evaluation__n_iters=1)
    train_but_for_the_end(tmp_path, config, "--overwrite")
    changed = AutoModelForCausalLM.from_pretrained(model)
    changed.transformer.wte.weight.data[0, 0] += 1
    changed.save_pretrained(model)
    capsys.readouterr()
    before = contents(tmp_path)
    refused(train(tmp_path, config, "--resume"), "the reference of the KL penalty")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("mode", ["max", "min"])
def test_training_ends_with_the_best_model_if_asked(tmp_path, mode, capsys):
    keep = {"metric": "length/words", "mode": mode, "restore": True}
    config = config_of(
        tmp_path, train_evaluation__keep_best=keep, train_evaluation__keep_last=1, train_evaluation__eval_every=1
    )
    folder = trained_run(tmp_path, config, "--set", "alg.args.learning_rate=0.01")
    said = capsys.readouterr()

    best, result = best_checkpoint(folder), json.loads((folder / "result.json").read_text())
    assert best is not None
    after = {line["epoch"]: line["metrics"] for line in lines(folder / "val_split_metrics.jsonl")}
    choose = max if mode == "max" else min
    words = {epoch: metrics["length/words"] for epoch, metrics in after.items()}
    assert [*words] == [0, 1, 2, 3] and words[best["iteration"]] == choose(words.values())
    assert best["iteration"] == next(epoch for epoch in words if words[epoch] == choose(words.values()))

    # The model, what was measured last, and the result are those of this iteration; the last one can go on.
    saved = load_file(folder / "model" / "model.safetensors")
    expected = load_file(folder / "checkpoints" / f"iteration_{best['iteration']:06d}" / "model" / "model.safetensors")
    assert saved.keys() == expected.keys() and all(torch.equal(saved[name], expected[name]) for name in saved)
    assert [line["epoch"] for line in lines(folder / "test_split_metrics.jsonl")] == sorted({0, best["iteration"]})
    assert result["val"]["after"] == after[best["iteration"]]
    assert kept(tmp_path) == sorted({best["iteration"], 3})
    assert ("kept the model" in said.err) is (best["iteration"] < 3)

    assert train(tmp_path, config, "--set", "alg.args.learning_rate=0.01", "--set", "train_evaluation.n_iters=4") == 0
    assert [line["iteration"] for line in lines(folder / "rollout_info.jsonl")] == [1, 2, 3, 4]
