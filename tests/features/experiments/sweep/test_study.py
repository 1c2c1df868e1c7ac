"""Trials of all combinations, and those that Optuna chooses."""

import sys

import pytest
from runs import CONFIG
from sweeps import result

from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.features.experiments.sweep.running import Objective, Trial
from rl4dialog.features.experiments.sweep.space import parse_grid, parse_search
from rl4dialog.features.experiments.sweep.study import Grid, Study

SEARCH = ["a.rate=log:1e-5:1e-3", "n=int:1:4", "c=choice:x,[1]"]


def make_study(folder, search=SEARCH, n_trials=4, **others):
    pytest.importorskip("optuna")
    objective = others.pop("objective", Objective("m"))
    settings = others.pop("settings", {"--metric": "m"})
    return Study(folder, parse_search(search), objective, settings, n_trials, **others)


def finish(study, trial, value=0.0, **others):
    study.finish(trial, result(trial.name, value, values=trial.values, **others))


def all_trials(study, value=0.0):
    found = []
    while (trial := study.next()) is not None:
        finish(study, trial, value)
        found.append(trial)
    return found


def test_missing_package_is_told_with_the_install_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"--search needs the package optuna: pip install 'rl4dialog\[sweep\]'"):
        Study(tmp_path, parse_search(SEARCH), Objective("m"), {}, 4)


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_continued_study_has_the_trials_of_an_uninterrupted_one(tmp_path, sampler):
    whole = all_trials(make_study(tmp_path / "a", sampler=sampler))
    assert [trial.name for trial in whole] == [f"trial_00{i}" for i in range(4)]
    assert len({str(trial.values) for trial in whole}) == 4
    assert all(1e-5 <= float(t.values["a.rate"]) <= 1e-3 and t.values["c"] in ('"x"', "[1]") for t in whole)
    parts = all_trials(make_study(tmp_path / "b", n_trials=2, sampler=sampler))
    parts += all_trials(make_study(tmp_path / "b", n_trials=4, sampler=sampler))
    assert parts == whole


def test_grid_trains_each_combination_once(tmp_path):
    search = ["n=int:1:2", "c=choice:x,y"]
    first = all_trials(make_study(tmp_path, search, n_trials=3, sampler="grid"))
    rest = all_trials(make_study(tmp_path, search, n_trials=None, sampler="grid"))
    values = [tuple(trial.values.values()) for trial in (*first, *rest)]
    assert values == [("1", '"x"'), ("1", '"y"'), ("2", '"x"'), ("2", '"y"')]


def test_processes_share_trials_and_continue_abandoned_ones(tmp_path):
    one, other = make_study(tmp_path), make_study(tmp_path)
    first, second = one.next(), other.next()
    assert first is not None and second is not None and first.name != second.name and first.is_new
    for lock in one._locks.values():  # as when a process ends
        lock.close()
    continued = other.next()
    assert continued == Trial(first.name, first.values, is_new=False)
    finish(other, continued, 0.25)
    assert [found.name for found in one.results()] == [first.name]


def test_failed_trial_is_continued_by_the_next_process_once(tmp_path):
    study = make_study(tmp_path, n_trials=3)
    trials = [study.next() for _ in range(3)]
    for trial, state in zip(trials, ("complete", "failed", "failed"), strict=True):
        finish(study, trial, 0.5, state=state, error="killed" if state == "failed" else None)
    assert study.next() is None, "not again by the process in which it failed"
    with open(tmp_path / "journal.log", "ab") as file:
        file.write(b'{"op_code":9,"wor')  # what a full disk leaves
    other = make_study(tmp_path, n_trials=3)
    repeated = [other.next(), other.next()]
    assert repeated == [Trial(trial.name, trial.values, is_new=False) for trial in trials[1:]]
    assert [found.state for found in other.results()] == ["complete"], "open trials have no result yet"
    finish(other, repeated[0], 0.75)
    finish(other, repeated[1], state="failed", error="killed again")
    assert other.next() is None and make_study(tmp_path, n_trials=3).next().name == trials[2].name
    assert [(found.state, found.value) for found in study.results()] == [("complete", 0.5), ("complete", 0.75)]


def test_results_have_numbers_errors_and_states(tmp_path):
    study = make_study(tmp_path, objective=Objective("m", "maximize", 0.2), n_trials=3)
    given = [("complete", 0.5, 0.3, None), ("failed", None, None, "boom"), ("pruned", None, None, None)]
    for state, value, kl, error in given:
        trial = study.next()
        assert trial is not None
        if state == "pruned":
            study.report(trial, 1, 0.1)
        finish(study, trial, value or 0.0, state=state, kl=kl, error=error)
    found = make_study(tmp_path, objective=Objective("m", "maximize", 0.2)).results()
    assert [(f.state, f.value, f.kl, f.error) for f in found] == given
    constraints = [dict(frozen.constraints) for frozen in study._study.trials]
    assert constraints == [{"kl": pytest.approx(0.1)}, {}, {}]


def test_median_pruner_stops_what_is_worse_than_earlier_trials(tmp_path):
    study = make_study(tmp_path, n_trials=7, pruner="median")
    for _ in range(5):
        trial = study.next()
        assert trial is not None and not study.report(trial, 1, 0.5)
        finish(study, trial, 0.5)
    trial = study.next()
    assert trial is not None
    assert study.report(trial, 1, 0.1)
    assert not study.report(trial, 1, 0.1), "an evaluation counts once, also after a resume"


def test_study_with_results_refuses_other_settings(tmp_path):
    study = make_study(tmp_path, settings={"--metric": "typo", "config": {"seed": 0}})
    trial = study.next()
    assert trial is not None
    finish(study, trial, state="failed", error="no metric")
    corrected = make_study(tmp_path, settings={"--metric": "m", "config": {"seed": 0}})
    assert corrected.results() == [], "without results, settings can be corrected"
    all_trials(corrected)
    with pytest.raises(ConfigError, match="was started with another --metric; continue it with the same"):
        make_study(tmp_path, settings={"--metric": "other", "config": {"seed": 0}})


def test_study_is_continued_if_its_config_lacks_or_has_only_more_defaults(tmp_path):
    config = parse_config(CONFIG, "test")
    now, whole = config.model_dump(mode="json", exclude_defaults=True), config.model_dump(mode="json")
    del whole["logging"]  # as if it were a key of a later version
    study = make_study(tmp_path, settings={"config": whole})
    all_trials(study)
    assert make_study(tmp_path, settings={"config": now}).next() is None
    for earlier in (now, whole):
        study._study.set_user_attr("settings", {"config": earlier})
        with pytest.raises(ConfigError, match="was started with another config"):
            make_study(tmp_path, settings={"config": {**now, "seed": 1}})


def test_trials_are_named_by_their_values_and_results_are_in_their_order():
    grid = Grid(parse_grid(["alg.kl_div.coeff=0.1,0.2", "b=x"]))
    first, second = grid.next(), grid.next()
    assert grid.next() is None and first is not None and second is not None
    assert (first.name, first.values) == ("coeff_0.1_b_x", {"alg.kl_div.coeff": "0.1", "b": '"x"'})
    assert not first.is_new and not grid.report(first, 1, 0.0)
    for trial in (second, first):
        grid.finish(trial, result(trial.name))
    assert [found.name for found in grid.results()] == ["coeff_0.1_b_x", "coeff_0.2_b_x"]
    with pytest.raises(ConfigError, match="no distinct, short folder names"):
        Grid(parse_grid(["a=x/y,x:y"]))
