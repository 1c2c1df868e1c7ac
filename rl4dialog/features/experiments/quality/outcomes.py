"""What the runs of a plan achieved, and statistics over few runs: curves at equal KL, sample efficiency, win rates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

import rl4dialog
from rl4dialog.core.cache import content_hash
from rl4dialog.core.errors import ConfigError, DataError, nearest_hint
from rl4dialog.core.files import file_hash, json_line, json_object, naming_errors, to_plain, write_text
from rl4dialog.core.yaml_loader import flatten
from rl4dialog.features.experiments.quality.plan import PlannedRun
from rl4dialog.functional.statistics import Estimate
from rl4dialog.runs.provenance import read_provenance
from rl4dialog.runs.reading import Run, pair, read_run, read_undamaged
from rl4dialog.runs.report.metrics import before_and_after, student_interval
from rl4dialog.runs.run_folder import DIFF_FILE, MODEL_FOLDER, read_references, read_result

Differences = Mapping[str, Sequence[float]]

_TIMES = ("time/collect_s", "time/generate_s", "time/evaluate_s", "time/score_s", "time/partner_s", "time/update_s")
_PACKAGES = ("python", "rl4dialog", "torch", "transformers")
_OF_TIME = ("peak_mib", "spent.seconds")
FEWEST_SEEDS = 3
"""Of a row, without which its spread does not say whether another result is far away."""
_KL_WINDOW = 3
"""Iterations over which the KL of an evaluation is averaged: a rollout's KL is noisy."""


@dataclass(frozen=True)
class Outcome:
    """Numbers of one complete run of a row."""

    world: str  # empty if the rows have configs of their own
    row: str
    seed: int
    config: str  # hash
    before: dict[str, float]  # test metrics before training
    after: dict[str, float]
    references: dict[str, float]  # test metrics of the reference replies, if there are any
    kls: list[float]  # KL to the reference per token, in nats, at each evaluation of the validation split
    curves: dict[str, list[float]]  # validation metrics at the same evaluations
    spent: dict[str, list[float]]  # agent tokens, conversations and seconds until each of them, see `spending`
    rewards: list[float]  # mean task reward of each iteration's rollouts
    tokens: list[float]  # agent tokens of each iteration's rollouts
    peak_mib: float  # of memory
    made_by: dict[str, Any]  # code, versions, machine, and hashes of the weights, see `origin`
    changes: dict[str, list[float]] = field(default_factory=dict)  # of the win rate's metrics, for each test sample

    @property
    def key(self) -> tuple[str, str, int]:
        return self.world, self.row, self.seed


@dataclass(frozen=True)
class Outcomes:
    """Outcomes of the complete runs of a plan, and names of those that failed or are not complete."""

    done: list[Outcome]
    missing: list[str] = field(default_factory=list)

    def of(self, row: str) -> list[Outcome]:
        return [outcome for outcome in self.done if outcome.row == row]

    def rows(self) -> list[str]:
        return list(dict.fromkeys(outcome.row for outcome in self.done))

    def of_world(self, world: str) -> Outcomes:
        """The part about one world."""
        return Outcomes([outcome for outcome in self.done if outcome.world == world])


def read_outcome(run: PlannedRun, folder: Path, keys: Sequence[str], sample_keys: Sequence[str] = ()) -> Outcome:
    """Read a complete run: the metrics of ``keys``, and for each test sample the change of those of ``sample_keys``.

    Numbers have six digits.
    """
    result, found = read_result(folder)["test"], read_undamaged(folder)
    missing = [key for key in keys if result["after"].get(key) is None]
    if missing:
        raise ConfigError(
            f"the run {folder} has no test metric {missing[0]!r}{nearest_hint(missing[0], result['after'])} (it has: "
            f"{', '.join(sorted(result['after']))}); correct metrics in the plan, and write the page with --page_only"
        )
    epochs, val = found.epochs("val"), found.metrics.get("val", {})
    if not epochs:
        raise DataError(f"the run {folder} has no evaluation of the val split, from which curves over tokens are read")
    outcome = Outcome(
        run.world,
        run.label,
        run.seed,
        run.config_hash,
        {key: result["before"].get(key, math.nan) for key in keys},
        {key: result["after"][key] for key in keys},
        {key: value for key, value in read_references(folder).items() if key in keys},
        kl_curve(found, epochs),
        {key: [val.get(epoch, {}).get(key, math.nan) for epoch in epochs] for key in keys},
        spending(found, epochs),
        found.column("rollout/task_reward"),
        found.column("rollout/tokens"),
        max([mib for mib in found.column("memory/peak_mib") if mib > 0], default=math.nan),
        origin(folder),
        score_differences(folder, sample_keys) if sample_keys else {},
    )
    return Outcome(**_rounded(asdict(outcome)))


