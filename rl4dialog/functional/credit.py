"""Credit: from rewards and values of whole episodes to advantages of the policy and targets of the critic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from rl4dialog.functional.advantages import (
    generalized_advantages,
    leave_one_out_advantages,
    turn_advantages,
    turn_bounds,
)
from rl4dialog.functional.distributed import all_reduce_numbers, mean_and_std

Credit = Literal["token", "turn"]
Baseline = Literal["value", "tether", "evpo"]


class Episodes(NamedTuple):
    """Numbers of the agent tokens of E episodes, which fill each row from the left, where ``mask`` is True.

    All but ``last_values`` and ``groups`` have the shape (E, L).
    """

    rewards: np.ndarray  # KL penalty included
    penalties: np.ndarray  # the KL penalty, which rewards subtract
    scales: np.ndarray  # sum of the absolute values of a reward's summands
    values: np.ndarray  # of the state before each token
    turns: np.ndarray  # number of each token's turn
    mask: np.ndarray
    last_values: np.ndarray  # of the state after the last token; 0 if the episode ended there. Shape (E,)
    groups: np.ndarray | None = None  # number shared by episodes about the same prompt. Shape (E,)


class Credited(NamedTuple):
    """Advantages, targets of the values, sums of the absolute values in advantages, and returns. Shapes (E, L)."""

    advantages: np.ndarray
    targets: np.ndarray
    scales: np.ndarray
    returns: np.ndarray


@dataclass
class CreditRule:
    """Generalized advantage estimation over tokens or turns (Schulman et al. 2016, arXiv 1506.02438).

    G is the return from a step on, V its value. All but the first ``baseline`` have advantages G - b, with lambda 1.

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
        baseline: ``value`` for V; ``tether`` for V mixed with the returns of the other episodes about the same prompt;
            ``evpo`` for V if it explains any of the variance of G in the batch, else the batch's mean of G (EVPO, arXiv
            2604.19485).
        rho: Share of V in ``tether``, which each batch changes for the next one.
        logged: What the baseline of the last batch was, by name.
    """

    credit: Credit = "token"
    gamma: float = 1.0
    gae_lambda: float = 1.0
    turn_gamma: float = 1.0
    turn_gae_lambda: float = 1.0
    value_gae_lambda: float | None = None
    gae_horizon: float | None = None
    baseline: Baseline = "value"
    rho: float = 0.0
    logged: dict[str, float] = field(default_factory=dict)

    def __call__(self, of: Episodes) -> Credited:
        """Credit of all tokens."""
        is_first, is_last = turn_bounds(of.turns, of.mask)
        lambdas: tuple[float | np.ndarray, float | np.ndarray] = self.gae_lambda, self.turn_gae_lambda
        if self.gae_horizon is not None:
            n_steps = (is_first if self.credit == "turn" else of.mask).sum(axis=1, keepdims=True)
            lambdas = (np.maximum(0, 1 - 1 / (self.gae_horizon * n_steps)),) * 2
        if self.baseline != "value":
            lambdas = 1.0, 1.0
        of_targets = lambdas if self.value_gae_lambda is None else (self.value_gae_lambda,) * 2
        advantages, targets = self._estimated(of, is_last, lambdas)
        if of_targets is not lambdas:
            targets = self._estimated(of, is_last, of_targets)[1]
        are_returns = all(np.all(each == 1) for each in of_targets)
        returns = targets if are_returns else self._estimated(of, is_last, (1.0, 1.0))[1]
        # Each value is added once and subtracted once.
        twice, none = 2 * np.abs(of.values), np.zeros_like(of.values)
        scales = of.scales + (is_first * twice - np.abs(of.penalties) if self.credit == "turn" else twice)
        absolute = of._replace(rewards=scales, penalties=none, values=none, last_values=np.abs(of.last_values))
        added_up = self._estimated(absolute, is_last, lambdas)[0]
        if self.baseline == "tether":
            advantages, added_up = self._tethered(of, advantages, returns, added_up)
        elif self.baseline == "evpo":
            advantages, added_up = self._of_better(of.mask, advantages, returns, added_up)
        if self.credit == "turn":
            advantages, added_up = advantages - of.penalties, added_up + np.abs(of.penalties)
        return Credited(advantages, targets, added_up, returns)

    def _tethered(
        self, of: Episodes, advantages: np.ndarray, returns: np.ndarray, scales: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Advantages R - b of TETHER (arXiv 2608.16739), b = (1 - rho) b_LOO + rho (V + rewards so far).

        Since G = R - rewards so far, they are (1 - rho) (R - b_LOO) + rho (G - V); in a group of one, G - V. The
        batch's own rho, the share with the least squares, moves that of the next batch by 5 %.
        """
        assert of.groups is not None
        of_group, scales_of_group = advantages.copy(), scales.copy()
        for group in np.unique(of.groups):
            members = np.flatnonzero(of.groups == group)
            if len(members) > 1:
                of_group[members] = leave_one_out_advantages(returns[members, 0])[:, None]
                scales_of_group[members] = 2 * scales[members, 0].max()
        rho, tokens = self.rho, of.mask
        gaps = (of_group - advantages)[tokens].astype(np.float64)  # V + rewards so far - b_LOO
        product, square = all_reduce_numbers(float((of_group[tokens] * gaps).sum()), float((gaps**2).sum()))
        self.logged = {"rollout/tether_rho": rho}
        if square > 0:
            self.rho = 0.95 * rho + 0.05 * min(max(product / square, 0.0), 1.0)
        return (1 - rho) * of_group + rho * advantages, (1 - rho) * scales_of_group + rho * scales

    def _of_better(
        self, mask: np.ndarray, advantages: np.ndarray, returns: np.ndarray, scales: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Advantages G - V if the explained variance 1 - var(G - V) / var(G) is positive, else G - mean(G)."""
        mean, deviation = mean_and_std(returns[mask])
        uses_values = mean_and_std(advantages[mask])[1] < deviation
        self.logged = {"rollout/evpo_uses_values": float(uses_values)}
        return (advantages, scales) if uses_values else (returns - np.float32(mean), scales + abs(mean))

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


@dataclass
class RewardMeans:
    """Mean rewards by key, in which the past counts half after each ``half_life`` by which the policy has moved.

    v <- v + (r - v) / n with n <- 2^(-KL / half_life) n + 1. For rewards 0 and 1 this is SPO's alpha / (alpha + beta)
    (arXiv 2509.13232), without its limits of the factor; the KL adds up those of all updates since the last reward.

    Attributes:
        half_life: KL in nats per token.
        moved: Sum of the KLs of all updates, in nats per token.
        means: Mean, weight n, and ``moved`` at the last reward, by key.
    """

    half_life: float
    moved: float = 0.0
    means: dict[str, tuple[float, float, float]] = field(default_factory=dict)

    def add(self, key: str, reward: float) -> None:
        """Count a reward."""
        mean, weight, moved = self.means.get(key, (0.0, 0.0, self.moved))
        weight = float(weight * 2 ** ((moved - self.moved) / self.half_life) + 1)
        self.means[key] = mean + (reward - mean) / weight, weight, self.moved
