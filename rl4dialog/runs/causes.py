"""Causes why a run did not improve, as far as its logs show them, each with the one setting to change."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl4dialog.core.types import MIN_SAMPLES
from rl4dialog.core.yaml_loader import flatten
from rl4dialog.functional.statistics import Interval
from rl4dialog.runs.reading import Predictions, Run, number
from rl4dialog.runs.report.metrics import difference_estimates, ranking_key

ERRORS = 2.0
"""Standard errors from which on a change counts."""
OF_SPREAD = 1 / 3
"""Distance of the mean reward from the best one, in standard deviations, below which a reward is saturated.

Where a reply earns 1 or 0, this is the case if at least nine in ten earn 1.
"""
OVERSHOOT = 2.0
"""KL, as a multiple of its target, from which on it is out of hand."""
AT_BEST, EQUAL_TO_REFERENCES = "reward_at_best", "equal_to_references"
"""Warnings before training, after which reinforcement learning can hardly gain."""
FREE_KL = 1.0
"""KL to the reference from which on it is out of hand where it has no target, in nats per token."""


class Cause(NamedTuple):
    """A cause: a short name, what the logs show, and the setting to change first."""

    name: str
    shown: str
    change: str

    @property
    def title(self) -> str:
        """Its name at the beginning of a sentence; ``capitalize`` would write Kl."""
        return self.name[0].upper() + self.name[1:]


@dataclass(frozen=True)
class Evidence:
    """What the causes are judged by: of each iteration's rollouts shape (n,), of the test replies (N,)."""

    rewards: NDArray[np.float64]
    spread: float  # standard deviation of the first rollouts' rewards
    n_episodes: NDArray[np.float64]
    kl: NDArray[np.float64]  # to the reference, in nats per token
    update_kl: NDArray[np.float64]  # of an update, before its step was halved
    before: NDArray[np.float64]  # rewards on the test split before training
    interval: Interval | None  # of their change
    config: Mapping[str, Any]  # by dotted key
    warned: str | None  # what a warning before training said of the first replies

    @property
    def ends(self) -> tuple[float, float, float]:
        """Mean rewards of the first and the last third of the iterations, and the error of their difference."""
        n = max(1, len(self.rewards) // 3)
        first, last = self.rewards[:n], self.rewards[-n:]
        error = math.sqrt((first.var(ddof=1) + last.var(ddof=1)) / n) if n > 1 else math.nan
        return float(first.mean()), float(last.mean()), error

    @property
    def has_risen(self) -> bool:
        """Whether rewards of rollouts rose by more than their noise."""
        first, last, error = self.ends
        return last - first > ERRORS * error

    @property
    def best(self) -> float:
        """The highest reward seen."""
        return float(max(self.rewards.max(), self.before.max(initial=-math.inf)))

    def overshoot(self) -> str | None:
        """How far the KL went beyond its target, if it did."""
        targets = [("alg.args.target_kl", self.update_kl, "an update moved the policy by")]
        targets += [("alg.kl_div.target_kl", self.kl, "the KL to the reference reached")]
        for key, measured, what in targets:
            highest, target = np.nanmax(measured, initial=0.0), number(self.config.get(key))
            if highest > OVERSHOOT * target:
                return f"{what} {highest:.2g} nats per token, with a target of {target:g}"
        highest, is_free = np.nanmax(self.kl, initial=0.0), self.config.get("alg.kl_div.target_kl") is None
        return (
            f"the KL to the reference reached {highest:.2g} nats per token" if is_free and highest > FREE_KL else None
        )


def _saturated(seen: Evidence) -> Cause | None:
    is_near = seen.best - seen.rewards[0] < OF_SPREAD * seen.spread
    if not is_near and seen.warned is None:
        return None
    earned = f"before training, replies already earned {seen.rewards[0]:.3g} of at most {seen.best:.3g}"
    shown = earned if is_near else f"before training, {seen.warned}"
    return Cause("saturated reward", shown, "reward_fn: a reward that still differs between replies, or harder prompts")


def _memorised(seen: Evidence) -> Cause | None:
    is_trained = any(key.startswith("warm_start.") and value is not None for key, value in seen.config.items())
    if not is_trained or len(seen.before) < 2:
        return None
    gap = seen.rewards[0] - seen.before.mean()
    error = math.sqrt(seen.spread**2 / seen.n_episodes[0] + seen.before.var(ddof=1) / len(seen.before))
    if not gap > max(1.5 * ERRORS * error, OF_SPREAD * seen.spread):
        return None
    shown = (
        f"before RL, replies earned {seen.rewards[0]:.3g} on training prompts, but {seen.before.mean():.3g} on others"
    )
    return Cause("memorised warm start", shown, "warm_start.n_epochs: fewer; what helps most is more data")


def _out_of_hand(seen: Evidence) -> Cause | None:
    fall = seen.rewards[0] - seen.rewards.min()
    error = seen.spread * math.sqrt(1 / seen.n_episodes[0] + 1 / seen.n_episodes[seen.rewards.argmin()])
    if (overshoot := seen.overshoot()) is None or not fall > 1.5 * ERRORS * error:
        return None
    rate = next((seen.config[key] for key in _RATES if key in seen.config), math.nan)
    shown = f"{overshoot}, and the reward of rollouts fell from {seen.rewards[0]:.3g} to {seen.rewards.min():.3g}"
    return Cause("KL out of hand", shown, f"alg.args.learning_rate: a third of {number(rate):g}")


def _few_samples(seen: Evidence) -> Cause | None:
    first, last, _ = seen.ends
    n, more = len(seen.before), "datapool.args: more test samples (held_out_share, n_test), or max_eval_samples"
    if seen.interval is None:
        return (
            Cause("too few samples", f"{n} test samples; {MIN_SAMPLES} are needed", more) if n < MIN_SAMPLES else None
        )
    width = (seen.interval.high - seen.interval.low) / 2
    if not seen.has_risen or last - first > width:
        return None
    shown = f"the reward of rollouts rose by {last - first:.2g}, but {n} test samples tell changes from {width:.2g} on"
    return Cause("too few samples", shown, more)


def _noise(seen: Evidence) -> Cause | None:
    first, last, error = seen.ends
    if not abs(last - first) <= ERRORS * error or _saturated(seen):
        return None
    now = f"{seen.config.get('alg.args.n_steps')}" if "alg.args.n_steps" in seen.config else "replies per iteration"
    shown = f"the reward of rollouts went from {first:.3g} to {last:.3g}, with a standard error of {error:.2g}"
    return Cause("reward noise", shown, f"alg.args.n_steps: four times {now}")


_RATES = ("alg.args.learning_rate", "alg.args.learning_rate.start")
_ALL: Sequence[Callable[[Evidence], Cause | None]] = (_saturated, _memorised, _out_of_hand, _few_samples, _noise)


def evidence(run: Run, before: Predictions | None, after: Predictions | None) -> Evidence | None:
    """Evidence of a run with rollouts, evaluated on the test split; ``None`` if there is too little to judge."""
    rewards, n_episodes = (np.array(run.column(f"rollout/{key}")) for key in ("task_reward", "n_episodes"))
    if len(rewards) < 3 or not np.isfinite([*rewards, *n_episodes]).all() or not n_episodes.all():
        return None
    scores = {} if before is None else before.scores
    trained = ranking_key(scores)
    changes = {} if before is None or after is None else difference_estimates(before, after)
    earned = scores[trained] if trained else np.zeros(0)
    return Evidence(
        rewards,
        number(run.iterations[0].get("rollout/task_reward_std")),
        n_episodes,
        np.array(run.column("rollout/kl")),
        np.array(run.column("train/update_kl")),
        earned[np.isfinite(earned)],
        changes[trained].interval if trained in changes else None,
        flatten(run.config),
        next((each["message"] for each in run.warnings if each.get("name") in (AT_BEST, EQUAL_TO_REFERENCES)), None),
    )


def causes(run: Run, before: Predictions | None, after: Predictions | None) -> list[Cause]:
    """Causes that the logs of a run show, most fundamental first; none if its reward on the test split has risen.

    ``before`` and ``after`` are the first and the last evaluation of this split.
    """
    seen = evidence(run, before, after)
    if seen is None or (seen.interval is not None and seen.interval.low > 0):
        return []
    return [found for rule in _ALL if (found := rule(seen)) is not None]
