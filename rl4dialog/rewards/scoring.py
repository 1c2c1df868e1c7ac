"""Scoring finished replies with any mix of rewards, and checking what the rewards return."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rl4dialog.core.errors import RewardError
from rl4dialog.core.protocols import SentenceRewardFunction
from rl4dialog.core.types import RewardPart
from rl4dialog.rewards.parts import is_batched


@dataclass
class ReplyScores:
    """Weighted sums per reply, and the unweighted values of each part. NaN marks a reply whose reward failed."""

    total: list[float]
    parts: dict[str, list[float]]


@dataclass
class _FinishedReply:
    """What a token-level reward may read of a reply that is over."""

    prompt_or_input_text: str
    context_text: str
    target_or_reference_texts: list[str]
    meta_info: dict[str, Any]
    prompt_ids: list[int] = field(default_factory=list)
    context_ids: list[int] = field(default_factory=list)


def score_replies(
    parts: Sequence[RewardPart],
    prompt_texts: list[str],
    gen_texts: list[str],
    ref_texts: list[list[str]],
    meta_infos: list[dict[str, Any]],
    sample_ids: Sequence[Any],
    dones: list[bool] | None = None,
    on_error: str = "raise",
) -> ReplyScores:
    """Score whole replies.

    Args:
        parts: Rewards and their weights.
        prompt_texts: One per reply, like all that follow.
        gen_texts: The replies.
        ref_texts: Their references.
        meta_infos: The samples' meta data.
        sample_ids: For error messages.
        dones: Whether the episode ended with the reply; by default all did.
        on_error: ``raise``, or ``mask`` for NaN in place of an error.

    Raises:
        RewardError: If a reward raises, or does not return one finite number per reply.
    """
    dones = dones if dones is not None else [True] * len(gen_texts)
    total, values = [0.0] * len(gen_texts), {}
    for part in parts:
        if is_batched(part.function):

            def batched(function: Any = part.function) -> Any:
                return function(prompt_texts, gen_texts, ref_texts, dones, meta_infos)

            scores = _guarded(batched, len(gen_texts), part.name, sample_ids, on_error)
            values.update({f"{part.name}/{n}": v for n, v in getattr(part.function, "last_parts", {}).items()})
        else:
            scores = []
            for i, text in enumerate(gen_texts):

                def single(function: Any = part.function, i: int = i, text: str = text) -> Any:
                    if isinstance(function, SentenceRewardFunction):
                        return [function.score(prompt_texts[i], text, ref_texts[i], meta_infos[i]) if dones[i] else 0.0]
                    reply = _FinishedReply(prompt_texts[i], text, ref_texts[i], meta_infos[i])
                    return [function(reply, -1, reply, dones[i], meta_infos[i])]

                scores += _guarded(single, 1, part.name, [sample_ids[i]], on_error)
        values[part.name] = scores
        total = [t + part.weight * score for t, score in zip(total, scores, strict=True)]
    return ReplyScores(total, values)


class BatchScorer:
    """Scores the utterances of a rollout batch in the main process.

    Args:
        parts: Batched rewards.
        on_error: ``raise`` or ``mask``.
    """

    def __init__(self, parts: Sequence[RewardPart], on_error: str = "raise") -> None:
        self._parts, self._on_error = list(parts), on_error

    def __call__(self, infos: list[dict[str, Any]], dones: list[bool]) -> tuple[list[float], dict[str, list[float]]]:
        scores = score_replies(
            self._parts,
            [info["prompt_text"] for info in infos],
            [info["gen_text"] for info in infos],
            [info["ref_texts"] for info in infos],
            [info["meta_info"] for info in infos],
            [info["sample_id"] for info in infos],
            dones,
            self._on_error,
        )
        return scores.total, scores.parts


def check_scores(values: Any, n: int, name: str, sample_ids: Sequence[Any], on_error: str = "raise") -> list[float]:
    """One finite number per reply, or an error that names the sample.

    Args:
        values: What a reward returned: a sequence, an array or a tensor.
        n: How many there must be.
        name: Of the reward.
        sample_ids: Of the replies.
        on_error: With ``mask`` a bad value becomes NaN; a wrong number of values is an error all the same.

    Raises:
        RewardError: If there are too few or too many values, or one is no finite number.
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    if hasattr(values, "tolist"):
        values = values.tolist()
    if not isinstance(values, (list, tuple)):
        raise RewardError(f"reward {name!r} must return a list of {n} numbers, not {values!r}")
    flat = [v[0] if isinstance(v, (list, tuple)) and len(v) == 1 else v for v in values]
    if len(flat) != n:
        raise RewardError(
            f"reward {name!r} returned {len(flat)} values for {n} replies (samples {sample_ids[0]!r} to "
            f"{sample_ids[-1]!r}); one per reply is needed"
        )
    checked = []
    for value, sample_id in zip(flat, sample_ids, strict=True):
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            if on_error != "mask":
                raise RewardError(
                    f"reward {name!r} returned {value!r} for sample {sample_id!r}; a finite number is needed"
                )
            number = math.nan
        checked.append(number)
    return checked


def _guarded(call: Callable[[], Any], n: int, name: str, sample_ids: Sequence[Any], on_error: str) -> list[float]:
    try:
        values = call()
    except Exception as error:
        if on_error == "mask":
            return [math.nan] * n
        which = repr(sample_ids[0]) if n == 1 else f"{sample_ids[0]!r} to {sample_ids[-1]!r}"
        raise RewardError(f"reward {name!r} failed on sample {which}: {type(error).__name__}: {error}") from error
    return check_scores(values, n, name, sample_ids, on_error)
