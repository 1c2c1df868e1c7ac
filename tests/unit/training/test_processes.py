"""Signals that stop a run, and random states."""

import json
import os
import random
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rl4dialog import cli
from rl4dialog.core.errors import RunInterrupted
from rl4dialog.training.interruption import StopSignals
from rl4dialog.training.random_state import random_state, random_states_kept, set_random_state


def test_first_signal_stops_and_a_second_sigterm_changes_nothing():
    with StopSignals(), pytest.raises(RunInterrupted, match=r"^stopped by SIGTERM$"), StopSignals():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
    with StopSignals() as outer:
        with StopSignals() as inner:
            inner.deferred = True
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # while what the inner one guarded is closed
        assert outer.received == "SIGTERM"


def test_second_ctrl_c_stops_at_once():
    with StopSignals() as signals:
        signals.deferred = True
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt) as stopped:
            os.kill(os.getpid(), signal.SIGINT)
        assert not isinstance(stopped.value, RunInterrupted)


def test_sigterm_after_the_stop_leaves_the_exit_code(monkeypatch, capsys):
    def stop(args):
        raise RunInterrupted("stopped by SIGTERM")

    monkeypatch.setitem(cli.COMMANDS, "train", SimpleNamespace(run=stop, options=(), is_resumable=True))
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert cli._run("train", SimpleNamespace()) == 75
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == "stopped by SIGTERM. Rerun the command to continue.\n"


def draw():
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(()).item()]


def test_generators_draw_the_same_again_after_a_trip_through_json():
    draw()
    text = json.dumps(random_state())
    expected = [draw() for _ in range(3)]
    set_random_state(json.loads(text))
    assert [draw() for _ in range(3)] == expected


def test_the_generator_of_apples_gpu_draws_the_same_again(monkeypatch):
    with_none, state = random_state(), [torch.tensor([1, 2], dtype=torch.uint8)]
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: state[0])
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda new: state.insert(0, new))
    text = json.dumps(random_state())
    with random_states_kept():
        state.insert(0, torch.tensor([3, 4], dtype=torch.uint8))
    assert state[0].tolist() == [1, 2]
    state.insert(0, torch.tensor([5, 6], dtype=torch.uint8))
    set_random_state(with_none)
    assert state[0].tolist() == [5, 6], "a checkpoint of another machine has none"
    set_random_state(json.loads(text))
    assert state[0].tolist() == [1, 2]
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    set_random_state(json.loads(text))  # and is resumed on one


def test_states_of_gpus_that_are_not_there_any_more_are_left_out_with_a_warning(monkeypatch, caplog):
    found = {}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: found.update({device: state.tolist()}))
    state = {**random_state(), "cuda": ["0102", "0304"]}
    set_random_state(state)
    assert found == {0: [1, 2]}
    assert "the random states of 2 GPUs, but there are 1 now" in caplog.text
    caplog.clear()
    set_random_state({**state, "cuda": ["0506"]})
    assert found == {0: [5, 6]} and not caplog.records
