"""Group-relative advantages: each reply is compared with the other replies to the same prompt, without a critic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rl4dialog.functional.advantages import SCALE_EPS
from rl4dialog.functional.distributed import mean_and_std
from rl4dialog.functional.rounding import is_constant
from rl4dialog.rollouts.buffer import SequenceRolloutBuffer


class GroupRolloutBuffer(SequenceRolloutBuffer):
    """Assigns to every token of a conversation the advantage of its total reward within its group.

    Args:
        args: Arguments of :class:`SequenceRolloutBuffer`.
        advantages_of: Computes the advantages of the conversations about one prompt from their rewards. Shape (n,) ->
            (n,).
        scale_by_batch: Divide the advantages by the standard deviation of the rewards of all conversations.
        kwargs: Keyword arguments of :class:`SequenceRolloutBuffer`.
    """

    def __init__(
        self,
        *args: Any,
        advantages_of: Callable[[np.ndarray], np.ndarray],
        scale_by_batch: bool = False,
        **kwargs: Any,
    ) -> None:
        self._advantages_of, self._scale_by_batch = advantages_of, scale_by_batch
        super().__init__(*args, **kwargs)

    def compute_returns_and_advantage(self, last_values: Any = None, dones: Any = None) -> None:
        """Compute the advantage of each episode within its group.

        Advantages are 0 in a group with one episode, or with rewards that are constant up to rounding.
        """
        del last_values, dones
        replies = self.replies
        episodes, of_tokens = replies.row_episodes(), replies.token_episodes()
        totals, scales = (
            np.bincount(episodes, weights=[row.sum() for row in replies.per_row(name)])
            for name in ("rewards", "reward_scales")
        )
        advantages: np.ndarray = np.zeros_like(totals)
        for rows in self._units():
            members = np.unique(episodes[rows])
            constant = is_constant(totals[members], scales[members])
            self.found_constant.append(constant)
            if not constant:
                advantages[members] = self._advantages_of(totals[members])
        if self._scale_by_batch:
            advantages = advantages / (mean_and_std(totals, unbiased=True)[1] + SCALE_EPS)
        of_each = advantages[of_tokens]
        self._set(advantages=of_each, advantage_scales=np.abs(of_each), returns=totals[of_tokens])
        self.full = True

    def _units(self) -> list[list[int]]:
        """Rows grouped by prompt, to keep the replies of a group together."""
        assert self.replies.group is not None
        units: dict[int, list[int]] = {}
        for row, group in enumerate(self.replies.group.tolist()):
            units.setdefault(group, []).append(row)
        return list(units.values())
