"""Bars on a terminal, lines elsewhere and in the log."""

import logging

import pytest

from rl4dialog.runs import progress as module
from rl4dialog.runs.progress import PROGRESS_LOGGER_NAME, Progress, duration, say


@pytest.fixture
def log():
    """What ``log.txt`` would get."""
    handler, lines = logging.Handler(), list[str]()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger(PROGRESS_LOGGER_NAME).addHandler(handler)
    yield lines
    logging.getLogger(PROGRESS_LOGGER_NAME).removeHandler(handler)


@pytest.fixture
def seconds(monkeypatch):
    """A clock that a test sets."""
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


def test_lines_without_a_terminal_tell_numbers_and_time_left(capsys, log, seconds):
    with Progress("", "iteration", 30, initial=1) as progress:
        for _ in range(2):
            seconds[0] += 5.6
            progress.advance(shown={"reward": "0.412", "KL": "0.051", "tokens/s": "459"})
    expected = [
        "iteration 2/30: reward 0.412, KL 0.051, 459 tokens/s, 2 min 37 s left",
        "iteration 3/30: reward 0.412, KL 0.051, 459 tokens/s, 2 min 31 s left",
    ]
    assert capsys.readouterr().err.splitlines() == expected
    assert log == expected


def test_terminal_gets_a_bar_and_the_log_lines(capsys, log, monkeypatch):
    monkeypatch.setattr(module, "_shows_bars", lambda: True)
    with Progress("", "iteration", 2) as progress:
        progress.enter("rollout")
        progress.enter()
        progress.advance(shown={"reward": "0.412"})
        say("in the log alone")
        say("stopped", on_terminals=True)
        progress.advance(shown={"reward": "0.5"})
    shown = capsys.readouterr().err.replace("\r", "\n").splitlines()
    assert any(line.startswith("Iteration: 100%") and "reward=0.5" in line for line in shown)
    assert any(line.startswith("Iteration (rollout): ") for line in shown)
    assert "stopped" in [line.strip() for line in shown] and not any("in the log" in line for line in shown)
    assert log[0].startswith("iteration 1/2: reward 0.412, ") and log[0].endswith(" left")
    assert log[1:3] == ["in the log alone", "stopped"]
    assert log[3] == "iteration 2/2: reward 0.5, after 0 s"


def test_many_small_steps_make_few_lines(log, seconds):
    with Progress("Warm start", "step", 100, line_every_s=10.0) as progress:
        for _ in range(100):
            seconds[0] += 0.3
            progress.advance()
    assert log == [
        "Warm start, step 34/100: 20 s left",
        "Warm start, step 68/100: 10 s left",
        "Warm start, step 100/100: after 30 s",
    ]


def test_only_the_main_process_speaks(capsys, log, monkeypatch):
    monkeypatch.setattr(module, "is_main_process", lambda: False)
    with Progress("", "iteration", 1) as progress:
        progress.advance()
    monkeypatch.undo()
    with Progress("Evaluating val", "prompt", 8, line_every_s=60.0, line_at_end=False) as progress:
        progress.advance(8)
    assert capsys.readouterr().err == "" and log == [], "the caller writes the last line"


@pytest.mark.parametrize(
    ("value", "text"), [(0.4, "0 s"), (59.6, "1 min 00 s"), (151, "2 min 31 s"), (3 * 3600 + 299, "3 h 04 min")]
)
def test_duration_reads_like_a_time(value, text):
    assert duration(value) == text
