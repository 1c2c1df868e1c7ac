"""The trainer, transformers' trainer without side effects, and the plan."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from reward_models import TEXTS
from rich.console import Console
from runs import lines, make_config
from safetensors.torch import load_file, save_file
from stable_baselines3.common.callbacks import CallbackList
from tiny import make_gpt2

from rl4dialog.core.config import KINDS, parse_config
from rl4dialog.core.errors import RunInterrupted
from rl4dialog.runs.run_folder import RunFolder
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training import plan as plan_module
from rl4dialog.training import trainer as module
from rl4dialog.training.building import components
from rl4dialog.training.checkpoint import newest_checkpoint
from rl4dialog.training.evaluation import Evaluation
from rl4dialog.training.interruption import StopSignals
from rl4dialog.training.plan import print_plan
from rl4dialog.training.random_state import random_state, set_random_state
from rl4dialog.training.resumable_trainer import ProgressBar, pad_labelled_texts, unchanged
from rl4dialog.training.tiny_bert import train_tokenizer


class RandomWalk:
    """A number that goes a random step in every iteration."""

    n_iters = 4
    is_within_iteration = stops_within_iteration = False

    def __init__(self, tracker: Tracker, signals: StopSignals, stop_after: int | None) -> None:
        self._tracker, self._signals, self._stop_after = tracker, signals, stop_after
        self.place = torch.zeros(1)
        self._model: Any = SimpleNamespace(
            iteration=0, stop_requested=False, num_timesteps=0, logger=None, get_env=lambda: None
        )

    @property
    def iteration(self) -> int:
        return int(self._model.iteration)

    def learn(self, callbacks: Any) -> None:
        callback = CallbackList(list(callbacks))
        callback.init_callback(self._model)
        callback.on_training_start({}, {})
        while self.iteration < self.n_iters:
            callback.on_rollout_start()
            if self._model.stop_requested:
                break
            self._model.iteration += 1
            callback.on_rollout_end()
            self.place = self.place + torch.randn(1)
            self._signals.received = "SIGTERM" if self.iteration == self._stop_after else None
        callback.on_training_end()

    def stop(self) -> None:
        self._model.stop_requested = True

    def evaluate(self, split: str, iteration: int, reward_must_work: bool = False) -> Evaluation:
        evaluation = Evaluation({"place": self.place.item()}, [])
        self._tracker.log_metrics(iteration, split, evaluation.metrics)
        self._tracker.log_predictions(iteration, split, [])
        return evaluation

    def recall(self, split: str, iteration: int) -> Evaluation:
        return Evaluation(*self._tracker.recall(iteration, split))

    def capture_state(self) -> dict[str, Any]:
        return {"iteration": self.iteration, "random": random_state()}

    def save_state(self, folder: Path | None) -> None:
        assert folder is not None
        save_file({"place": self.place}, folder / "place.safetensors")

    def restore(self, checkpoint: Any) -> None:
        self.place = load_file(checkpoint.path / "place.safetensors")["place"]
        self._model.iteration = checkpoint.iteration
        set_random_state(checkpoint.state["random"])

    def save_model(self, folder_name: str) -> Path:
        return self._tracker.run_folder.path(folder_name)

    def measure_references(self) -> None: ...

    def summarize(self, before: Evaluation, after: Evaluation) -> None: ...

    def close(self) -> None: ...


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int | None = None, resume: bool = False) -> Path:
    config = parse_config(make_config(folder.parent, train_evaluation__n_iters=4, callbacks=[]), "test")
    root, signals = folder / "p" / "e", StopSignals()
    checkpoint = newest_checkpoint(root) if resume else None
    tracker = Tracker(
        RunFolder(folder, "p", "e", resume=resume), config.model_dump(mode="json"), "p", "e", resume=resume
    )
    monkeypatch.setattr(module, "import_object", lambda _: lambda *_: RandomWalk(tracker, signals, stop_after))
    try:
        module.Trainer(config, tracker, checkpoint, signals).train_and_eval()
    finally:
        tracker.close()
    return root


def test_anything_that_can_say_its_state_is_resumed_as_if_it_had_not_been_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(tmp_path / "whole", monkeypatch)
    with pytest.raises(RunInterrupted, match="after iteration 2; saved"):
        run(tmp_path / "stopped", monkeypatch, stop_after=2)
    assert newest_checkpoint(tmp_path / "stopped" / "p" / "e") is not None
    resumed = run(tmp_path / "stopped", monkeypatch, resume=True)
    for name in ("val_split_metrics.jsonl", "test_split_metrics.jsonl", "result.json"):
        assert (whole / name).read_text() == (resumed / name).read_text()
    assert len({record["metrics"]["place"] for record in lines(whole / "val_split_metrics.jsonl")}) == 5


def test_every_kind_of_run_has_its_trainee_checks_and_plan() -> None:
    assert set(KINDS) == module._TRAINEES.keys() == components._CHECKS.keys() == plan_module._ROWS.keys()


def test_progress_tells_description_steps_and_loss(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ProgressBar("Warm start")
    bar.on_train_begin(None, SimpleNamespace(max_steps=4, global_step=0), None)
    bar.on_log(None, None, None, logs={"loss": 1.23456})
    bar.on_step_end(None, SimpleNamespace(global_step=4), None)
    bar.close()
    assert capsys.readouterr().err == "Warm start, step 4/4: loss 1.235, after 0 s\n"


def test_progress_of_a_resumed_training_counts_on(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ProgressBar("Supervised")
    bar.on_train_begin(None, SimpleNamespace(max_steps=4, global_step=3), None)
    bar.on_step_end(None, SimpleNamespace(global_step=4), None)
    bar.close()
    assert capsys.readouterr().err.startswith("Supervised, step 4/4: ")


def test_bar_that_never_began_can_be_closed() -> None:
    bar = ProgressBar("x")
    bar.on_log(None, None, None, logs={"loss": 1.0})
    bar.on_step_end(None, SimpleNamespace(global_step=1), None)
    bar.close()


@pytest.mark.parametrize("training", [True, False])
def test_unchanged_restores_mode_and_generator_also_after_an_error(tokenizer: Any, training: bool) -> None:
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
def test_labelled_texts_are_padded_on_the_right(labels: list[float], dtype: torch.dtype) -> None:
    tokenizer = train_tokenizer(TEXTS, 300, 64)
    ids = tokenizer([TEXTS[0], " ".join(TEXTS)])["input_ids"]
    examples = [{"input_ids": row, "labels": label} for row, label in zip(ids, labels, strict=True)]
    batch = pad_labelled_texts(tokenizer, examples)
    assert batch["input_ids"][0, : len(ids[0])].tolist() == ids[0]
    assert batch["input_ids"][1].tolist() == ids[1]
    assert batch["attention_mask"].sum(dim=1).tolist() == [len(ids[0]), len(ids[1])]
    assert batch["attention_mask"][:, 0].all()
    assert batch["labels"].tolist() == labels and batch["labels"].dtype == dtype


def plan(tmp_path: Path, **overrides: Any) -> dict[str, str]:
    """Its rows."""
    console = Console(record=True, width=200)
    print_plan(parse_config(make_config(tmp_path, **overrides), "test"), console)
    rows = [line.strip("│ ").split("│") for line in console.export_text().splitlines() if line.count("│") == 3]
    return {name.strip(): value.strip() for name, value in rows}


@pytest.mark.parametrize(
    ("bootstraps", "expected"),
    [(True, "those whose last reply is cut at max_episode_length; none at max_turns"), (False, "none")],
)
def test_bootstrapped_conversations_are_named(tmp_path: Path, bootstraps: bool, expected: str) -> None:
    found = plan(
        tmp_path,
        reward_fn={"id": "length_penalty", "args": {"max_length": 5}},
        env__args__partner={"id": "scripted", "args": {"replies": ["yes", "no"]}},
        env__args__max_turns=2,
        env__args__max_prompt_length=40,
        env__args__bootstrap_truncated=bootstraps,
    )
    assert found["bootstrapped conversations"] == expected
