"""Callbacks of a config, and the evaluations that they read."""

import math
from types import SimpleNamespace

import pytest
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from rl4dialog.catalog import CallbackRegistry
from rl4dialog.core.errors import ConfigError, RunFolderError
from rl4dialog.runs.run_folder import RunFolder
from rl4dialog.training.building.components import check_callback
from rl4dialog.training.callbacks.base import ConfiguredCallbacks, EvaluationResult, MetricHistory, recorded_evaluations
from rl4dialog.training.callbacks.configurable import (
    EarlyStopping,
    EveryNIterations,
    SaveBestModel,
    StopOnRewardThreshold,
)


class Counting(BaseCallback):
    """Says no at its n-th call."""

    def __init__(self, n=10**6):
        super().__init__()
        self.n, self.at = n, []

    def _on_step(self):
        self.at.append(self.model.iteration)
        return len(self.at) < self.n


def learn(callback, evaluations, scores, n_iters=6, rollout=lambda _: {}, n_done=0):
    """What stable-baselines3 and our rollouts call; evaluations come before the callback, as in a run."""
    logger = Logger(None, [])
    model = SimpleNamespace(
        iteration=n_done, num_timesteps=32 * n_done, timesteps_per_iteration=32, stop_requested=False, logger=logger
    )

    def evaluate():
        if model.iteration in scores:
            evaluations.append(EvaluationResult(model.iteration, "val", {"m": scores.pop(model.iteration)}))

    evaluate()
    callback.init_callback(model)
    callback.on_training_start({}, {})
    while model.iteration < n_iters:
        evaluate()
        callback.on_rollout_start()
        if model.stop_requested or not callback.on_step():
            break
        model.iteration += 1
        model.num_timesteps += 32
        for name, value in rollout(model.iteration).items():
            logger.record(name, value)
        callback.on_rollout_end()
    evaluate()
    callback.on_training_end()
    return model


BEFORE = [EvaluationResult(-2, "val", {"m": 0.5}), EvaluationResult(-1, "val", {"m": 0.4})]
WAITED = "val m was best after iteration 1 (0.2) and has not improved in the 2 evaluations since"


@pytest.mark.parametrize(
    ("make", "before", "scores", "stops_after", "reason"),
    [
        (
            lambda found: EarlyStopping("m", patience=2, evaluations=found),
            *([], {0: 0.1, 1: 0.2, 2: 0.2, 3: 0.2, 4: 0.9}, 3, WAITED),
        ),
        (lambda found: EarlyStopping("m", 1, mode="min", evaluations=found), [], {0: 3.0, 2: 2.0, 4: 2.5}, 4, ""),
        # Resumed: it decides the same.
        (lambda found: EarlyStopping("m", patience=2, evaluations=found), BEFORE, {1: 0.3, 2: 0.9}, 1, ""),
        (
            lambda found: StopOnRewardThreshold(2.0, metric="m", mode="min", evaluations=found),
            *([], {0: 3.0, 2: 2.5, 4: 1.9}, 4, "val m is 1.9, which reaches the threshold of 2"),
        ),
    ],
)
def test_metric_of_the_val_split_stops_the_run(make, before, scores, stops_after, reason):
    evaluations = [*before]
    callback = make(evaluations)
    assert learn(callback, evaluations, {**scores}).iteration == stops_after
    assert reason in callback.stop_reason


def test_reward_threshold_ends_after_the_iteration_that_reached_it():
    callback = StopOnRewardThreshold(0.35)
    model = learn(callback, [], {}, rollout=lambda n: {"rollout/task_reward": 0.1 * n})
    assert model.iteration == 4
    assert callback.stop_reason == "rollout/task_reward is 0.4, which reaches the threshold of 0.35"


@pytest.mark.parametrize(("value", "n_iters"), [(0.4, 4), (0.3, 6), (None, 6)])
def test_run_that_is_resumed_after_the_iteration_that_reached_it_ends_there(tmp_path, value, n_iters):
    folder = RunFolder(tmp_path, "p", "e")
    for iteration, logged in ((3, 0.9), (4, value)):
        folder.append_jsonl("rollout_info.jsonl", {"iteration": iteration, "rollout/task_reward": logged})
    callback = StopOnRewardThreshold(0.35, run_folder=folder)
    model = learn(callback, [], {}, rollout=lambda _: {"rollout/task_reward": 0.0}, n_done=4)
    assert model.iteration == n_iters
    assert (callback.stop_reason == "rollout/task_reward is 0.4, which reaches the threshold of 0.35") == (n_iters == 4)


def test_threshold_of_an_unknown_value_names_those_that_there_are():
    callback, logged = (
        StopOnRewardThreshold(1.0, metric="rollout/reward"),
        {"rollout/task_reward": 0.0, "rollout/kl": 0},
    )
    with pytest.raises(ConfigError, match=r"no 'rollout/reward'.*\(they have: rollout/kl, rollout/task_reward\)"):
        learn(callback, [], {}, rollout=lambda _: logged)


