"""The reward of evaluated replies, beside their metrics: in total, and what each part gave."""

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
    """Scores the replies of an evaluation by the run's reward.

    Where a reward fails, what it was to give is NaN: for the reply where the run masks failures, and for all of the
    evaluation where they end the run, so that no dead judge is asked a thousand times. Whether that ends the run at
    once, or after what it has computed is saved, is the caller's choice.

    Args:
        parts: Of the run's reward.
        on_error: ``raise`` or ``mask``, as in the run.
        async_calls: How coroutines are awaited.
        iteration: Decides weights that change: the same for all evaluations of a run, so that they can be compared.
        timeout_s: How long a reward may take for a batch of replies, or for one if it is called for one.
        tokenizer: For token-level rewards that read ids.

    Attributes:
        error: Why the last evaluation has no rewards, where failures end the run.
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
        """Score replies; the random state is afterwards as before.

        Args:
            samples: What was answered.
            replies: One to each sample.
            must_work: Whether a failure that would end the run is raised.

        Returns:
            ``reward``, clipped and weighted as the run does, and ``reward/<part>`` as the part gave it. NaN where a
            reward failed.

        Raises:
            RewardError: If a reward failed, and must not.
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
                _logger.warning("the replies of this evaluation have no reward: %s", error)
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
    """The mean total of the replies that have one, by the key under which it stands among the metrics."""
    known = [value for value in columns.get(TOTAL, []) if not math.isnan(value)]
    return {TOTAL: sum(known) / len(known)} if known else {}
