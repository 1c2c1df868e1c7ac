"""Statistics of a critic: from values and mean returns, and from utterances in the same state."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.utils import explained_variance

from rl4dialog.functional.statistics import bootstrap_intervals, spearman
from rl4dialog.runs.plots import plain_figure, save_figure
from rl4dialog.training.critic_measure import DIGITS, MIN_STATES, CriticMeasure, Floats, State, value_ranks

Utterance = tuple[float, Floats]
"""What the critic says of an utterance: its reward and the next value; and returns (k,), one if it ends everything."""
_N_BINS, _N_ALTERNATIVES = 10, 5


def utterances_in(measure: CriticMeasure, states: Sequence[State], k: int) -> list[list[Utterance]]:
    """Distinct next utterances of each state, with returns of k continuations of each."""
    numbered = itertools.product(enumerate(states), range(_N_ALTERNATIVES))
    rows = [(i, state.anew(measure.derived("utterance", i, j))) for (i, state), j in numbered]
    found: dict[tuple[int, str], Utterance] = {}
    going_on: dict[tuple[int, str], State] = {}
    talks = measure.held("alternatives", [state for _, state in rows], True)
    for (i, state), talk in zip(rows, talks, strict=True):
        if talk is None or (key := (i, talk.replies[state.turn].text)) in found:
            continue
        after, value = state.turn + 1, 0.0
        if after < len(talk.replies):
            going_on[key] = state.later(talk, after)
            value = float(talk.replies[after].of_tokens("values")[0])  # type: ignore[index]
        own = talk.replies[state.turn : after]
        found[key] = float(measure.returns(own, value)[0][0]), measure.returns(own)[0][:1]
    for key, returns in zip(going_on, measure.continued([*going_on.values()], k, "their continuations"), strict=True):
        found[key] = found[key][0], returns
    return [[each for (number, _), each in found.items() if number == i] for i in range(len(states))]


def critic_statistics(
    states: Sequence[State], returns: Floats, seen: Floats, alternatives: Sequence[Sequence[Utterance]] = ()
) -> dict[str, Any]:
    """Statistics of a critic by key, the bins of its calibration, and notes: a warning, and what cannot be computed.

    From the states and returns of k continuations of each, (n, k); turn, value and return of all states that were seen
    in some conversations, (m, 3); and utterances in some of the states.
    """
    values, turns = (np.array([getattr(state, name) for state in states]) for name in ("value", "turn"))
    means, (found, warning), unranked = returns.mean(axis=1).round(DIGITS), value_ranks(states, returns), list[str]()
    notes = [warning] if warning else []
    if np.ptp(values) and np.ptp(means):
        (interval,) = bootstrap_intervals(lambda i: [spearman(values[i], means[i])], len(values), n_resamples=500)
        found |= {"value_rank/low": interval.low, "value_rank/high": interval.high}
        found["slope"] = float(np.polyfit(values, means, 1)[0])
    found["reliability"] = split_half_reliability(returns)
    found["value_rank/highest"] = math.sqrt(found["reliability"])
    # At most, values explain the variance between states: that of their means without the noise of these.
    noise = float(returns.var(axis=1, ddof=1).mean())
    between = max(float(means.var(ddof=1)) - noise / returns.shape[1], 0.0)
    found["explained_variance"] = float(explained_variance(seen[:, 1], seen[:, 2]))
    found["explained_variance/highest"] = between / (between + noise or math.nan)
    for turn in np.unique(turns) if np.ptp(turns) else ():
        own, (_, v, g) = turns == turn, seen[seen[:, 0] == turn].T
        found[f"explained_variance/turn_{turn + 1}"] = float(explained_variance(v, g))
        if own.sum() >= MIN_STATES and np.ptp(values[own]) and np.ptp(means[own]):
            found[f"value_rank/turn_{turn + 1}"] = spearman(values[own], means[own])
        else:
            unranked.append(str(turn + 1))
    if unranked:
        why = f"fewer than {MIN_STATES} states, or equal values or returns"
        notes.append(f"turn {', '.join(unranked)} without a rank correlation: {why}")
    pairs = np.array([pair for of_state in alternatives for pair in _ordered(of_state)])
    if len(pairs) >= MIN_STATES:
        found |= dict(zip(("order", "order/halves"), pairs.mean(axis=0).tolist(), strict=True))
    notes.append(f"{len(pairs)} pairs of utterances in the same state differ in their returns")
    parts = np.array_split(np.argsort(values, kind="stable"), min(_N_BINS, len(values) // 2))
    bins = [{"value": float(values[p].mean()), "mean_return": float(means[p].mean()), "n": len(p)} for p in parts]
    return {"metrics": dict(sorted(found.items())), "bins": bins, "notes": notes}


def _ordered(utterances: Sequence[Utterance]) -> list[tuple[float, ...]]:
    """For pairs of utterances, whether their values have the order of their mean returns; 0.5 for equal ones.

    The second number is whether both halves of the continuations have the same order. Left out are pairs with equal
    returns, and those that both end the conversation, in which no value is asked.
    """
    pairs = []
    for (value, returns), (other, others) in itertools.combinations(utterances, 2):
        k = max(len(returns), len(others))
        differences = np.resize(returns, k) - np.resize(others, k)
        total, one, two = (differences[part].sum().round(DIGITS) for part in np.s_[:, ::2, 1::2])
        if k > 1 and total and math.isfinite(total):
            pairs.append(tuple((1 + np.sign([(value - other) * total, one * two])) / 2))
    return pairs


def split_half_reliability(samples: Floats) -> float:
    """Reliability of the means of N rows, from those of two halves of each row (Spearman 1910, Brown 1910).

    It is the share of the means' variance that is not noise; NaN if the means of a half are all equal. Shape (N, K).
    """
    one, other = samples[:, ::2].mean(axis=1), samples[:, 1::2].mean(axis=1)
    if not np.ptp(one) or not np.ptp(other):
        return math.nan
    r = max(float(np.corrcoef(one, other)[0, 1]), 0.0)
    return 2 * r / (1 + r)


def plot_calibration(bins: Sequence[Mapping[str, float]], output_png: str | Path) -> None:
    """Plot the mean return over the mean value of each bin of states; a perfect critic's are on the diagonal."""
    figure, (axes,) = plain_figure(4.5, 4.0)
    values, returns = ([each[key] for each in bins] for key in ("value", "mean_return"))
    axes.plot(values, values, color="gray", linestyle="--", linewidth=1)
    axes.plot(values, returns, linewidth=2, marker="o", markersize=4)
    axes.set_xlabel("value of the critic")
    axes.set_ylabel("mean return of the continuations")
    save_figure(figure, output_png)
