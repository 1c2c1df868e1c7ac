"""Scores finished replies with rewards of all kinds, and checks the values that the rewards return."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import Any

from rl4dialog.core.async_calls import AsyncCalls
from rl4dialog.core.errors import RewardError, RL4DialogError, raised
from rl4dialog.core.protocols import BatchedConversationReward, ConversationReward
from rl4dialog.core.reward_parts import FinishedReplies, RewardPart, weighted_sum
from rl4dialog.core.time_limit import TimeIsUp, time_limit
from rl4dialog.core.types import AGENT, Dialogue
from rl4dialog.scores.parts import AsyncReward
from rl4dialog.text.prompts import PaddedIds, encode_prompt


@dataclass
class ReplyScores:
    """Weighted sums per reply, and the raw values of each part. NaN marks a reply whose reward failed."""

    total: list[float]
    parts: dict[str, list[float]]


@dataclass(frozen=True)
class Scorer:
    """Scores batches of finished replies."""

    parts: Sequence[RewardPart]
    on_error: str = "raise"  # or ``mask`` for NaN instead of an error
    async_calls: AsyncCalls = field(default_factory=AsyncCalls)  # for coroutines, which run beside the other rewards
    timeout_s: float | None = None  # limit of each other reward, per batch, or per reply if it scores single replies
    tokenizer: Any = None  # for token-level rewards that read ids

    def score(self, replies: FinishedReplies, iteration: int = 1) -> ReplyScores:
        """Score replies with all parts, whose weights may change with the iteration, counted from 1.

        A `RewardError` if a reward raises or times out, or does not return one finite number per reply.
        """
        values = self.values(replies)
        rows = [{part.name: values[part.name][row] for part in self.parts} for row in range(len(replies))]
        return ReplyScores([float(weighted_sum(self.parts, row, iteration)) for row in rows], values)

    def values(self, replies: FinishedReplies) -> dict[str, list[float]]:
        """Raw value of each part for each reply, by name; and of the terms that parts report. Errors as in `score`."""
        asynchronous = [part for part in self.parts if isinstance(part.function, AsyncReward)]
        coroutines = {part.name: (part.function, replies.paid(part)) for part in asynchronous}
        calls = [call for reward, asked in coroutines.values() for call in reward.calls(asked)]
        pending = self.async_calls.start(calls, keep_going=self.on_error == "mask")
        values: dict[str, list[float]] = {}
        try:
            for part in self.parts:
                if part.name not in coroutines:
                    values.update(self._computed(part, replies.paid(part)))
            outcomes = pending.result(self.async_calls.longest_s(len(calls)))
        except FutureTimeout as error:
            problem = "did not end, even after their timeout (reward_fn.async_calls); await all slow operations"
            raise RewardError(f"the coroutines of {', '.join(map(repr, coroutines))} {problem}") from error
        finally:
            pending.cancel()
        return {**values, **self._awaited(coroutines, outcomes)}

    def _computed(self, part: RewardPart, replies: FinishedReplies) -> dict[str, list[float]]:
        """Compute a part that is not async, and the terms that it reports."""
        function, ids = part.function, replies.sample_ids
        if isinstance(function, BatchedConversationReward):
            return {part.name: self._paid_in_conversations(part, replies)}
        if not part.in_main_process:
            scores = []
            for row, sample_id in enumerate(ids):
                call = functools.partial(_score_one, function, replies, row, self.tokenizer)
                scores += self._guarded(call, part.name, [sample_id], replies.failures)
            return {part.name: scores}
        texts = (replies.prompt_texts, replies.gen_texts, replies.ref_texts)
        call = functools.partial(function, *texts, replies.dones, replies.meta_infos)
        values = self._guarded(call, part.name, ids, replies.failures)
        # After a failure, the terms are those of an earlier batch.
        own_terms = {} if all(map(math.isnan, values)) else getattr(function, "last_parts", {})
        paid = [value if done else 0.0 for value, done in zip(values, replies.dones, strict=True)]
        return {part.name: paid, **{f"{part.name}/{name}": each for name, each in own_terms.items()}}

    def _paid_in_conversations(self, part: RewardPart, replies: FinishedReplies) -> list[float]:
        """Compute a reward that may also pay for earlier turns, when a conversation is over."""
        dialogues = [replies.dialogue(row) for row in range(len(replies))]
        paid: list[list[float]] = []

        def last_payments() -> list[Any]:
            found = part.function(dialogues, replies.dones)
            if not isinstance(found, (list, tuple)) or len(found) != len(replies):
                return found  # type: ignore[no-any-return]
            paid[:] = map(_by_turn, found, dialogues, replies.dones)
            return [payments[-1] for payments in paid]

        values = self._guarded(last_payments, part.name, replies.sample_ids, replies.failures)
        earlier = [payments[:-1] for payments in paid] or [[]] * len(replies)
        flat = [value for payments in earlier for value in payments]
        ids = [id for id, payments in zip(replies.sample_ids, earlier, strict=True) for _ in payments]
        checked = iter(check_scores(flat, part.name, ids, self.on_error) if flat else ())
        replies.earlier[part.name] = [[next(checked) for _ in payments] for payments in earlier]
        return values

    def _guarded(
        self, call: Callable[[], Any], name: str, sample_ids: Sequence[Any], failures: list[str]
    ) -> list[float]:
        try:
            with time_limit(self.timeout_s):
                values = call()
        except (Exception, TimeIsUp) as error:
            if isinstance(error, TimeIsUp):
                limit = f"{self.timeout_s:g} s (reward_fn.timeout_s; null disables the limit)"
                error = TimeoutError(f"no result after {limit}")
            failure = _failure(name, sample_ids, error)
            if self.on_error == "mask":
                failures.append(str(failure))
                return [math.nan] * len(sample_ids)
            raise failure from error
        return check_scores(values, name, sample_ids, self.on_error)

    def _awaited(
        self, rewards: dict[str, tuple[AsyncReward, FinishedReplies]], outcomes: Sequence[Any]
    ) -> dict[str, list[float]]:
        """Collect the values of async rewards from the outcomes of their coroutines."""
        asked, left = [], iter(outcomes)
        for name, (reward, replies) in rewards.items():
            for rows in reward.rows(replies):
                asked.append((name, rows, [replies.sample_ids[row] for row in rows], next(left)))
        if self.on_error != "mask":
            # The failed coroutine comes first: the others were only cancelled because of it.
            for kind in (Exception, BaseException):
                for name, _, ids, outcome in asked:
                    if isinstance(outcome, kind):
                        raise _failure(name, ids, outcome) from outcome
        values = {name: [0.0] * len(replies) for name, (_, replies) in rewards.items()}
        for name, rows, ids, outcome in asked:
            reward, replies = rewards[name]
            if isinstance(outcome, BaseException):
                replies.failures.append(str(_failure(name, ids, outcome)))
                found = [math.nan] * len(ids)
            else:
                found = check_scores([outcome] if reward.per_reply else outcome, name, ids, self.on_error)
            for row, value in zip(rows, found, strict=True):
                values[name][row] = value if replies.dones[row] else 0.0
        return values


@dataclass
class TextState(PaddedIds):
    """The state after a finished reply, for token-level rewards, if only its text is available.

    Its tensors and its ``action_history`` contain the text's tokens, unpadded.
    """

    prompt_or_input_text: str
    context_text: str
    target_or_reference_texts: list[str]
    meta_info: dict[str, Any]
    tokenizer: Any = None
    prompt_ids: list[int] = field(default_factory=list)
    context_ids: list[int] = field(default_factory=list)

    def token_ids(self) -> tuple[list[int], list[int]]:
        tokenizer = self.tokenizer_of_ids()
        reply: list[int] = tokenizer(self.context_text, add_special_tokens=False)["input_ids"]
        return encode_prompt(tokenizer, self.prompt_or_input_text, None), reply

    def tokenizer_of_ids(self) -> Any:
        if self.tokenizer is None:
            raise RewardError("the reply has no token ids, because only its text is available here")
        return self.tokenizer


def check_scores(values: Any, name: str, sample_ids: Sequence[Any], on_error: str = "raise") -> list[float]:
    """Check that a reward returned one finite number per reply, in a sequence, an array or a tensor.

    With ``on_error: mask``, an invalid value becomes NaN; a wrong number of values is always an error.
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
        replies = f"{n} replies (samples {sample_ids[0]!r} to {sample_ids[-1]!r})"
        raise RewardError(f"reward {name!r} returned {len(flat)} values for {replies}; return one value per reply")
    checked = []
    for value, sample_id in zip(flat, sample_ids, strict=True):
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number) and on_error != "mask":
            problem = f"returned {value!r} for sample {sample_id!r}; it must return finite numbers"
            raise RewardError(f"reward {name!r} {problem}")
        checked.append(number if math.isfinite(number) else math.nan)
    return checked