def spending(run: Run, epochs: Sequence[int]) -> dict[str, list[float]]:
    """Agent tokens, conversations and seconds of all rollouts and updates until each of these evaluations.

    Tokens of conversations that were not trained on count, and so do those of the run whose critic this one began with.
    """
    all_tokens, trained_on = run.column("rollout/spoken_tokens"), run.column("rollout/tokens")
    tokens = [used if math.isnan(spoken) else spoken for spoken, used in zip(all_tokens, trained_on, strict=True)]
    times = zip(*map(run.column, _TIMES), strict=True)
    seconds = [sum(value for value in values if not math.isnan(value)) for values in times]
    spent = {"tokens": tokens, "conversations": run.column("rollout/n_episodes"), "seconds": seconds}
    folder = flatten(run.config).get("alg.policy.args.critic_from")
    earlier = {} if folder is None else spending(critic := read_run(folder), [len(critic.iterations)])
    return {
        name: [sum(values[:epoch]) + sum(earlier.get(name, [0.0])) for epoch in epochs]
        for name, values in spent.items()
    }


def origin(folder: Path) -> dict[str, Any]:
    """What made a run: commit, versions, machine in words, and hashes of the weights before and after training.

    A run that was resumed with another commit has all of them. ``is_modified`` says whether the package had changes
    that were not committed.
    """
    record = read_provenance(folder)
    package = Path(rl4dialog.__file__).parent.name
    code = [((start.get("git") or {}).get("package") or {}) for start in (record, *record.get("resumed", []))]
    diff = (folder / DIFF_FILE).read_text(encoding="utf-8") if (folder / DIFF_FILE).is_file() else ""
    new = [path for state in code for path in state.get("untracked", [])]
    machine = record.get("hardware", {})
    weights = sorted((folder / MODEL_FOLDER).rglob("*.safetensors"))
    return {
        "commit": " ".join(dict.fromkeys(state.get("commit") or "unknown" for state in code)),
        "is_modified": f"diff --git a/{package}/" in diff or any(path.startswith(f"{package}/") for path in new),
        "versions": {name: record.get("versions", {}).get(name) for name in _PACKAGES},
        "machine": {key: machine.get(key) for key in ("system", "cpu", "cpu_cores", "torch_threads")},
        "gpus": [gpu["name"] for gpu in machine.get("gpus", [])],
        "first_weights": str(record.get("model_hash"))[:16],
        "last_weights": content_hash(map(file_hash, weights))[:16],
    }


def _rounded(value: Any) -> Any:
    """A value whose numbers have six digits."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def kl_curve(run: Run, epochs: Sequence[int]) -> list[float]:
    """KL after each of these iterations: the mean over the rollouts around it; 0 before training."""
    kls = run.column("rollout/kl")
    # The rollout of iteration i + 1 is sampled from the policy after iteration i.
    near = {epoch: kls[max(0, epoch + 1 - _KL_WINDOW) : epoch + 1] for epoch in epochs if epoch}
    return [sum(near[epoch]) / len(near[epoch]) if near.get(epoch) else 0.0 for epoch in epochs]


def read_outcomes(path: Path) -> list[Outcome]:
    """Read a file of :func:`write_outcomes`; none if it does not exist. Other numbers of its runs are left out."""
    if not path.is_file():
        return []
    names = {each.name for each in fields(Outcome)}
    try:
        entries = json_object(path.read_text(encoding="utf-8"))["runs"]
        return [Outcome(**{key: _with_nan(key, entry[key]) for key in names & entry.keys()}) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} must have the outcomes of `rl4dialog benchmark`, and cannot be read: {error}"
        ) from error


def _with_nan(key: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_with_nan(key, each) for each in value]
    if isinstance(value, dict) and key != "made_by":
        return {name: _with_nan(name, each) for name, each in value.items()}
    return math.nan if value is None and key != "made_by" else value


def write_outcomes(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write all numbers as JSON: sorted, and each run in its own line, so that git merges files of several runs."""
    ordered = sorted(outcomes, key=lambda outcome: outcome.key)
    lines = (json_line(to_plain(outcome)).decode("utf-8").strip() for outcome in ordered)
    with naming_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, '{"runs": [\n' + ",\n".join(lines) + "\n]}\n")


