"""Credit: from rewards and values of whole episodes to advantages of the policy and targets of the critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from rl4dialog.functional.advantages import generalized_advantages, turn_advantages, turn_bounds

Credit = Literal["token", "turn"]


class Episodes(NamedTuple):
    """Numbers of the agent tokens of E episodes, which fill each row from the left, where ``mask`` is True.

    All but ``last_values`` have the shape (E, L).
    """

    rewards: np.ndarray  # KL penalty included
    penalties: np.ndarray  # the KL penalty, which rewards subtract
    scales: np.ndarray  # sum of the absolute values of a reward's summands
    values: np.ndarray  # of the state before each token
    turns: np.ndarray  # number of each token's turn
    mask: np.ndarray
    last_values: np.ndarray  # of the state after the last token; 0 if the episode ended there. Shape (E,)


class Credited(NamedTuple):
    """Advantages, targets of the values, sums of the absolute values in advantages, and returns. Shapes (E, L)."""

    advantages: np.ndarray
    targets: np.ndarray
    scales: np.ndarray
    returns: np.ndarray


@dataclass(frozen=True)
class CreditRule:
    """Generalized advantage estimation over tokens or turns (Schulman et al. 2016, arXiv 1506.02438).

    Attributes:
        credit: ``token`` for one step per agent token: the step after the last token of a turn has ``turn_gamma`` and
            ``turn_gae_lambda``. ``turn`` for one step per turn, with these two; a token's advantage is that of its turn
            minus the token's own KL penalty (a penalty for the whole turn would punish its first token for its last).
        gamma: Discount factor per token.
        gae_lambda: Lambda per token.
        turn_gamma: Discount factor of the step after a turn, and to the value after a truncated episode.
        turn_gae_lambda: Lambda of the same steps.
        value_gae_lambda: Lambda of the values' targets, V_t + sum_l (gamma lambda)^l delta_{t+l}, if it is another than
            that of the advantages; 1 gives returns (VC-PPO, arXiv 2503.01491).
        gae_horizon: alpha of lambda = 1 - 1 / (alpha L) for episodes of L steps, at least 0, in the place of both
            lambdas (VAPO, arXiv 2504.05118). L depends on later actions, which biases the advantages.
    """

    credit: Credit = "token"
    gamma: float = 1.0
    gae_lambda: float = 1.0
    turn_gamma: float = 1.0
    turn_gae_lambda: float = 1.0
    value_gae_lambda: float | None = None
    gae_horizon: float | None = None

    def __call__(self, of: Episodes) -> Credited:
        """Credit of all tokens."""
        is_first, is_last = turn_bounds(of.turns, of.mask)
        lambdas: tuple[float | np.ndarray, float | np.ndarray] = self.gae_lambda, self.turn_gae_lambda
        if self.gae_horizon is not None:
            n_steps = (is_first if self.credit == "turn" else of.mask).sum(axis=1, keepdims=True)
            lambdas = (np.maximum(0, 1 - 1 / (self.gae_horizon * n_steps)),) * 2
        advantages, targets = self._estimated(of, is_last, lambdas)
        if self.value_gae_lambda is not None:
            targets = self._estimated(of, is_last, (self.value_gae_lambda,) * 2)[1]
        returns = self._estimated(of, is_last, (1.0, 1.0))[1]
        # Each value is added once and subtracted once.
        twice, none = 2 * np.abs(of.values), np.zeros_like(of.values)
        scales = of.scales + (is_first * twice - np.abs(of.penalties) if self.credit == "turn" else twice)
        absolute = of._replace(rewards=scales, penalties=none, values=none, last_values=np.abs(of.last_values))
        added_up = self._estimated(absolute, is_last, lambdas)[0]
        if self.credit == "turn":
            advantages, added_up = advantages - of.penalties, added_up + np.abs(of.penalties)
        return Credited(advantages, targets, added_up, returns)

    def _estimated(
        self, of: Episodes, is_last: np.ndarray, lambdas: tuple[float | np.ndarray, float | np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Advantages, without the KL penalty of turns, and advantages + values."""
        if self.credit == "turn":
            task_rewards = of.rewards + of.penalties
            return turn_advantages(
                task_rewards, of.values, of.mask, of.turns, of.last_values, self.turn_gamma, lambdas[1]
            )
        gammas = np.where(is_last, self.turn_gamma, self.gamma)
        decays = np.where(is_last, lambdas[1], lambdas[0])
        return generalized_advantages(of.rewards, of.values, of.mask, of.last_values, gammas, decays)