def _score_one(function: Callable[..., Any], replies: FinishedReplies, row: int, tokenizer: Any) -> list[Any]:
    if isinstance(function, ConversationReward):
        if function.needs_partner:
            raise RewardError("it comes from the partner of a conversation, and this reply has none")
        return [function(replies.dialogue(row), replies.dones[row])]
    texts = (replies.prompt_texts[row], replies.gen_texts[row], replies.ref_texts[row])
    reply = TextState(*texts, replies.meta_infos[row], tokenizer)
    return [function(reply, -1, reply, replies.dones[row], reply.meta_info)]


def _by_turn(value: Any, dialogue: Dialogue, done: bool) -> list[Any]:
    """Payments for each utterance of the agent, or for the last one only."""
    if not isinstance(value, (list, tuple)):
        return [value]
    n = len(dialogue.texts(AGENT))
    if not done or len(value) != n:
        when = f"one number for each of the {n} utterances of the agent" if done else "a number before the end"
        raise ValueError(f"it returned {len(value)} numbers for conversation {dialogue.id!r}, not {when}")
    return list(value)


def _failure(name: str, sample_ids: Sequence[Any], error: BaseException) -> RewardError:
    which = repr(sample_ids[0]) if len(sample_ids) == 1 else f"{sample_ids[0]!r} to {sample_ids[-1]!r}"
    reason = str(error) if isinstance(error, RL4DialogError) else raised(error)
    return RewardError(f"reward {name!r} failed on sample {which}: {reason}")
