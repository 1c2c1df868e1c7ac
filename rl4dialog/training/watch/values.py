"""Checks of values that are learned from logged conversations."""

from __future__ import annotations

import numpy as np

from rl4dialog.training.watch.check import History, RunFacts, check, mean

# Number of last iterations that are averaged.
WINDOW = 3

# How far outside of the returns to go the mean of Q may be, in widths of their range. Values that begin at 0 for
# returns from -10 to -1 are within one width.
OUTSIDE_WIDTHS = 1.0

# Advantages begin at 0, because all values begin at init_value, so the first iterations say nothing.
SPREAD_MIN_ITERATIONS, SPREAD_ITERATIONS = 10, 5
# As a share of the range of the returns. With the usual beta, such advantages change probabilities by a thousandth.
SPREAD_SHARE = 1e-4

# Share of the tokens that would have the same variance with equal weights.
EFFECTIVE_SHARE = 0.05


def _returns(history: History) -> tuple[float, float]:
    """Lowest and highest return to go so far."""
    lowest, highest = (history.first(f"train/{end}_return", len(history)) for end in ("lowest", "highest"))
    return float(np.nanmin(lowest, initial=np.inf)), float(np.nanmax(highest, initial=-np.inf))


@check(
    "Values far from all returns of the log are not learned from it: set alg.policy.args.init_value to the mean "
    "return, lower the learning rate, or, if they grow, raise alg.args.cql_weight or use ilql or mc_returns, which do "
    "not evaluate tokens that are not in the log."
)
def values_outside_returns(history: History, facts: RunFacts) -> str | None:
    if not facts.values_are_returns:
        return None
    value, (lowest, highest) = mean(history.last("train/q_mean", WINDOW)), _returns(history)
    margin = OUTSIDE_WIDTHS * (highest - lowest)
    if not (value < lowest - margin or value > highest + margin):
        return None
    return f"the mean of Q is {value:.3g}, but returns to go in the log are from {lowest:.3g} to {highest:.3g}"


@check(
    "All tokens have the same value, so guidance changes nothing: train longer, raise the learning rate, or raise "
    "alg.args.gamma if rewards come late."
)
def advantages_vanish(history: History, facts: RunFacts) -> str | None:
    if len(history) < SPREAD_MIN_ITERATIONS:
        return None
    spread, (lowest, highest) = mean(history.last("train/advantage_abs", SPREAD_ITERATIONS)), _returns(history)
    if not spread < SPREAD_SHARE * (highest - lowest):
        return None
    return f"the mean advantage of a token is {spread:.1e}, while returns differ by up to {highest - lowest:.3g}"


@check(
    "A few tokens decide what is imitated, which is noisy: raise alg.args.temperature, or lower "
    "alg.args.max_log_weight."
)
def few_weighted_tokens(history: History, facts: RunFacts) -> str | None:
    share = mean(history.last("train/effective_share", WINDOW))
    if not share < EFFECTIVE_SHARE:
        return None
    return f"the weights of the imitation have an effective sample size of {share:.1%} of the tokens"


CHECKS = (values_outside_returns, advantages_vanish, few_weighted_tokens)
