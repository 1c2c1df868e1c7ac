"""The top of a report."""

import pytest
from run_files import write_json, write_lines, write_run

from rl4dialog.runs.reading import read_run
from rl4dialog.runs.report.overview import Warning, facts, missing, run_warnings, subtitle

LOG = """\
2026-01-02 10:00:00,000 INFO rl4dialog.progress: start
2026-01-02 10:00:05,000 WARNING rl4dialog.training.watch: iteration 7: KL is negative (negative_kl). Do this.
2026-01-02 10:00:06,000 WARNING rl4dialog.data: dropped 3 samples
Traceback (most recent call last):
2026-01-02 10:00:07,000 WARNING rl4dialog.data: dropped 3 samples
2026-01-02 10:00:08,000 WARNING rl4dialog.runs.report.pages: the report of the run could not be written (E: no)
2026-01-02 11:02:00,000 INFO rl4dialog.progress: end
"""
CPU = {"cpu": "Epyc", "torch_threads": 2, "gpus": [], "processes": 1}


def test_state_date_duration_and_device_are_told(tmp_path):
    write_run(tmp_path)
    (tmp_path / "log.txt").write_text(LOG)
    write_json(tmp_path / "provenance.json", {"start_time": "2026-01-02T10:00:00+00:00", "hardware": CPU})
    found = subtitle(read_run(tmp_path), "complete")
    assert found == ["complete", "2 January 2026, 10:00 UTC", "1 h 2 min", "CPU Epyc, 2 threads"]
    write_json(tmp_path / "provenance.json", {"resumed": [{}, {}]})
    assert subtitle(read_run(tmp_path), "stopped") == ["stopped, resumed 2 times", "1 h 2 min, pauses included"]


@pytest.mark.parametrize(
    ("device", "processes", "shown"),
    [("auto", 1, "H100"), ("auto", 4, "4 processes, H100"), ("cpu", 1, "CPU Epyc, 2 threads")],
)
def test_gpu_is_named_if_the_run_used_it(tmp_path, device, processes, shown):
    write_run(tmp_path, alg={"args": {"device": device}})
    hardware = {**CPU, "gpus": [{"name": "H100"}], "processes": processes}
    write_json(tmp_path / "provenance.json", {"hardware": hardware})
    assert subtitle(read_run(tmp_path), "complete") == ["complete", shown]


@pytest.mark.parametrize(
    "provenance",
    [{}, {"resumed": 3, "hardware": {"gpus": 3}}, {"start_time": 3, "hardware": "cpu"}, {"hardware": {"gpus": [1]}}],
)
def test_provenance_of_another_form_is_left_out(tmp_path, provenance):
    write_json(write_run(tmp_path) / "provenance.json", provenance)
    assert subtitle(read_run(tmp_path), "complete")[0] == "complete"


def test_warnings_of_the_checks_come_first_and_each_once(tmp_path):
    write_run(tmp_path)
    (tmp_path / "log.txt").write_text(LOG)
    record = {"iteration": 7, "name": "negative_kl", "message": "KL is negative", "advice": "Do this."}
    write_lines(tmp_path / "warnings.jsonl", [record])
    found = run_warnings(read_run(tmp_path))
    assert found == [Warning("Iteration 7: KL is negative", "Do this."), Warning("dropped 3 samples")]
    (tmp_path / "warnings.jsonl").unlink()
    assert [each.message[:11] for each in run_warnings(read_run(tmp_path))] == ["iteration 7", "dropped 3 s"]


def test_run_without_an_end_is_named(tmp_path):
    run = read_run(write_run(tmp_path))
    running, stopped = (missing(run, "test", state)[0] for state in ("running", "stopped"))
    assert running == "The run is still running; this is its state after iteration 3 of 3."
    assert "it stopped after iteration 3 of 3. To continue it, repeat its command with --resume." in stopped
    assert not missing(run, "test", "complete")
    (tmp_path / "rollout_info.jsonl").unlink()
    (tmp_path / "training_info.jsonl").unlink()
    assert "at its beginning" in missing(read_run(tmp_path), "test", "stopped")[0]


def test_facts_of_a_config_of_another_form_are_left_out(tmp_path):
    run = read_run(write_run(tmp_path, alg="ppo", env=None, datapool=[1], train_evaluation=3))
    assert ("seed", "0") in facts(run) and "algorithm" not in dict(facts(run))
