"""Rewards of evaluation replies: the total and each part."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

from rl4dialog.core.errors import RewardError
from rl4dialog.core.types import RewardPart, Sample
from rl4dialog.rewards.async_reward import AsyncCalls
from rl4dialog.rewards.scoring import ReplyScores, score_replies
from rl4dialog.training.random_state import random_states_kept

TOTAL = "reward"
_logger = logging.getLogger(__name__)


class RewardColumns:
    """Scores evaluation replies with the run's reward.

    Values of a failed reward are NaN. If the run masks failures, this affects only the reply. If failures stop the run,
    it affects the whole evaluation, so that an unavailable judge is not called repeatedly. The caller decides whether
    the run stops at once or after saving its results.

    Args:
        parts: Parts of the run's reward.
        on_error: ``raise`` or ``mask``, as in the run.
        async_calls: Runner for coroutines.
        iteration: Iteration for scheduled weights. It is the same for all evaluations of a run, to keep them
            comparable.
        timeout_s: Time limit of a reward per batch of replies, or per reply if it is called for single replies.
        tokenizer: Tokenizer for token-level rewards that read ids.

    Attributes:
        error: Error message, if the last evaluation has no rewards and failures stop the run.
    """

    error: RewardError | None = None

    def __init__(
        self,
        parts: Sequence[RewardPart],
        on_error: str = "raise",
        async_calls: AsyncCalls | None = None,
        iteration: int = 1,
        timeout_s: float | None = None,
        tokenizer: Any = None,
    ) -> None:
        self._parts, self._on_error, self._async_calls = parts, on_error, async_calls
        self._iteration, self._timeout_s, self._tokenizer = iteration, timeout_s, tokenizer

    def score(self, samples: Sequence[Sample], replies: list[str], must_work: bool = False) -> dict[str, list[float]]:
        """Score replies. The random state is restored afterwards.

        Args:
            samples: Samples with the prompts.
            replies: One reply to each sample.
            must_work: Whether to raise a failure that would stop the run.

        Returns:
            ``reward``, clipped and weighted as in the run, and ``reward/<part>`` as returned by each part. NaN if a
            reward failed.

        Raises:
            RewardError: If a reward failed and ``must_work`` is set.
        """
        self.error = None
        with random_states_kept():
            try:
                scores = score_replies(
                    self._parts,
                    [sample.prompt_or_input_text for sample in samples],
                    replies,
                    [sample.references for sample in samples],
                    [sample.meta_data or {} for sample in samples],
                    [sample.id for sample in samples],
                    on_error=self._on_error,
                    iteration=self._iteration,
                    async_calls=self._async_calls,
                    timeout_s=self._timeout_s,
                    tokenizer=self._tokenizer,
                )
            except RewardError as error:
                if must_work:
                    raise
                self.error = error
                _logger.warning("this evaluation has no rewards: %s", error)
                nothing = [math.nan] * len(replies)
                scores = ReplyScores(nothing, {part.name: nothing for part in self._parts})
            else:
                self._warn_of_failures(scores.total)
        return {TOTAL: scores.total, **{f"{TOTAL}/{name}": values for name, values in scores.parts.items()}}

    def _warn_of_failures(self, totals: list[float]) -> None:
        n_failed = sum(map(math.isnan, totals))
        if n_failed:
            _logger.warning("the reward failed for %d of the %d replies of this evaluation", n_failed, len(totals))


def mean_reward(columns: dict[str, list[float]]) -> dict[str, float]:
    """Mean total reward of the replies that have one, under its metric key."""
    known = [value for value in columns.get(TOTAL, []) if not math.isnan(value)]
    return {TOTAL: sum(known) / len(known)} if known else {}
