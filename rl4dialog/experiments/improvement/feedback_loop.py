"""The loop of votes, reward model, PPO and comparison with a simulated person, whose preferences are known.

The person of :mod:`rl4dialog.data.small_talk.pool` chooses between pairs of replies of a run's model. What is learned
from the choices is measured by the person's true utility, which is not trained on, except to see how much could be
gained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rl4dialog.core.errors import DataError
from rl4dialog.core.feedback import QueuedReplies, append_feedback, read_pairs
from rl4dialog.data.dialogue_text import dialogue_text
from rl4dialog.data.ratings import judged_dialogue
from rl4dialog.data.small_talk.pool import SimulatedPerson, utility
from rl4dialog.experiments.improvement.plan import Plan
from rl4dialog.experiments.improvement.stage_configs import COMPARISON, POLICY, REWARD_MODEL
from rl4dialog.experiments.improvement.votes import read_verdict
from rl4dialog.functional.statistics import Estimate
from rl4dialog.runs.report.improvement_report import KL
from rl4dialog.runs.report.predictions import Predictions, pair
from rl4dialog.runs.report.runs import read_run
from rl4dialog.runs.report.statistics import mean_intervals
from rl4dialog.scores.reward_models import KEY, load_reward_model


@dataclass(frozen=True)
class Point:
    """The policy at an evaluation of its validation prompts.

    Attributes:
        iteration: Number of iterations before it.
        score: Mean score of the reward model.
        utility: Mean true utility.
    """

    iteration: int
    score: float
    utility: float


@dataclass(frozen=True)
class PolicyResult:
    """What PPO made of a reward.

    Attributes:
        win_rate: Share of test prompts whose reply has a higher true utility than before; ties count half.
        utility: Mean change of the true utility.
        kl: KL divergence from the model before, per token in nats.
        curve: Score of the reward model and true utility over the training of the policy.
    """

    win_rate: Estimate
    utility: Estimate
    kl: float
    curve: list[Point] = field(default_factory=list)


@dataclass(frozen=True)
class LoopResult:
    """What was learned from a number of votes.

    Attributes:
        n_votes: Number of votes; ``None`` for PPO on the utility itself, which shows how much could be gained.
        verdict: What the reward model makes of the votes that were held out, in words.
        accuracy: Share of other pairs that the reward model ranks as the true utility does; pairs of equal utility are
            left out.
        policy: What PPO made of it; ``None`` without PPO.
    """

    n_votes: int | None
    verdict: str | None = None
    accuracy: Estimate | None = None
    policy: PolicyResult | None = None


def write_votes(queue: Path, n: int, person: SimulatedPerson, output: Path) -> None:
    """Let a person choose between the first pairs of a queue, unless the file exists."""
    pairs = read_pairs(queue)
    if len(pairs) < n:
        raise DataError(f"{queue} has {len(pairs)} pairs, fewer than {n} votes; choose another output folder")
    if output.exists():
        return
    partial = output.with_suffix(".tmp")
    partial.unlink(missing_ok=True)
    for each in pairs[:n]:
        append_feedback(partial, each.chosen(0 if person.prefers_first(*(reply.text for reply in each.replies)) else 1))
    partial.replace(output)


def measure_reward_model(plan: Plan, n_votes: int, held_out: Sequence[QueuedReplies]) -> LoopResult:
    """Measure the reward model of an improvement by the true utility.

    Args:
        plan: Its plan.
        n_votes: Number of votes.
        held_out: Pairs about which nobody voted.
    """
    folder = plan.improvable.output / REWARD_MODEL
    return LoopResult(n_votes, str(read_verdict(folder, plan.votes)), accuracy_of(folder, held_out))


def measure_policy(plan: Plan) -> PolicyResult:
    """Measure PPO in a complete improvement by the true utility."""
    output = plan.improvable.output
    before, after = pair(*(_predictions(output / COMPARISON, "test", epoch) for epoch in (0, 1)))
    changes = _utilities(after.replies) - _utilities(before.replies)
    wins, change = _means((changes > 0) + 0.5 * (changes == 0), changes)
    kl = read_run(output / COMPARISON).metrics["test"][1][KL]
    return PolicyResult(wins, change, kl, _curve(output / POLICY))


def accuracy_of(reward_model: Path, pairs: Sequence[QueuedReplies]) -> Estimate:
    """Share of pairs that a reward model ranks as the true utility does, without pairs of equal utility."""
    model = load_reward_model(str(reward_model), "reply", 64, "feedback_loop")
    gaps = np.subtract(*(_utilities([each.replies[i].text for each in pairs]) for i in (0, 1)))
    texts = [[_text(each, i, model.card.context_size) for each in pairs] for i in (0, 1)]
    scores = np.subtract(*(np.asarray(model.scores(side)) for side in texts))
    right = (scores * gaps > 0) + 0.5 * (scores == 0)
    return _means(right[gaps != 0])[0]


def _text(each: QueuedReplies, index: int, context_size: int | None) -> str:
    return dialogue_text(judged_dialogue(each.chosen(index), each.replies[index].text), context_size)


def _curve(policy: Path) -> list[Point]:
    run, points = read_run(policy), []
    for epoch in run.epochs("val"):
        found = _predictions(policy, "val", epoch)
        points.append(Point(epoch, float(found.scores[KEY].mean()), float(_utilities(found.replies).mean())))
    return points


def _predictions(folder: Path, split: str, epoch: int) -> Predictions:
    found = read_run(folder).predictions(split, epoch)
    if found is None:
        raise DataError(f"{folder} has no predictions of split {split!r} after iteration {epoch}")
    return found


def _utilities(replies: Sequence[str]) -> NDArray[np.float64]:
    return np.array([utility(reply) for reply in replies], dtype=float)


def _means(*columns: NDArray[np.float64]) -> list[Estimate]:
    """Means of columns with 95 % intervals over their rows."""
    intervals = mean_intervals(np.stack(columns, axis=1).astype(float))
    return [Estimate(float(column.mean()), interval) for column, interval in zip(columns, intervals, strict=True)]