def judge_repetition(recorded: Outcome, repeated: Outcome, metric: str, row: Sequence[Outcome]) -> tuple[bool, str]:
    """Whether a repeated run gives the same as the recorded one, and what was found.

    On the same machine, with the same commit and versions, all numbers and the last weights must be identical. Anywhere
    else sums may be rounded in another order, which changes a run as much as another seed does. There, the metric must
    be within the 99 % prediction interval of the row's seeds (Student's t): one of a hundred sound runs is outside.
    """
    one, other = (flatten(to_plain(each)) for each in (recorded, repeated))
    changed = [key for key in one if one[key] != other.get(key) and key not in _OF_TIME]
    places = ("made_by.commit", "made_by.versions", "made_by.machine", "made_by.gpus", "made_by.is_modified")
    moved = [f"{key} {one[key]} is now {other.get(key)}" for key in changed if key.startswith(places)]
    if recorded.made_by["is_modified"]:
        moved.append("the recorded run had changes that were not committed")
    if not (results := [key for key in changed if not key.startswith(places)]):
        return True, "identical"
    if not moved:
        key, same = results[0], "machine, code and versions are the same"
        return False, f"differs, although {same}: {key} {one[key]} is now {other.get(key)}"
    values, now = [run.after[metric] for run in row], repeated.after[metric]
    elsewhere = f"elsewhere ({'; '.join(moved)}), {metric} {recorded.after[metric]:g} is now {now:g}"
    if len(values) < FEWEST_SEEDS:
        return False, f"{elsewhere}; a row of {len(values)} seed(s) does not say whether that is much"
    spread = float(np.std(values, ddof=1)) * math.sqrt(1 + 1 / len(values))
    low, high = stats.t.interval(0.99, len(values) - 1, float(np.mean(values)), max(spread, 1e-9))
    is_near = bool(low <= now <= high)
    return is_near, f"{elsewhere}, which is {'within' if is_near else 'OUTSIDE'} [{low:.4g}, {high:.4g}] of its row"


def score_differences(folder: Path, keys: Sequence[str]) -> dict[str, list[float]]:
    """Change of scores by training in a complete run, for each test sample; NaN where it lacks one of them."""
    run = read_run(folder)
    before, after = before_and_after(run, "test")
    if before is None or after is None:
        raise DataError(f"the run {folder} has no test predictions before and after training")
    before, after = pair(before, after)
    if missing := [key for key in keys if key not in before.scores or key not in after.scores]:
        known = ", ".join(sorted(before.scores))
        raise DataError(f"the run {folder} has no scores of single samples under {missing[0]!r} (it has: {known})")
    changes = np.stack([after.scores[key] - before.scores[key] for key in keys])
    changes[:, np.isnan(changes).any(axis=0)] = np.nan
    return {key: row.tolist() for key, row in zip(keys, changes, strict=True)}


def win_rate(runs: Sequence[Differences], score: str, length: str | None = None) -> Estimate:
    """Share of samples that score higher after training than before; a tie counts half.

    With ``length``, what the change of length explains is removed from each change of the score: its slope in a least
    squares regression with intercept over the samples of a run. This estimates the win rate at equal length, as
    AlpacaEval's length-controlled win rate does with a logistic regression (Dubois et al. 2024, arXiv 2404.04475). The
    interval is Student's, over runs and samples: the variances of the means over either are added, because all runs
    have the same samples. Without a second run, there is none.
    """
    scores = np.array([run[score] for run in runs], dtype=float)
    lengths = np.zeros_like(scores) if length is None else np.array([run[length] for run in runs], dtype=float)
    won = _won(scores, lengths)
    by_run, by_sample = np.nanmean(won, axis=1), np.nanmean(won[:, ~np.isnan(won).all(axis=0)], axis=0)
    share = float(by_run.mean())
    return Estimate(share, student_interval(share, by_run, by_sample))


def _won(scores: NDArray[np.float64], lengths: NDArray[np.float64]) -> NDArray[np.float64]:
    """Which changes are positive at equal length: 1, 0, or 0.5 for ties; NaN if unknown. Shapes (runs, samples)."""
    known = ~np.isnan(scores)
    n_known = known.sum(axis=1, keepdims=True)
    changes, longer = np.where(known, scores, 0.0), np.where(known, lengths, 0.0)
    spread = np.where(known, longer - longer.sum(axis=1, keepdims=True) / n_known, 0.0)
    variance = (spread**2).sum(axis=1, keepdims=True)
    slope = (spread * changes).sum(axis=1, keepdims=True) / np.where(variance > 0, variance, 1.0)
    at_equal_length = changes - slope * longer
    return np.where(known, (at_equal_length > 0) + 0.5 * (at_equal_length == 0), np.nan)


def probability_of_improvement(ours: Sequence[float], others: Sequence[float]) -> float:
    """Probability that a random run of one group is better than one of another; a tie counts half.

    This is the Mann-Whitney U statistic, divided by the number of pairs (Agarwal et al. 2021, arXiv 2108.13264). It has
    no interval, because over few runs that of the bootstrap covers far too seldom.
    """
    difference = np.subtract.outer(np.asarray(ours, dtype=float), np.asarray(others, dtype=float))
    return float(((difference > 0) + 0.5 * (difference == 0)).mean())


def at_kl(kls: Sequence[float], values: Sequence[float], kl: float) -> float:
    """A metric where a run's curve of KLs first reaches one, by linear interpolation; NaN if it stays below."""
    if kls and kls[0] >= kl:
        return float(values[0])
    curve = zip(kls, values, strict=True)
    for (kl_before, before), (kl_after, after) in itertools.pairwise(curve):
        if kl_after >= kl:
            return float(before + (kl - kl_before) / (kl_after - kl_before) * (after - before))
    return math.nan