def test_best_model_is_saved_when_there_is_a_better_one():
    saved = []
    evaluations = []
    callback = SaveBestModel("m", evaluations=evaluations, save_model=saved.append)
    n_saved = {}

    class Watching(ConfiguredCallbacks):
        def _on_rollout_start(self):
            super()._on_rollout_start()
            n_saved[self.model.iteration] = len(saved)

    learn(Watching([("save_best_model", callback)]), evaluations, {0: 0.2, 2: 0.1, 4: 0.3, 6: 0.4})
    assert n_saved == {0: 1, 1: 1, 2: 1, 3: 1, 4: 2, 5: 2}
    assert saved == ["best_model"] * 3, "the last evaluation counts too"


def test_best_model_that_cannot_be_written_is_a_warning(caplog):
    evaluations = []

    def save(folder):
        raise RunFolderError(f"{folder} cannot be written: no space left on the disk")

    learn(SaveBestModel("m", evaluations=evaluations, save_model=save), evaluations, {0: 0.2, 2: 0.3})
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "best_model/ could not be updated to iteration 2, the best so far: best_model cannot be" in caplog.text


@pytest.mark.parametrize(("n", "callback", "at"), [(2, "x", [2, 4, 6]), (3, {"id": "x"}, [3, 6])])
def test_every_n_calls_between_iterations(n, callback, at):
    inner = Counting()
    learn(EveryNIterations(n, callback, lambda id: inner), [], {})
    assert inner.at == at


@pytest.mark.parametrize(("n_done", "at"), [(2, [2, 4, 6]), (3, [4, 6])])
def test_every_n_repeats_the_call_at_the_checkpoint(n_done, at):
    inner = Counting()
    learn(EveryNIterations(2, "x", lambda id: inner), [], {}, n_done=n_done)
    assert inner.at == at, "the checkpoint is from before that call"


def test_every_n_stops_where_its_callback_says_no():
    callbacks = ConfiguredCallbacks([("every_n_iterations", EveryNIterations(2, "x", lambda id: Counting(2)))])
    assert learn(callbacks, [], {}).iteration == 4
    assert callbacks.stopped_by == "every_n_iterations: Counting returned False after iteration 4"


def test_callbacks_tell_which_one_said_no():
    first, second = Counting(), Counting(3)
    callbacks = ConfiguredCallbacks([("first", first), ("second", second)])
    assert callbacks.stopped_by is None
    learn(callbacks, [], {})
    assert callbacks.stopped_by == "second: its _on_step returned False"
    assert len(first.at) == 3, "the others are called all the same"


@pytest.mark.parametrize(
    ("id", "args", "message"),
    [
        ("early_stoping", {}, r"unknown callback 'early_stoping'; did you mean 'early_stopping'\?"),
        ("early_stopping", {"metric": "m", "patience": 0}, r"^callbacks\[0\]\.args\.patience: .* got 0"),
        ("every_n_iterations", {"n": 1, "callback": "mein"}, r"unknown callback 'mein'; did you mean 'mine'\?"),
        (
            "every_n_iterations",
            {"n": 1, "callback": {"id": "early_stopping", "args": {"metric": "m"}}},
            "'early_stopping' does not act in _on_step",
        ),
        ("number", {}, "'number' must derive from stable_baselines3.common.callbacks.BaseCallback"),
    ],
)
def test_what_is_wrong_is_told_before_anything_loads(id, args, message):
    CallbackRegistry.add("mine", Counting)
    CallbackRegistry.add("number", int)
    with pytest.raises(ConfigError, match=message):
        check_callback(id, args, "callbacks[0].args")


def test_what_is_right_passes():
    CallbackRegistry.add("mine", Counting)
    check_callback("mine", {"n": 3}, "a")
    check_callback("every_n_iterations", {"n": 1, "callback": {"id": "mine", "args": {"n": 3}}}, "a")
    check_callback("save_best_model", {"metric": "reward"}, "a")


def history(values, mode="max"):
    results = [EvaluationResult(5 * i, "val", {"m": value}) for i, value in enumerate(values)]
    return MetricHistory([EvaluationResult(0, "test", {"other": 9.0}), *results], "m", mode, "mine")


@pytest.mark.parametrize(
    ("values", "mode", "best"),
    [
        ([0.1], "max", (0, 0.1, 0)),
        ([0.1, 0.3, 0.2, 0.3], "max", (5, 0.3, 2)),
        ([3.0, 2.0, 2.5], "min", (5, 2.0, 1)),
        ([None, 0.2, None], "max", (5, 0.2, 1)),
    ],
)
def test_best_counts_the_evaluations_since(values, mode, best):
    assert history(values, mode).best() == best


def test_latest_may_have_no_value_and_nothing_evaluated_is_no_best():
    assert history([]).best() is None and history([]).latest() is None
    latest = history([0.1, None]).latest()
    assert latest is not None and latest[0] == 5 and math.isnan(latest[1])


def test_records_of_a_run_are_its_history(tmp_path):
    folder = RunFolder(tmp_path, "p", "e")
    assert recorded_evaluations(folder) == []
    for epoch in (0, 2):
        folder.append_jsonl("val_split_metrics.jsonl", {"epoch": epoch, "metrics": {"m": 0.5 * epoch}})
    folder.append_jsonl("test_split_metrics.jsonl", {"epoch": 0, "metrics": {"m": 0.25}})
    assert recorded_evaluations(folder) == [(0, "val", {"m": 0.0}), (0, "test", {"m": 0.25}), (2, "val", {"m": 1.0})]
