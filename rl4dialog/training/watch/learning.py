"""Checks for a reward without a useful signal, and for failing updates."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rl4dialog.training.watch.check import History, RunFacts, check, mean

# As for partners that fail: from a twentieth on, the episodes that are left are a biased sample.
REWARD_FAILED, FAILED_ITERATIONS, FAILED_EPISODES = 0.05, 3, 32

# Two episodes may have equal rewards, but this many in this many iterations means that the reward is constant.
CONSTANT_ITERATIONS, CONSTANT_EPISODES = 3, 32
CONSTANT_REWARD_STD = 1e-6

# Share of replies that earn the highest reward of all, from which on hardly anything is left to learn.
AT_BEST_SHARE = 0.9
BEST_ADVICE = "Hardly anything is left to learn: use a reward that still differs between replies, or harder prompts."

# Fraction of minibatches (or groups of replies to one prompt) with constant advantages. It is high for sparse rewards;
# above this limit, hardly anything is learned.
CONSTANT_ADVANTAGES = 0.9

# Parts of a reward: number of first and last iterations to compare, and the difference of their means in standard
# errors that counts (by chance in one of 250 pairs, and two parts must differ).
PART_ITERATIONS, PART_MIN_ITERATIONS, PART_ERRORS = 5, 15, 4.0
# Minimum drop of a part, relative to its mean and to the standard deviation of episode rewards.
PART_FALL, PART_FALL_OF_STD = 0.2, 0.05

# Many returns can hardly be predicted, so a working critic may explain little, and less than nothing by chance. One
# that does not learn stays at 0 all the time; one that diverges is far from the returns.
VALUE_MIN_ITERATIONS, VALUE_ITERATIONS, VALUE_CHANGE, VALUE_DIVERGED = 30, 20, 0.01, -1.0

LINE_SEARCH_ITERATIONS = 5

_LOSSES = ("train/loss", "train/policy_loss", "train/value_loss", "train/grad_norm")


@check(
    "Replies whose reward fails are not trained on, which biases what is learned: read the error with "
    "reward_fn.on_error: raise."
)
def reward_fails(history: History, facts: RunFacts) -> str | None:
    masked = history.last("rollout/masked_rewards", FAILED_ITERATIONS)
    ended = masked + history.last("rollout/n_episodes", FAILED_ITERATIONS)
    if not ended.sum() >= FAILED_EPISODES:
        return None
    # Conversations whose partner failed are masked, too, and have a warning of their own.
    by_partner = np.nan_to_num(history.last("rollout/partner_failed", FAILED_ITERATIONS)) * ended
    share = (masked - by_partner).sum() / ended.sum()
    return f"the reward failed for {share:.0%} of the episodes" if share > REWARD_FAILED else None


@check(
    "All replies earn the same, so nothing is learned (fine if it is the maximum): check that the reward depends on "
    "the reply. `rl4dialog doctor` shows the rewards of 32 replies."
)
def reward_constant(history: History, facts: RunFacts) -> str | None:
    stds = history.last("rollout/task_reward_std", CONSTANT_ITERATIONS)
    rewards = history.last("rollout/task_reward", CONSTANT_ITERATIONS)
    n_episodes = history.last("rollout/n_episodes", CONSTANT_ITERATIONS).sum()
    if not len(stds) or not n_episodes >= CONSTANT_EPISODES:
        return None
    if not (stds <= CONSTANT_REWARD_STD * np.maximum(1, np.abs(rewards))).all():
        return None
    return f"every episode of the last {CONSTANT_ITERATIONS} iterations earned {rewards[-1]:.4g}"


@check(
    "The policy learns only from differences between compared replies: use a reward with more distinct values, a "
    "higher alg.args.n_generations (RLOO, GRPO) or batch_size, or more randomness in generation_kwargs."
)
def advantages_constant(history: History, facts: RunFacts) -> str | None:
    share = mean(history.last("train/constant_advantages", CONSTANT_ITERATIONS))
    if not share > CONSTANT_ADVANTAGES or reward_constant.rule(history, facts) is not None:
        return None
    if not history.last("rollout/n_episodes", CONSTANT_ITERATIONS).sum() >= CONSTANT_EPISODES:
        return None
    return f"in {share:.0%} of the comparisons of {CONSTANT_ITERATIONS} iterations, all replies were equally good"


@check(
    "One part of the reward improves at the expense of another, often in undesirable replies: read replies of several "
    "iterations, and change the weights of the parts or raise alg.kl_div.coeff."
)
def reward_parts_opposed(history: History, facts: RunFacts) -> str | None:
    if len(history) < PART_MIN_ITERATIONS:
        return None
    least_fall = PART_FALL_OF_STD * mean(history.first("rollout/task_reward_std", PART_ITERATIONS))
    risen, fallen = [], []
    for part in _parts(history.now):
        begin, now, errors = _change(history, f"rollout/reward/{part}")
        text = f"{part!r} went from {begin:.3g} to {now:.3g}"
        sign = _sign(part, facts)
        if sign * errors > PART_ERRORS:
            risen.append(text)
        elif sign * errors < -PART_ERRORS and abs(now - begin) > max(PART_FALL * abs(begin), least_fall):
            fallen.append(text)
    return f"one part of the reward improves, another gets worse: {risen[0]}, {fallen[0]}" if risen and fallen else None


@check(
    "Such steps are skipped. If their number grows, lower alg.args.learning_rate, normalize or clip the reward, or try "
    "precision: fp32."
)
def gradient_not_finite(history: History, facts: RunFacts) -> str | None:
    n_skipped = history.now.get("train/skipped_steps", 0)
    if n_skipped > 0:
        return f"the gradient of {n_skipped:.0f} optimizer steps was not finite"
    broken = [name for name in _LOSSES if not math.isfinite(history.now.get(name, 0))]
    return f"{' and '.join(broken)} not finite" if broken else None


@check(
    "Advantages are as noisy as without a critic, or noisier: raise alg.args.vf_coef if it learns nothing, lower the "
    "learning rate or normalize the reward if it diverges, or use rloo or grpo, which need none."
)
def explained_variance(history: History, facts: RunFacts) -> str | None:
    explained = history.last("train/explained_variance", VALUE_ITERATIONS)
    known = explained[np.isfinite(explained)]
    if len(history) < VALUE_MIN_ITERATIONS or not len(known):
        return None
    if (np.abs(known) < VALUE_CHANGE).all():
        return (
            f"the critic explained at most {max(known.max(), 0):.1%} of the returns' variance in each of the last "
            f"{VALUE_ITERATIONS} iterations"
        )
    if known.mean() < VALUE_DIVERGED:
        return (
            f"the critic's errors had {1 - known.mean():.1f} times the returns' variance in the last "
            f"{VALUE_ITERATIONS} iterations"
        )
    return None


@check("TRPO finds no acceptable step: raise alg.args.target_kl, n_steps or cg_damping.")
def line_search(history: History, facts: RunFacts) -> str | None:
    success = history.last("train/is_line_search_success", LINE_SEARCH_ITERATIONS)
    if not len(success) or not (success == 0).all():
        return None
    return f"the line search failed in each of the last {LINE_SEARCH_ITERATIONS} iterations"


def already_best(rewards: Sequence[float]) -> str | None:
    """Describe rewards before training (NaN if they failed) that leave hardly anything to learn; ``None`` for others.

    If all are equal and not positive, they are not the highest reward but one that no reply has earned yet.
    """
    known = np.array([reward for reward in rewards if math.isfinite(reward)])
    if len(known) < CONSTANT_EPISODES:
        return None
    best = float(known.max())
    n_best = int((known >= best - CONSTANT_REWARD_STD * max(1, abs(best))).sum())
    if n_best < AT_BEST_SHARE * len(known) or (n_best == len(known) and best <= 0):
        return None
    return f"{n_best} of {len(known)} replies already earn the highest reward of all, {best:.4g}"


def _parts(record: dict[str, float]) -> list[str]:
    """Names of the reward's parts, without sums of other parts and without weights."""
    names = [key.removeprefix("rollout/reward/") for key in record if key.startswith("rollout/reward/")]
    names = [name for name in names if not name.endswith("/weight")]
    return [name for name in names if not any(other.startswith(f"{name}/") for other in names)]


def _sign(part: str, facts: RunFacts) -> int:
    """-1 for a part with a negative weight, otherwise 1."""
    weight = next((w for name, w in facts.reward_weights.items() if part == name or part.startswith(f"{name}/")), 1.0)
    return -1 if weight < 0 else 1


def _change(history: History, key: str) -> tuple[float, float, float]:
    """Means of the first and the last iterations, and their difference in standard errors."""
    begin, now = history.first(key, PART_ITERATIONS), history.last(key, PART_ITERATIONS)
    error = math.sqrt((begin.var(ddof=1) + now.var(ddof=1)) / PART_ITERATIONS)
    difference = float(now.mean() - begin.mean())
    # Parts that are constant in both windows have no error, so any difference is significant.
    errors = difference / error if error else math.copysign(math.inf, difference) if difference else 0.0
    return float(begin.mean()), float(now.mean()), errors


CHECKS = (
    reward_fails,
    reward_constant,
    advantages_constant,
    reward_parts_opposed,
    gradient_not_finite,
    explained_variance,
    line_search,
)
