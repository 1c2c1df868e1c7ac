"""Callbacks of every run."""

import errno
import gzip
import json
import math
import os
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stable_baselines3.common.logger import Logger
from two_processes import in_two_processes

from rl4dialog.core.errors import ConfigError, RunInterrupted
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn
from rl4dialog.runs import run_folder as run_folder_module
from rl4dialog.runs.run_folder import CONVERSATIONS_FILE, RunFolder
from rl4dialog.training.callbacks import run as module
from rl4dialog.training.callbacks.base import EvaluationResult, MetricHistory
from rl4dialog.training.callbacks.run import CheckpointCallback, ConversationLogCallback
from rl4dialog.training.checkpoint import CheckpointStore, best_checkpoint, newest_checkpoint
from rl4dialog.training.interruption import StopSignals
from rl4dialog.training.policy_trainee import rates_and_shown

BEFORE = [EvaluationResult(0, "val", {"m": 0.1, "reward": 0.2}), EvaluationResult(0, "test", {"other": 1.0})]


class Weightless:
    """Something that is trained and weighs nothing."""

    is_within_iteration = False
    stops_within_iteration = True

    def __init__(self, model):
        self._model = model

    def capture_state(self):
        return {"iteration": self._model.iteration, "is_unfinished": self.is_within_iteration}

    def save_state(self, folder): ...

    def restore(self, checkpoint): ...


class Run:
    """Its run."""

    def __init__(self, folder, every=10, keep_best="m", mode="max"):
        self.folder, self.signals = RunFolder(folder, "p", "e"), StopSignals()
        self.store = CheckpointStore(self.folder, keep_last=2)
        tracker = SimpleNamespace(run_folder=self.folder, run_ids={})
        self.model = SimpleNamespace(iteration=0, num_timesteps=0, logger=None, get_env=lambda: None)
        self.trainee = Weightless(self.model)
        self.evaluations = list(BEFORE)
        history = MetricHistory(self.evaluations, keep_best, mode, "train_evaluation.keep_best")
        self.callback = CheckpointCallback(self.store, tracker, self.signals, self.trainee, every, history)
        self.callback.init_callback(self.model)

    @property
    def kept(self):
        return sorted(path.name for path in self.folder.path("checkpoints").glob("*"))

    def iterate(self, received=None):
        """An iteration in whose update a signal may come."""
        self.callback.on_rollout_start()
        self.model.iteration += 1
        self.callback.on_rollout_end()
        self.signals.received = received

    def evaluate(self, **metrics):
        self.model.iteration += 1
        self.callback._capture()
        self.evaluations.append(EvaluationResult(self.model.iteration, "val", metrics))
        self.callback.evaluated()


@pytest.mark.parametrize("every", [10, None])
def test_signal_in_the_last_update_saves_and_stops(tmp_path, every):
    run = Run(tmp_path, every)
    run.model.iteration = 1
    run.iterate(received="SIGTERM")
    with pytest.raises(RunInterrupted, match=r"^stopped by SIGTERM after iteration 2; saved$"):
        run.callback.on_training_end()
    assert run.kept == ["iteration_000002"]


def test_signal_within_an_iteration_saves_the_unfinished_one(tmp_path):
    run = Run(tmp_path, every=2)
    run.model.iteration = 2
    run.callback.on_rollout_start()
    run.trainee.is_within_iteration, run.signals.received = True, "SIGTERM"
    with pytest.raises(RunInterrupted, match=r"^stopped by SIGTERM within iteration 3; saved$"):
        run.callback.on_step()
    assert run.kept == ["iteration_000002", "unfinished_iteration"]
    newest = newest_checkpoint(run.folder.root)
    assert newest is not None and newest.is_unfinished and newest.iteration == 2
    run.trainee.is_within_iteration, run.signals.received, run.model.iteration = False, None, 4
    run.callback.on_rollout_start()
    assert run.kept == ["iteration_000002", "iteration_000004"], "the unfinished one is of no use any more"


def test_no_process_ends_before_the_main_one_has_saved(tmp_path):
    """A launcher kills all others soon after the first one that ends."""

    def work(process):
        run = Run(tmp_path)
        run.model.iteration, run.signals.received = 2, "SIGTERM"
        if process == 0:
            run.trainee.save_state = lambda folder: time.sleep(0.3)
        else:
            run.callback._store, run.callback._tracker = CheckpointStore(None), None
        with pytest.raises(RunInterrupted):
            run.callback.on_rollout_start()
        return run.kept

    assert in_two_processes(work, tmp_path) == (["iteration_000002"], ["iteration_000002"])


def test_last_iteration_is_saved_in_any_case(tmp_path):
    run = Run(tmp_path, every=None)
    run.iterate()
    run.callback.on_training_end()
    assert run.kept == ["iteration_000001"]
    run.callback.stop_if_asked()


