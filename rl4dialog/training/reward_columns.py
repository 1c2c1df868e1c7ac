"""Rewards of evaluation replies: the total and each part."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

from rl4dialog.core.errors import RewardError
from rl4dialog.core.reward_parts import FinishedReplies
from rl4dialog.core.types import Sample
from rl4dialog.rollouts.conversing import Talk
from rl4dialog.scores.scoring import ReplyScores, Scorer
from rl4dialog.training.random_state import random_states_kept

TOTAL = "reward"
_logger = logging.getLogger(__name__)


class RewardColumns:
    """Scores evaluation replies with the run's reward.

    Values of a failed reward are NaN. If the run masks failures, this affects only the reply. If failures stop the run,
    it affects the whole evaluation, so that an unavailable judge is not called repeatedly. The caller decides whether
    the run stops at once or after saving its results.

    Args:
        scorer: The run's reward.
        iteration: Iteration for scheduled weights. It is the same for all evaluations of a run, to keep them
            comparable.

    Attributes:
        error: Error message, if the last evaluation has no rewards and failures stop the run.
    """

    error: RewardError | None = None

    def __init__(self, scorer: Scorer, iteration: int = 1) -> None:
        self._scorer, self._iteration = scorer, iteration

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
                scores = self._scorer.score(
                    FinishedReplies(
                        [sample.prompt_or_input_text for sample in samples],
                        replies,
                        [sample.references for sample in samples],
                        [sample.meta_data or {} for sample in samples],
                        [sample.id for sample in samples],
                    ),
                    self._iteration,
                )
            except RewardError as error:
                if must_work:
                    raise
                self.error = error
                _logger.warning("this evaluation has no rewards: %s", error)
                nothing = [math.nan] * len(replies)
                scores = ReplyScores(nothing, {part.name: nothing for part in self._scorer.parts})
            else:
                self._warn_of_failures(scores.total)
        return {TOTAL: scores.total, **{f"{TOTAL}/{name}": values for name, values in scores.parts.items()}}

    def of_conversations(self, talks: Sequence[Talk], must_work: bool = False) -> dict[str, list[float]]:
        """Return the rewards that conversations earned; see :meth:`score`.

        Args:
            talks: Conversations with their rewards.
            must_work: Whether to raise a failure that would stop the run.
        """
        self.error = None
        failures = [talk.error for talk in talks if talk.error is not None and not talk.partner_failed]
        totals = [math.nan if talk.error is not None else talk.total for talk in talks]
        names = dict.fromkeys(name for talk in talks for name in talk.rewards)
        parts = {name: [talk.rewards.get(name, math.nan) for talk in talks] for name in names}
        if failures and self._scorer.on_error != "mask":
            error = RewardError(failures[0])
            if must_work:
                raise error
            self.error = error
            _logger.warning("this evaluation has no rewards: %s", error)
            totals = [math.nan] * len(talks)
            parts = {name: totals for name in names}
        else:
            self._warn_of_failures(
                [total for talk, total in zip(talks, totals, strict=True) if not talk.partner_failed]
            )
        return {TOTAL: totals, **{f"{TOTAL}/{name}": values for name, values in parts.items()}}

    def _warn_of_failures(self, totals: list[float]) -> None:
        n_failed = sum(map(math.isnan, totals))
        if n_failed:
            _logger.warning("the reward failed for %d of the %d samples of this evaluation", n_failed, len(totals))


def mean_reward(columns: Mapping[str, list[float]]) -> dict[str, float]:
    """Mean total reward of the replies that have one, under its metric key."""
    known = [value for value in columns.get(TOTAL, []) if not math.isnan(value)]
    return {TOTAL: sum(known) / len(known)} if known else {}
