"""Scores finished replies with all kinds of rewards, and checks the rewards' return values."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rl4dialog.core.errors import RewardError
from rl4dialog.core.time_limit import TimeIsUp, time_limit
from rl4dialog.core.types import RewardPart
from rl4dialog.rewards.async_reward import AsyncCalls, AsyncReward
from rl4dialog.rewards.parts import is_batched
from rl4dialog.text.padded_ids import PaddedIds
from rl4dialog.text.tokenizer import encode_prompt


@dataclass
class ReplyScores:
    """Weighted sums per reply, and the unweighted values of each part. NaN marks a reply whose reward failed."""

    total: list[float]
    parts: dict[str, list[float]]


@dataclass
class _FinishedReply(PaddedIds):
    """The view of a finished reply for token-level rewards, if only its text is available.

    Its tensors and its ``action_history`` contain the text's tokens, unpadded.
    """

    prompt_or_input_text: str
    context_text: str
    target_or_reference_texts: list[str]
    meta_info: dict[str, Any]
    prompt_ids: list[int] = field(default_factory=list)
    context_ids: list[int] = field(default_factory=list)
    tokenizer: Any = None

    def token_ids(self) -> tuple[list[int], list[int]]:
        tokenizer = self.tokenizer_of_ids()
        reply: list[int] = tokenizer(self.context_text, add_special_tokens=False)["input_ids"]
        return encode_prompt(tokenizer, self.prompt_or_input_text, None), reply

    def tokenizer_of_ids(self) -> Any:
        if self.tokenizer is None:
            raise RewardError("the reply has no token ids, because only its text is available here")
        return self.tokenizer


def score_replies(
    parts: Sequence[RewardPart],
    prompt_texts: list[str],
    gen_texts: list[str],
    ref_texts: list[list[str]],
    meta_infos: list[dict[str, Any]],
    sample_ids: Sequence[Any],
    dones: list[bool] | None = None,
    on_error: str = "raise",
    iteration: int = 1,
    async_calls: AsyncCalls | None = None,
    timeout_s: float | None = None,
    tokenizer: Any = None,
) -> ReplyScores:
    """Score whole replies.

    Args:
        parts: Rewards and their weights.
        prompt_texts: One per reply; all other sequences have the same length.
        gen_texts: The replies.
        ref_texts: Their references.
        meta_infos: Meta data of the samples.
        sample_ids: Sample ids for error messages.
        dones: Whether the episode ended with the reply; by default all did.
        on_error: ``raise``, or ``mask`` for NaN instead of an error.
        iteration: Iteration for changing weights, counted from 1.
        async_calls: Settings for awaiting coroutines, which run while the other rewards are computed.
        timeout_s: Time limit of each other reward, per batch, or per reply if it scores single replies.
        tokenizer: Tokenizer for token-level rewards that read ids.

    Raises:
        RewardError: If a reward raises or times out, or does not return one finite number per reply.
    """
    dones = dones if dones is not None else [True] * len(gen_texts)
    batch = (prompt_texts, gen_texts, ref_texts, dones, meta_infos)
    coroutines = {part.name: part.function for part in parts if isinstance(part.function, AsyncReward)}
    calls = [call for reward in coroutines.values() for call in reward.calls(*batch)]
    awaits = async_calls or AsyncCalls()
    pending = awaits.start(calls, keep_going=on_error == "mask")
    values: dict[str, list[float]] = {}
    try:
        for part in parts:
            if part.name not in coroutines:
                values.update(_computed(part, *batch, sample_ids, on_error, timeout_s, tokenizer))
        outcomes = pending.result(awaits.longest_s(len(calls)))
    except FutureTimeout as error:
        raise RewardError(
            f"the coroutines of {', '.join(map(repr, coroutines))} did not end, even after their timeout "
            f"(reward_fn.async_calls): one of them blocks the event loop; await all slow operations"
        ) from error
    finally:
        pending.cancel()
    values.update(_awaited(coroutines, outcomes, sample_ids, dones, on_error))
    terms = [[part.term(value, iteration) for value in values[part.name]] for part in parts]
    return ReplyScores([sum(each) for each in zip(*terms, strict=True)], values)


class BatchScorer:
    """Adds up rewards per utterance: token-level ones from the env workers, and those of the main process.

    Args:
        parts: All rewards of a run.
        on_error: ``raise`` or ``mask``.
        async_calls: Settings for awaiting coroutines.
        timeout_s: Time limit of a reward in the main process.
    """

    def __init__(
        self,
        parts: Sequence[RewardPart],
        on_error: str = "raise",
        async_calls: AsyncCalls | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._parts, self._on_error, self._async_calls = list(parts), on_error, async_calls
        self._timeout_s = timeout_s
        self._in_main = [part for part in parts if is_batched(part.function)]
        self._in_workers = [part for part in parts if not is_batched(part.function)]

    def __call__(
        self, infos: list[dict[str, Any]], dones: list[bool], iteration: int
    ) -> tuple[list[np.ndarray], dict[str, list[float]]]:
        """Score a batch of utterances.

        Args:
            infos: Info dicts of :class:`~rl4dialog.envs.utterance_view.UtteranceView`.
            dones: Whether the episode ended with the utterance.
            iteration: Iteration for changing weights, counted from 1.

        Returns:
            The weighted sum per token of each utterance, (n,) float64, with rewards for whole replies on the last
            token; and the value of each part per utterance, with its weight if that changes.

        Raises:
            RewardError: If a reward raises, or does not return one finite number per reply.
        """
        rewards = [np.zeros(len(info["token_rewards"])) for info in infos]
        values: dict[str, list[float]] = {}
        for part in self._in_workers:
            per_token = [info["reward_parts"][part.name].tolist() for info in infos]
            for total, own in zip(rewards, per_token, strict=True):
                total += [part.term(value, iteration) for value in own]
            values[part.name] = [sum(own) for own in per_token]
        if self._in_main:
            scores = score_replies(
                self._in_main,
                [info["prompt_text"] for info in infos],
                [info["gen_text"] for info in infos],
                [info["ref_texts"] for info in infos],
                [info["meta_info"] for info in infos],
                [info["sample_id"] for info in infos],
                dones,
                self._on_error,
                iteration,
                self._async_calls,
                self._timeout_s,
            )
            for total, score in zip(rewards, scores.total, strict=True):
                total[-1] += score
            values.update(scores.parts)
        changing = {part.name: [part.weight_at(iteration)] for part in self._parts if callable(part.weight)}
        return rewards, {**values, **{f"{name}/weight": weight for name, weight in changing.items()}}


def check_scores(values: Any, n: int, name: str, sample_ids: Sequence[Any], on_error: str = "raise") -> list[float]:
    """Check that a reward returned one finite number per reply.

    Args:
        values: The reward's return value: a sequence, an array or a tensor.
        n: Expected number of values.
        name: Name of the reward.
        sample_ids: Sample ids of the replies, for error messages.
        on_error: With ``mask``, an invalid value becomes NaN; a wrong number of values is always an error.

    Raises:
        RewardError: If the number of values is wrong, or one is not a finite number.
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
            f"{sample_ids[-1]!r}); return one value per reply"
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
                    f"reward {name!r} returned {value!r} for sample {sample_id!r}; it must return finite numbers"
                )
            number = math.nan
        checked.append(number)
    return checked


