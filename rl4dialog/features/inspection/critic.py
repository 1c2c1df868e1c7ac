"""Statistics of a critic: from values and mean returns, from utterances in the same state, and in logs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.utils import explained_variance

from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.protocols import Player
from rl4dialog.core.types import Sample
from rl4dialog.functional.statistics import bootstrap_intervals, roc_auc, spearman
from rl4dialog.rollouts.conversing import Begun
from rl4dialog.rollouts.talk import Talk
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
    return {"metrics": dict(sorted(found.items())), "bins": _bins(values, means), "notes": notes}


class _Logged(Player):
    """Says what the agent said in the data."""

    def __init__(self, sample: Sample) -> None:
        script = [*sample.references[:1], *(sample.meta_data or {}).get("continuation", ())]  # of both sides
        self._said = script[::2]
        self._until_last = script[: 2 * len(self._said) - 1]

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._rest = iter(self._said)

    def say(self, history: list[str]) -> str:
        return next(self._rest, self._said[-1])

    def went_as_here(self, talk: Talk) -> bool:
        """Whether both sides said what they say in the data; tokens may be written with other spaces."""
        found = [turn.text for turn in talk.dialogue.turns[talk.dialogue.n_given :]][: len(self._until_last)]
        is_same = ["".join(text.split()) for text in found] == ["".join(text.split()) for text in self._until_last]
        return is_same and len(talk.replies) == len(self._said)


def logged_statistics(measure: CriticMeasure, samples: Sequence[Sample], success: str | None = None) -> dict[str, Any]:
    """Statistics of a critic in the conversations of the data, as :func:`critic_statistics`, and the states.

    The value before each utterance of the agent is compared with the return, and with whether the conversation was a
    success: whether this outcome is 1, or by default, whether the return is above the median. The partner must be
    ``replay``. Conversations that become others than in the data are left out: a tool answers a call in their midst, or
    a limit ends them or cuts an utterance.
    """
    players = [_Logged(sample) for sample in samples]
    starts = [State(sample, measure.derived("partner", i), Begun()) for i, sample in enumerate(samples)]
    held = zip(starts, players, measure.held("conversations of the data", starts, True, players), strict=True)
    kept = [(start, talk) for start, player, talk in held if talk is not None and player.went_as_here(talk)]
    if len(kept) < MIN_STATES:
        what = f"a critic is measured on at least {MIN_STATES} conversations"
        raise DataError(f"{what}, but only {len(kept)} of {len(samples)} went as in the data")
    returns_of = [measure.returns(talk.replies) for _, talk in kept]
    good = _successes([talk for _, talk in kept], np.array([own[0][0] for own in returns_of]), success)
    states, owners, returns = list[State](), list[int](), list[float]()
    for i, ((start, talk), own) in enumerate(zip(kept, returns_of, strict=True)):
        for turn, (reply, later) in enumerate(zip(talk.replies, own, strict=True)):
            states.append(replace(start, turn=turn, value=float(reply.of_tokens("values")[0])))  # type: ignore[index]
            owners.append(i)
            returns.append(float(later[0]))
    turns, values = (np.array([getattr(state, name) for state in states]) for name in ("turn", "value"))
    found, _ = value_ranks(states, np.array(returns)[:, None])
    found |= _areas_by_turn(np.array(owners), turns, values, good) | {"success": float(good.mean())}
    if np.ptp(values) and np.ptp(returns):
        found["slope"] = float(np.polyfit(values, returns, 1)[0])
    n_others = len(samples) - len(kept)
    notes = [f"left out: {n_others} conversations that went another way than in the data"] if n_others else []
    names, columns = ("id", "turn", "value", "return", "success"), zip(states, owners, returns, strict=True)
    rows = [(state.sample.id, state.turn + 1, state.value, g, bool(good[i])) for state, i, g in columns]
    return {
        "metrics": dict(sorted(found.items())),
        "bins": _bins(values, np.array(returns)),
        "notes": notes,
        "states": [dict(zip(names, row, strict=True)) for row in rows],
    }


def _successes(talks: Sequence[Talk], returns: Floats, outcome: str | None) -> NDArray[np.bool_]:
    """Whether each conversation was a success; a `ConfigError` if all or none were, or if they have no such outcome."""
    good, kind = returns > np.median(returns), "whose return is above the median"
    if outcome is not None:
        if without := [talk for talk in talks if outcome not in talk.dialogue.outcome]:
            known = ", ".join(without[0].dialogue.outcome) or "none"
            raise ConfigError(f"--success: conversations have no outcome {outcome!r} (outcomes: {known})")
        good, kind = np.array([talk.dialogue.outcome[outcome] == 1 for talk in talks]), f"with the outcome {outcome}: 1"
    if good.all() or not good.any():
        raise ConfigError(f"critic --logged: {good.sum()} of {len(good)} conversations are those {kind}; set --success")
    return good


def _areas_by_turn(
    owners: NDArray[np.int64], turns: Floats, values: Floats, good: NDArray[np.bool_]
) -> dict[str, float]:
    """Areas under the ROC curve, within turns and in each, with intervals over conversations.

    Owners, turns and values of the states have shape (n,), whether conversations were good (m,).
    """
    places = [np.flatnonzero(owners == i) for i in range(len(good))]
    known = [turn for turn in np.unique(turns) if (turns == turn).sum() >= MIN_STATES]

    def areas(drawn: NDArray[np.int64]) -> Floats:
        own = np.concatenate([places[i] for i in drawn])
        each, pairs = np.zeros(len(known)), np.zeros(len(known))
        for i, turn in enumerate(known):
            here = own[turns[own] == turn]
            is_good = good[owners[here]]
            each[i] = roc_auc(values[here[is_good]], values[here[~is_good]])
            pairs[i] = is_good.sum() * (~is_good).sum()
        return np.append(each, np.nansum(each * pairs) / (pairs.sum() or math.nan))

    found, names = dict[str, float](), [*(f"auc/turn_{int(turn) + 1}" for turn in known), "auc_within_turns"]
    intervals = bootstrap_intervals(areas, len(good), n_resamples=500)
    for name, value, interval in zip(names, areas(np.arange(len(good))), intervals, strict=True):
        found |= {name: float(value), f"{name}/low": interval.low, f"{name}/high": interval.high}
    return found


def _bins(values: Floats, returns: Floats) -> list[dict[str, float]]:
    parts = np.array_split(np.argsort(values, kind="stable"), min(_N_BINS, len(values) // 2))
    return [{"value": float(values[p].mean()), "mean_return": float(returns[p].mean()), "n": len(p)} for p in parts]


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
    axes.set_ylabel("mean return")
    save_figure(figure, output_png)
