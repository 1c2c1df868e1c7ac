"""Where the trials of a sweep come from: all combinations of values, or Optuna's choice."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError, RunFolderError
from rl4dialog.core.registry import optional_module
from rl4dialog.core.run_format import current_config
from rl4dialog.core.seeding import derive_seed
from rl4dialog.features.experiments.sweep.running import Objective, Trial, TrialResult
from rl4dialog.features.experiments.sweep.space import Dimension, Values, combinations
from rl4dialog.runs.run_folder import only_writer

JOURNAL_FILE = "journal.log"
_STUDY = "sweep"
_STATES: dict[str, Literal["complete", "pruned", "failed"]] = {
    "COMPLETE": "complete",
    "PRUNED": "pruned",
    "FAIL": "failed",  # by others; a trial that failed here is open
}
_MAX_NAME = 150


class Grid:
    """Trials of all combinations. Runs are named by their values, so a repeated sweep continues them."""

    def __init__(self, dimensions: Sequence[Dimension]) -> None:
        self._trials = []
        for values in combinations(dimensions):
            name = "_".join(f"{key.rsplit('.', 1)[-1]}_{value}" for key, value in values.items())
            self._trials.append(Trial(re.sub(r"[^A-Za-z0-9.+_-]", "_", name.replace('"', "")), values))
        names = [trial.name for trial in self._trials]
        if len({*names}) < len(names) or max(map(len, names)) > _MAX_NAME:
            raise ConfigError("--grid: these values give no distinct, short folder names; use --search with choice")
        self._waiting = iter(self._trials)
        self._results: dict[str, TrialResult] = {}

    def next(self) -> Trial | None:
        return next(self._waiting, None)

    def report(self, trial: Trial, iteration: int, value: float) -> bool:
        return False

    def finish(self, trial: Trial, result: TrialResult) -> None:
        self._results[trial.name] = result

    def results(self) -> list[TrialResult]:
        return [self._results[trial.name] for trial in self._trials if trial.name in self._results]


class Study:
    """A study of Optuna, in a journal file that several processes and machines can share, with the same ``settings``.

    A failed or interrupted trial stays open, and is continued by the next process that opens the study. Without
    ``n_trials``, the sampler ``grid`` tries all combinations of choices and whole numbers. The pruner ``median`` stops
    trials that are below the median of earlier ones at the same iteration.
    """

    def __init__(
        self,
        folder: Path,
        dimensions: Sequence[Dimension],
        objective: Objective,
        settings: Mapping[str, Any],
        n_trials: int | None,
        sampler: str = "tpe",
        pruner: str = "none",
        seed: int = 0,
    ) -> None:
        self._optuna = optional_module("optuna", "sweep", "--search", "; --grid works without it")
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        self._folder, self._dimensions, self._objective = folder, dimensions, objective
        self._n_trials, self._sampler, self._seed = n_trials, sampler, seed
        self._handles: dict[str, Any] = {}
        self._locks: dict[str, ExitStack] = {}
        self._failed: set[str] = set()
        all_values = combinations(dimensions) if sampler == "grid" else []
        folder.mkdir(parents=True, exist_ok=True)
        self._study = self._open(settings, pruner)
        for values in all_values:
            numbers = {d.key: int(values[d.key]) for d in dimensions if d.kind == "int"}
            self._study.enqueue_trial({**values, **numbers}, skip_if_exists=True)

    def next(self) -> Trial | None:
        return self._abandoned() or self._new()

    def report(self, trial: Trial, iteration: int, value: float) -> bool:
        handle = self._handles[trial.name]
        if iteration in self._study.get_trials(deepcopy=False)[handle.number].intermediate_values:
            return False
        handle.report(value, iteration)
        return bool(handle.should_prune())

    def finish(self, trial: Trial, result: TrialResult) -> None:
        handle = self._handles.pop(trial.name)
        for key in ("kl", "reward", "error"):
            handle.set_user_attr(key, getattr(result, key))
        if result.kl is not None and self._objective.max_kl is not None:
            handle.set_constraint("kl", result.kl - self._objective.max_kl)
        if result.state == "failed":
            self._failed.add(trial.name)
        else:
            value = result.value if result.state == "complete" else None
            self._study.tell(handle, value, self._optuna.trial.TrialState[result.state.upper()])
        self._locks.pop(trial.name).close()

    def results(self) -> list[TrialResult]:
        return [
            TrialResult(
                _name(frozen.number),
                self._texts(frozen.params),
                state,
                frozen.value if frozen.state.name == "COMPLETE" else None,
                *(frozen.user_attrs.get(key) for key in ("kl", "reward", "error")),
            )
            for frozen in self._study.get_trials(deepcopy=False)
            if (state := _state(frozen)) is not None
        ]

    def _open(self, settings: Mapping[str, Any], pruner: str) -> Any:
        optuna = self._optuna
        path = self._folder / JOURNAL_FILE
        lock = optuna.storages.journal.JournalFileSymlinkLock(str(path))
        _cut_part_of_line(path, lock)
        backend = optuna.storages.journal.JournalFileBackend(str(path), lock)
        arguments = {
            "storage": optuna.storages.JournalStorage(backend),
            "study_name": _STUDY,
            "direction": self._objective.direction,
            "pruner": optuna.pruners.MedianPruner() if pruner == "median" else optuna.pruners.NopPruner(),
            "load_if_exists": True,
        }
        study = optuna.create_study(**arguments)
        earlier = study.user_attrs.get("settings", settings)
        changed = [key for key in settings if earlier.get(key) != settings[key]]
        if "config" in changed and _set_to(earlier.get("config"), self._folder) == settings["config"]:
            changed.remove("config")
        if changed:
            began = [each for each in study.get_trials(deepcopy=False) if each.state.name != "WAITING"]
            if any(_state(each) != "failed" for each in began):
                cure = "continue it with the same, or start a new one with another --experiment_name"
                started = f"was started with another {' and '.join(changed)}"
                raise ConfigError(f"the sweep in {self._folder} {started}; {cure}")
            optuna.delete_study(study_name=_STUDY, storage=arguments["storage"])
            study = optuna.create_study(**arguments)
        study.set_user_attr("settings", dict(settings))
        return study

    def _abandoned(self) -> Trial | None:
        """A trial that failed in another process, or whose process ended before it was finished."""
        for frozen in self._study.get_trials(deepcopy=False, states=(self._optuna.trial.TrialState.RUNNING,)):
            name = _name(frozen.number)
            if name in self._handles or name in self._failed or not self._lock(name):
                continue
            if self._study.get_trials(deepcopy=False)[frozen.number].state.name == "RUNNING":
                self._handles[name] = self._optuna.trial.Trial(self._study, frozen._trial_id)
                self._handles[name].set_user_attr("error", None)
                return Trial(name, self._texts(frozen.params))
            self._locks.pop(name).close()
        return None

    def _new(self) -> Trial | None:
        trials = self._study.get_trials(deepcopy=False)
        n_waiting = sum(trial.state.name == "WAITING" for trial in trials)
        n_started = len(trials) - n_waiting
        if (self._sampler == "grid" and not n_waiting) or (self._n_trials is not None and n_started >= self._n_trials):
            return None
        # A new seed for each trial: a continued study, and processes that share it, must not repeat values.
        seed, samplers = derive_seed(self._seed, "sweep", n_started), self._optuna.samplers
        # constant_liar: trials in progress count as bad, so that simultaneous trials differ.
        is_tpe = self._sampler == "tpe"
        sampler = samplers.TPESampler(seed=seed, constant_liar=True) if is_tpe else samplers.RandomSampler(seed)
        self._study.sampler = sampler
        handle = self._study.ask({d.key: self._distribution(d) for d in self._dimensions})
        name = _name(handle.number)
        if not self._lock(name):  # another process was faster and continues it
            return self._new()
        self._handles[name] = handle
        return Trial(name, self._texts(handle.params), is_new=True)

    def _lock(self, name: str) -> bool:
        lock = ExitStack()
        try:
            lock.enter_context(only_writer(self._folder / "locks" / name))
        except RunFolderError:
            return False
        self._locks[name] = lock
        return True

    def _distribution(self, dimension: Dimension) -> Any:
        distributions = self._optuna.distributions
        if dimension.kind == "choice":
            return distributions.CategoricalDistribution(dimension.values)
        low, high = map(float, dimension.values)
        if dimension.kind == "int":
            return distributions.IntDistribution(int(low), int(high))
        return distributions.FloatDistribution(low, high, log=dimension.kind == "log")

    def _texts(self, parameters: Mapping[str, Any]) -> Values:
        """Values as YAML texts, in the order of the dimensions; those of a trial that never started are missing."""
        given = [d.key for d in self._dimensions if d.key in parameters]
        return {key: value if isinstance(value := parameters[key], str) else repr(value) for key in given}


def _cut_part_of_line(journal: Path, lock: Any) -> None:
    """Remove what a full disk or a kill left of a line, because the next one would be appended to it."""
    if not journal.exists():
        return
    lock.acquire()
    try:
        text = journal.read_bytes()
        if not text.endswith(b"\n"):
            os.truncate(journal, text.rfind(b"\n") + 1)
    finally:
        lock.release()


def _set_to(config: Any, folder: Path) -> Any:
    """What a stored config sets; earlier versions stored the defaults, too."""
    try:
        return parse_config(current_config(config, folder), str(folder)).model_dump(mode="json", exclude_defaults=True)
    except (ConfigError, TypeError):
        return config


def _state(frozen: Any) -> Literal["complete", "pruned", "failed"] | None:
    """State of a trial, ``None`` for one that waits or is being trained."""
    return "failed" if frozen.user_attrs.get("error") else _STATES.get(frozen.state.name)


def _name(number: int) -> str:
    return f"trial_{number:03}"