def _computed(
    part: RewardPart,
    prompt_texts: list[str],
    gen_texts: list[str],
    ref_texts: list[list[str]],
    dones: list[bool],
    meta_infos: list[dict[str, Any]],
    sample_ids: Sequence[Any],
    on_error: str,
    timeout_s: float | None,
    tokenizer: Any,
) -> dict[str, list[float]]:
    """Compute a part that is not async, and its own terms if it has any."""
    if is_batched(part.function):
        call = functools.partial(part.function, prompt_texts, gen_texts, ref_texts, dones, meta_infos)
        values = {part.name: _guarded(call, len(gen_texts), part.name, sample_ids, on_error, timeout_s)}
        own_terms = getattr(part.function, "last_parts", {})
        return {**values, **{f"{part.name}/{name}": each for name, each in own_terms.items()}}
    scores = []
    for row, sample_id in enumerate(sample_ids):
        reply = _FinishedReply(prompt_texts[row], gen_texts[row], ref_texts[row], meta_infos[row], tokenizer=tokenizer)
        call = functools.partial(_score_one, part.function, reply, dones[row])
        scores += _guarded(call, 1, part.name, [sample_id], on_error, timeout_s)
    return {part.name: scores}


def _score_one(function: Callable[..., Any], reply: _FinishedReply, done: bool) -> list[Any]:
    return [function(reply, -1, reply, done, reply.meta_info)]


def _awaited(
    rewards: dict[str, AsyncReward],
    outcomes: Sequence[Any],
    sample_ids: Sequence[Any],
    dones: list[bool],
    on_error: str,
) -> dict[str, list[float]]:
    """Collect the values of async rewards from the outcomes of their coroutines."""
    finished = [[sample_id] for sample_id, done in zip(sample_ids, dones, strict=True) if done]
    asked = [
        (name, ids)
        for name, reward in rewards.items()
        for ids in (finished if reward.per_reply else [list(sample_ids)])
    ]
    if on_error != "mask":
        # The failed coroutine comes first: the others were only cancelled because of it.
        for kind in (Exception, BaseException):
            for (name, ids), outcome in zip(asked, outcomes, strict=True):
                if isinstance(outcome, kind):
                    raise _failure(name, ids, outcome) from outcome
    answers: dict[str, list[float]] = {name: [] for name in rewards}
    for (name, ids), outcome in zip(asked, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            answers[name] += [math.nan] * len(ids)
        else:
            values = [outcome] if rewards[name].per_reply else outcome
            answers[name] += check_scores(values, len(ids), name, ids, on_error)
    for name, reward in rewards.items():
        if reward.per_reply:
            own = iter(answers[name])
            answers[name] = [next(own) if done else 0.0 for done in dones]
    return answers


def _guarded(
    call: Callable[[], Any], n: int, name: str, sample_ids: Sequence[Any], on_error: str, timeout_s: float | None
) -> list[float]:
    try:
        with time_limit(timeout_s):
            values = call()
    except (Exception, TimeIsUp) as error:
        if isinstance(error, TimeIsUp):
            error = TimeoutError(f"no result after {timeout_s:g} s (reward_fn.timeout_s; null disables the limit)")
        if on_error == "mask":
            return [math.nan] * n
        raise _failure(name, sample_ids, error) from error
    return check_scores(values, n, name, sample_ids, on_error)


def _failure(name: str, sample_ids: Sequence[Any], error: BaseException) -> RewardError:
    which = repr(sample_ids[0]) if len(sample_ids) == 1 else f"{sample_ids[0]!r} to {sample_ids[-1]!r}"
    return RewardError(f"reward {name!r} failed on sample {which}: {type(error).__name__}: {error}")