def test_value_that_is_no_number_or_not_there_is_not_the_best(tmp_path, caplog):
    run = Run(tmp_path, mode="min")  # what is worse than before training, 0.1, is the best of the others
    run.callback.on_training_start({}, {})
    run.evaluate(m=math.nan)
    run.evaluate(other=1.0)
    assert best_checkpoint(run.folder.root) is None and run.kept == []
    assert "iteration 2 cannot be the best: its evaluation has no m" in caplog.text
    run.evaluate(m=0.5)
    run.evaluate(m=math.nan)
    run.evaluate()
    run.evaluate(m=-math.inf)
    assert best_checkpoint(run.folder.root) == {"iteration": 3, "metric": "m", "value": 0.5}
    run.evaluate(m=0.4)
    assert best_checkpoint(run.folder.root)["iteration"] == 7


def test_wrong_metric_is_told_before_the_training(tmp_path):
    run = Run(tmp_path, keep_best="rewrad")
    message = r"keep_best: the evaluations have no metric 'rewrad'; did you mean 'reward'\? \(they have: m, reward\)"
    with pytest.raises(ConfigError, match=message):
        run.callback.on_training_start({}, {})
    run.model.iteration = 3
    run.callback.on_training_start({}, {})  # resumed, and perhaps with another metric


def test_full_disk_costs_the_mark_and_not_the_run(tmp_path, monkeypatch, caplog):
    run = Run(tmp_path)
    run.evaluate(m=0.5)

    def full(one, other):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run_folder_module.os, "replace", full)
    run.evaluate(m=0.6)
    assert "iteration 2 could not be marked as the best" in caplog.text and "No space left" in caplog.text
    assert best_checkpoint(run.folder.root) == {"iteration": 1, "metric": "m", "value": 0.5}


def dialogue(id):
    return Dialogue(id, (Turn("u", PARTNER), Turn(f"said {id}", AGENT)), n_given=1)


def log(tracker, iteration, *ids):
    """Log the rollout of an iteration."""
    callback = ConversationLogCallback(tracker)
    callback.model = SimpleNamespace(iteration=iteration, collector=SimpleNamespace(dialogues=list(map(dialogue, ids))))
    callback._on_rollout_end()


def logged(folder):
    """Iteration, id, sample and last text of each line."""
    text = gzip.decompress(folder.path(CONVERSATIONS_FILE).read_bytes()).decode()
    records = map(json.loads, text.splitlines())
    return [(each["iteration"], each["id"], each["sample_id"], each["messages"][-1]["content"]) for each in records]


def test_main_process_writes_the_conversations_of_all(tmp_path):
    folder = RunFolder(tmp_path, "p", "e")

    def work(process):
        log(SimpleNamespace(run_folder=folder) if process == 0 else None, 3, f"of {process}", f"too of {process}")

    in_two_processes(work, tmp_path)
    log(SimpleNamespace(run_folder=folder), 4, "of 0")
    assert logged(folder) == [
        *((3, f"3_{i}", id, f"said {id}") for i, id in enumerate(("of 0", "too of 0", "of 1", "too of 1"))),
        (4, "4_0", "of 0", "said of 0"),
    ]


def test_what_other_callbacks_take_between_iterations_does_not_count(monkeypatch):
    now, phases, infos = 0.0, list[str](), list[dict[str, Any]]()
    monkeypatch.setattr(module.time, "perf_counter", lambda: now)
    tracker = SimpleNamespace(log_rollout_infos=lambda _: 0, log_training_infos=infos.append, show=lambda: 0)
    progress = SimpleNamespace(advance=lambda **_: phases.append("advance"), enter=lambda to="": phases.append(to))
    tracking = module.TrackingCallback(tracker, progress, rates_and_shown)
    model = SimpleNamespace(
        logger=Logger(None, []), ep_info_buffer=[], iteration=0, device=torch.device("cpu"), get_env=lambda: None
    )
    for callback in (tracking, tracking.last):
        callback.init_callback(model)
    for _ in range(2):
        tracking.on_rollout_start()
        now += 100.0  # an evaluation
        tracking.last.on_rollout_start()
        now += 3.0
        for name, value in (("tokens", 40.0), ("task_reward", 0.0), ("kl", 0.0)):
            model.logger.record(f"rollout/{name}", value)
        model.iteration += 1
        tracking.on_rollout_end()
        tracking.last.on_rollout_end()
        now += 1.0
    tracking.on_training_end()
    assert [(info["time/tokens_per_s"], info["time/update_s"]) for info in infos] == [(10.0, 1.0)] * 2
    assert phases == ["rollout", "update", "", "advance"] * 2
