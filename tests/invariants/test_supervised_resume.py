"""A supervised run that is stopped and resumed is the run that was never stopped, bit by bit."""

import math
import multiprocessing
import os
import shutil
import signal

import pytest
import torch
from covering import quick
from runs import assert_same_run, lines, make_config, run_folder, supervised, train, trained_run

from rl4dialog import cli
from rl4dialog.training.supervised import SupervisedTrainer

N_STEPS = 6  # of an epoch


def config_of(tmp_path, model="gpt2", **overrides):
    """Three epochs with a checkpoint after each."""
    warming = {"learning_rate": 1e-3, "lr_scheduler_type": "cosine", "warmup_ratio": 0.2}
    alg = supervised(model, num_train_epochs=3, per_device_train_batch_size=4, logging_steps=4, **warming)
    settings = {
        "alg": alg,
        "train_evaluation__save_every": 1,
        "train_evaluation__eval_every": 1,
        "train_evaluation__keep_last": 9,
        "train_evaluation__max_eval_samples": 2,
        **overrides,
    }
    return make_config(tmp_path, **settings)


def send_once(number, step, monkeypatch):
    """Send this process a signal once, at the start of a step."""
    training_step, sent = SupervisedTrainer.training_step, []

    def signalled(self, *args, **kwargs):
        if self.state.global_step + 1 == step and not sent:
            sent.append(step)
            os.kill(os.getpid(), number)
        return training_step(self, *args, **kwargs)

    monkeypatch.setattr(SupervisedTrainer, "training_step", signalled)


def runs_of(tmp_path, **overrides):
    """A whole run, the folder for the other one, and their config."""
    whole, other = tmp_path / "whole", tmp_path / "other"
    config = config_of(tmp_path, **overrides)
    assert train(whole, config) == 0
    return whole, other, config


ARGS = "alg__training_args"
SETTINGS = {
    "seq2seq_adafactor": (4, {"model": "t5", f"{ARGS}__optim": "adafactor", f"{ARGS}__save_strategy": "epoch"}),
    # NEFTune's noise is drawn in every step.
    "lora_noise_bf16_max_steps": (
        7,
        {
            "lora": {"r": 2, "target_modules": ["c_attn"]},
            "precision": "bf16",
            f"{ARGS}__neftune_noise_alpha": 5.0,
            f"{ARGS}__max_steps": 8,
        },
    ),
    "half_epoch_random_order_sgd": (
        4,
        {
            f"{ARGS}__gradient_accumulation_steps": 2,
            f"{ARGS}__num_train_epochs": 2.5,
            f"{ARGS}__train_sampling_strategy": "random",
            f"{ARGS}__optim": "sgd",
        },
    ),
    "evaluations_of_transformers": (
        8,
        {
            f"{ARGS}__lr_scheduler_type": "reduce_lr_on_plateau",
            f"{ARGS}__eval_strategy": "steps",
            f"{ARGS}__eval_steps": 3,
        },
    ),
}


@pytest.mark.parametrize(
    "name", quick("seq2seq_adafactor", "lora_noise_bf16_max_steps", "half_epoch_random_order_sgd", of=SETTINGS)
)
def test_run_that_a_signal_stopped_within_an_epoch_is_the_whole_run(tmp_path, monkeypatch, name):
    step, overrides = SETTINGS[name]
    whole, stopped, config = runs_of(tmp_path, **overrides)
    send_once(signal.SIGTERM, step, monkeypatch)
    assert train(stopped, config) == cli.EXIT_INTERRUPTED
    assert (run_folder(stopped) / "checkpoints" / "unfinished_iteration").exists()
    assert train(stopped, config, "--resume") == 0
    assert_same_run(run_folder(whole), run_folder(stopped))
    # transformers' own checkpoints are written only where they are asked for.
    assert (run_folder(whole) / "checkpoints" / "checkpoint-18").exists() == (f"{ARGS}__save_strategy" in overrides)


def test_signal_at_the_end_of_an_epoch_saves_the_epoch(tmp_path, monkeypatch):
    overrides = {"train_evaluation__save_every": None, f"{ARGS}__num_train_epochs": 2.5}
    whole, stopped, config = runs_of(tmp_path, **overrides)
    for step in (N_STEPS, int(2.5 * N_STEPS)):
        send_once(signal.SIGTERM, step, monkeypatch)
        assert train(stopped, config, "--resume", "auto") == cli.EXIT_INTERRUPTED
        names = sorted(path.name for path in (run_folder(stopped) / "checkpoints").iterdir())
        assert names[-1] == f"iteration_{math.ceil(step / N_STEPS):06d}"
    shutil.rmtree(trained_run(stopped, config, "--resume") / "checkpoints" / "iteration_000001")
    assert_same_run(run_folder(whole), run_folder(stopped))


def test_early_stopping_and_the_best_model_are_those_of_the_whole_run(tmp_path, monkeypatch, capsys):
    metric = {"metric": "length/words", "mode": "min"}
    callbacks = [{"id": "early_stopping", "args": {**metric, "patience": 2}}, {"id": "save_best_model", "args": metric}]
    whole, stopped, config = runs_of(tmp_path, callbacks=callbacks)
    assert "stopped after iteration 2 of 3 by early_stopping: val length/words was best" in capsys.readouterr().err
    send_once(signal.SIGTERM, N_STEPS + 3, monkeypatch)
    assert train(stopped, config) == cli.EXIT_INTERRUPTED
    best = (run_folder(stopped) / "best_model" / "model.safetensors").read_bytes()
    for _ in range(2):  # the second time, as if it had been killed at its very end
        assert (trained_run(stopped, config, "--resume") / "best_model" / "model.safetensors").read_bytes() == best
        assert_same_run(run_folder(whole), run_folder(stopped))
        (run_folder(stopped) / "result.json").unlink()


def test_another_length_or_other_data_are_refused(tmp_path, capsys, refused):
    config = config_of(tmp_path)
    assert train(tmp_path, config) == 0
    longer = ("--resume", "--set", "alg.training_args.num_train_epochs=4")
    refused(train(tmp_path, config, *longer), "alg.training_args.num_train_epochs was 3 and is now 4")
    assert train(tmp_path, config, "--resume") == 0
    assert "is complete; pass --overwrite to train it again\n" in capsys.readouterr().out
    (run_folder(tmp_path) / "result.json").unlink()
    for path in (tmp_path / "dialogues").glob("*_train.txt"):
        path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]), encoding="utf-8")
    refused(train(tmp_path, config, "--resume"), "(split train)")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a process that has used a GPU cannot be forked")
def test_killed_run_goes_on_as_if_nothing_had_happened(tmp_path):
    """Killed in the middle of the second epoch, without any warning."""
    whole, killed, config = runs_of(tmp_path)
    arguments = (killed, config, N_STEPS + 3)
    process = multiprocessing.get_context("fork").Process(target=_train_until_killed, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert train(killed, config, "--resume") == 0
    assert_same_run(run_folder(whole), run_folder(killed))
    (info,) = lines(run_folder(killed) / "training_info.jsonl")
    assert (info["iteration"], info["n_steps"]) == (3, 3 * N_STEPS)


def _train_until_killed(folder, config, step):
    with pytest.MonkeyPatch.context() as patch:
        send_once(signal.SIGKILL, step, patch)
        train(folder, config, "--resume", "auto")
