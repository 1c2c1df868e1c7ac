"""Scores finished replies with rewards of all kinds, and checks the values that the rewards return."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import Any

from rl4dialog.core.errors import RewardError
from rl4dialog.core.reward_parts import FinishedReplies, RewardPart, weighted_sum
from rl4dialog.core.time_limit import TimeIsUp, time_limit
from rl4dialog.rewards.async_reward import AsyncCalls, AsyncReward
from rl4dialog.rewards.text_state import TextState


@dataclass
class ReplyScores:
    """Weighted sums per reply, and the raw values of each part. NaN marks a reply whose reward failed."""

    total: list[float]
    parts: dict[str, list[float]]


@dataclass(frozen=True)
class Scorer:
    """Scores batches of finished replies.

    Attributes:
        parts: Rewards with their weights.
        on_error: ``raise``, or ``mask`` for NaN instead of an error.
        async_calls: Settings for awaiting coroutines, which run while the other rewards are computed.
        timeout_s: Time limit of each other reward, per batch, or per reply if it scores single replies.
        tokenizer: Tokenizer for token-level rewards that read ids.
    """

    parts: Sequence[RewardPart]
    on_error: str = "raise"
    async_calls: AsyncCalls = field(default_factory=AsyncCalls)
    timeout_s: float | None = None
    tokenizer: Any = None

    def score(self, replies: FinishedReplies, iteration: int = 1) -> ReplyScores:
        """Score replies with all parts.

        Args:
            replies: The replies.
            iteration: Iteration for changing weights, counted from 1.

        Raises:
            RewardError: If a reward raises or times out, or does not return one finite number per reply.
        """
        values = self.values(replies)
        rows = [{part.name: values[part.name][row] for part in self.parts} for row in range(len(replies))]
        return ReplyScores([float(weighted_sum(self.parts, row, iteration)) for row in rows], values)

    def values(self, replies: FinishedReplies) -> dict[str, list[float]]:
        """Compute the raw value of each part for each reply, by name; also the terms that a part reports of itself.

        Raises:
            RewardError: As in :meth:`score`.
        """
        coroutines = {part.name: part.function for part in self.parts if isinstance(part.function, AsyncReward)}
        calls = [call for reward in coroutines.values() for call in reward.calls(replies)]
        pending = self.async_calls.start(calls, keep_going=self.on_error == "mask")
        values: dict[str, list[float]] = {}
        try:
            for part in self.parts:
                if part.name not in coroutines:
                    values.update(self._computed(part, replies))
            outcomes = pending.result(self.async_calls.longest_s(len(calls)))
        except FutureTimeout as error:
            raise RewardError(
                f"the coroutines of {', '.join(map(repr, coroutines))} did not end, even after their timeout "
                f"(reward_fn.async_calls): one of them blocks the event loop; await all slow operations"
            ) from error
        finally:
            pending.cancel()
        return {**values, **self._awaited(coroutines, outcomes, replies)}

    def _computed(self, part: RewardPart, replies: FinishedReplies) -> dict[str, list[float]]:
        """Compute a part that is not async, and the terms that it reports."""
        function, ids = part.function, replies.sample_ids
        if not part.in_main_process:
            scores = []
            for row, sample_id in enumerate(ids):
                call = functools.partial(_score_one, function, TextState.of(replies, row, self.tokenizer), replies, row)
                scores += self._guarded(call, part.name, [sample_id])
            return {part.name: scores}
        call = functools.partial(
            function, replies.prompt_texts, replies.gen_texts, replies.ref_texts, replies.dones, replies.meta_infos
        )
        values = self._guarded(call, part.name, ids)
        # After a failure, the terms are those of an earlier batch.
        own_terms = {} if all(map(math.isnan, values)) else getattr(function, "last_parts", {})
        return {part.name: values, **{f"{part.name}/{name}": each for name, each in own_terms.items()}}

    def _guarded(self, call: Callable[[], Any], name: str, sample_ids: Sequence[Any]) -> list[float]:
        try:
            with time_limit(self.timeout_s):
                values = call()
        except (Exception, TimeIsUp) as error:
            if isinstance(error, TimeIsUp):
                limit = f"{self.timeout_s:g} s (reward_fn.timeout_s; null disables the limit)"
                error = TimeoutError(f"no result after {limit}")
            if self.on_error == "mask":
                return [math.nan] * len(sample_ids)
            raise _failure(name, sample_ids, error) from error
        return check_scores(values, name, sample_ids, self.on_error)

    def _awaited(
        self, rewards: dict[str, AsyncReward], outcomes: Sequence[Any], replies: FinishedReplies
    ) -> dict[str, list[float]]:
        """Collect the values of async rewards from the outcomes of their coroutines."""
        asked = [(name, ids) for name, reward in rewards.items() for ids in _ids_per_call(reward, replies)]
        if self.on_error != "mask":
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
                answers[name] += check_scores(values, name, ids, self.on_error)
        for name, reward in rewards.items():
            if reward.per_reply:
                own = iter(answers[name])
                answers[name] = [next(own) if done else 0.0 for done in replies.dones]
        return answers


def check_scores(values: Any, name: str, sample_ids: Sequence[Any], on_error: str = "raise") -> list[float]:
    """Check that a reward returned one finite number per reply.

    Args:
        values: The reward's return value: a sequence, an array or a tensor.
        name: Name of the reward.
        sample_ids: Sample ids of the replies.
        on_error: With ``mask``, an invalid value becomes NaN; a wrong number of values is always an error.

    Raises:
        RewardError: If the number of values is wrong, or one is not a finite number.
    """
    n = len(sample_ids)
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


def _score_one(function: Callable[..., Any], reply: TextState, replies: FinishedReplies, row: int) -> list[Any]:
    return [function(reply, -1, reply, replies.dones[row], reply.meta_info)]


def _ids_per_call(reward: AsyncReward, replies: FinishedReplies) -> Iterator[list[Any]]:
    """Sample ids of each coroutine of :meth:`AsyncReward.calls`."""
    if not reward.per_reply:
        yield list(replies.sample_ids)
        return
    for sample_id, done in zip(replies.sample_ids, replies.dones, strict=True):
        if done:
            yield [sample_id]


def _failure(name: str, sample_ids: Sequence[Any], error: BaseException) -> RewardError:
    which = repr(sample_ids[0]) if len(sample_ids) == 1 else f"{sample_ids[0]!r} to {sample_ids[-1]!r}"
    return RewardError(f"reward {name!r} failed on sample {which}: {type(error).__name__}: {error}")
