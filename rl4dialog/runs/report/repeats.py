"""Scores that only repeat another one, such as the single part of a reward: the report shows each number once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rl4dialog.runs.report.predictions import Predictions
from rl4dialog.runs.report.samples import RETURN_KEYS, REWARD_KEY, sort_keys


def repeated_keys(evaluations: Sequence[Predictions]) -> dict[str, str]:
    """Return the scores that equal an earlier one for every sample of all evaluations, and which one.

    The reward comes first, its parts last. Constant scores are repeats only if both are rewards or returns: that two
    metrics are always 1 does not make them one.

    Args:
        evaluations: Evaluations of one split.
    """
    found: dict[str, str] = {}
    keys = sorted(sort_keys(evaluations), key=lambda key: key.startswith(f"{REWARD_KEY}/"))
    columns = {key: _column(key, evaluations) for key in keys}
    for i, key in enumerate(keys):
        for earlier in keys[:i]:
            if earlier not in found and _is_repeat(key, earlier, columns):
                found[key] = earlier
                break
    return found


def _column(key: str, evaluations: Sequence[Predictions]) -> NDArray[np.float64]:
    missing = [np.full(len(each), np.nan) for each in evaluations]
    return np.concatenate([each.scores.get(key, nan) for each, nan in zip(evaluations, missing, strict=True)])


def _is_repeat(key: str, earlier: str, columns: dict[str, NDArray[np.float64]]) -> bool:
    one, other = columns[key], columns[earlier]
    if not np.allclose(one, other, rtol=1e-5, atol=1e-8, equal_nan=True):
        return False
    known = one[~np.isnan(one)]
    return len(known) > 0 and (bool(np.ptp(known) > 0) or (is_of_reward(key) and is_of_reward(earlier)))


def is_of_reward(key: str) -> bool:
    """Whether a score is the reward, one of its parts, or the return of a conversation."""
    return key == REWARD_KEY or key.startswith(f"{REWARD_KEY}/") or key in RETURN_KEYS
