"""From rewards and values of whole episodes to advantages of the policy and targets of the critic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from rl4dialog.functional.replies import Replies


@dataclass(frozen=True)
class Turns:
    """The U turns of the N agent tokens of replies; tokens of a turn are consecutive."""

    index: Tensor  # turn of each token, from 0; shape (N,)
    first: Tensor  # first token of each turn; shape (U,)
    last: Tensor  # last token of each turn; shape (U,)

    @classmethod
    def of(cls, replies: Replies) -> Turns:
        """Find the turns: one per row, or several where ``turn`` differs within a row."""
        index = replies.token_replies()
        differs = index[1:] != index[:-1]
        first = torch.nn.functional.pad(differs, (1, 0), value=True).nonzero().squeeze(1)
        last = torch.nn.functional.pad(differs, (0, 1), value=True).nonzero().squeeze(1)
        return cls(index, first, last)

    def __len__(self) -> int:
        return len(self.first)

    @property
    def lengths(self) -> Tensor:
        """Number of tokens of each turn. Shape (U,)."""
        return self.last - self.first + 1

    def sums(self, numbers: Tensor) -> Tensor:
        """Sum of each turn's numbers. Shape (N, ...) -> (U, ...)."""
        return torch.segment_reduce(numbers.float(), "sum", lengths=self.lengths)

    def means(self, numbers: Tensor) -> Tensor:
        """Mean of each turn's numbers. Shape (N, ...) -> (U, ...)."""
        return torch.segment_reduce(numbers.float(), "mean", lengths=self.lengths)

    def spread(self, numbers: Tensor) -> Tensor:
        """Number of each token's turn. Shape (U, ...) -> (N, ...)."""
        return numbers[self.index]


SCALE_EPS = 1e-4  # added to the standard deviation by which advantages of groups are divided


def generalized_advantages(
    rewards: np.ndarray,
    values: np.ndarray,
    mask: np.ndarray,
    last_values: np.ndarray,
    gamma: float | np.ndarray,
    gae_lambda: float | np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and returns, GAE(lambda) of Schulman et al. 2016 (arXiv 1506.02438).

    delta_t = r_t + gamma_t V(s_{t+1}) - V(s_t);  A_t = delta_t + gamma_t lambda_t A_{t+1}. The agent tokens of an
    episode are consecutive, without the partner's: the recursion runs from the last token of a turn to the first of the
    next.

    Args:
        rewards: Reward of each agent token, KL penalty included. Shape (E, L).
        values: Value of the state before each token. Shape (E, L).
        mask: True at an episode's tokens, which fill each row from the left. Shape (E, L).
        last_values: Value of the state after the last token; 0 if the episode ended there. Shape (E,).
        gamma: Discount factor of the step after each token. Scalar or shape (E, L).
        gae_lambda: 1 gives Monte Carlo returns, 0 the one-step temporal difference. Scalar or shape (E, L).

    Returns:
        Advantages and returns (advantages + values), 0 where mask is False. Shapes (E, L), (E, L).
    """
    rewards = np.where(mask, rewards, 0.0).astype(np.float32)
    values = np.where(mask, values, 0.0).astype(np.float32)
    discounts, decays = (np.broadcast_to(np.float32(factor), mask.shape) for factor in (gamma, gamma * gae_lambda))
    advantages = np.zeros_like(rewards)
    next_advantage = np.zeros(len(rewards), dtype=np.float32)
    next_value = last_values.astype(np.float32)
    for t in reversed(range(rewards.shape[1])):
        real = mask[:, t]
        delta = rewards[:, t] + discounts[:, t] * next_value - values[:, t]
        advantage = delta + decays[:, t] * next_advantage
        advantages[:, t] = np.where(real, advantage, 0.0)
        # Skip columns after the end of an episode.
        next_advantage = np.where(real, advantage, next_advantage)
        next_value = np.where(real, values[:, t], next_value)
    return advantages, advantages + values


def turn_bounds(turns: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether each agent token is the first, and whether it is the last, of its turn. Shapes (E, L), (E, L).

    ``turns`` are the tokens' turn numbers, and ``mask`` is True at an episode's tokens, which fill each row from the
    left; shapes (E, L).
    """
    changes = (turns[:, 1:] != turns[:, :-1]) | ~mask[:, 1:]
    is_first, is_last = mask.copy(), mask.copy()
    is_first[:, 1:] &= changes
    is_last[:, :-1] &= changes
    return is_first, is_last


def turn_advantages(
    task_rewards: np.ndarray,
    values: np.ndarray,
    mask: np.ndarray,
    turns: np.ndarray,
    last_values: np.ndarray,
    gamma: float,
    gae_lambda: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages A_u and returns A_u + V_u at each token of turn u, 0 where mask is False. Shapes (E, L), (E, L).

    R_u = sum of the turn's rewards and V_u = value before its first token;  delta_u = R_u + gamma V_{u+1} - V_u; A_u =
    delta_u + gamma * lambda * A_{u+1}: :func:`generalized_advantages` with one step per turn. ``task_rewards`` are
    without the KL penalty, and ``turns`` are the tokens' turn numbers.
    """
    starts, _ = turn_bounds(turns, mask)
    n_turns = starts.sum(axis=1)
    of_turns = np.arange(n_turns.max(initial=0)) < n_turns[:, None]
    episodes, tokens = mask.nonzero()
    turn_of_token = starts.cumsum(axis=1)[episodes, tokens] - 1
    sums, first_values = np.zeros((2, *of_turns.shape))
    np.add.at(sums, (episodes, turn_of_token), task_rewards[episodes, tokens])
    first_values[of_turns] = values[starts]
    advantages, returns = np.zeros((2, *mask.shape), dtype=np.float32)
    found = generalized_advantages(sums, first_values, of_turns, last_values, gamma, gae_lambda)
    for of_tokens, of_each_turn in zip((advantages, returns), found, strict=True):
        of_tokens[episodes, tokens] = of_each_turn[episodes, turn_of_token]
    return advantages, returns


def _centered(returns: np.ndarray, turns: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Each return minus the mean of those at the same turn, and their number. Shapes (n,), (n,)."""
    places = np.unique(np.zeros(len(returns)) if turns is None else turns, return_inverse=True)[1]
    counts = np.bincount(places)
    means = np.array([returns[places == place].mean() for place in range(len(counts))])
    return returns - means[places], counts[places]


def leave_one_out_advantages(returns: np.ndarray, turns: np.ndarray | None = None) -> np.ndarray:
    """Each return minus the mean of the others (RLOO; Kool et al. 2019, Ahmadian et al. 2024, arXiv 2402.14740).

    Of the n replies to one prompt, or n turns of conversations about it: with ``turns``, their numbers, the others are
    those at the same turn. 0 without others. Shapes (n,), (n,) -> (n,).
    """
    centered, counts = _centered(returns, turns)
    return centered * counts / np.maximum(counts - 1, 1)


def group_deviation(returns: np.ndarray, turns: np.ndarray | None = None) -> float:
    """Unbiased standard deviation of the returns (n,) of a group, pooled over turns (n,); 0 without others."""
    centered, counts = _centered(returns, turns)
    n_free = len(returns) - round(float((1 / counts).sum()))  # n minus the number of means
    return float(np.sqrt((centered**2).sum() / max(n_free, 1)))


def group_advantages(
    returns: np.ndarray, turns: np.ndarray | None = None, scale: bool = True, eps: float = SCALE_EPS
) -> np.ndarray:
    """Each return minus the group's mean, divided by its standard deviation (GRPO; Shao et al. 2024, arXiv 2402.03300).

    Of the n replies to one prompt, or n turns as in :func:`leave_one_out_advantages`, where the deviation is that of
    all turns from their means. Without ``scale``, there is no division (Liu et al. 2025, arXiv 2503.20783). ``eps`` is
    added to the unbiased deviation. Shapes (n,), (n,) -> (n,).
    """
    centered = _centered(returns, turns)[0]
    return centered / (group_deviation(returns, turns) + eps) if scale else centered


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


class AdvantageEstimator(Protocol):
    """Estimates advantages. Ids of ``alg.args.credit`` are those of estimators.

    An estimator is built with those fields of :class:`GAE` that its constructor names, and with arguments of its own.
    """

    def __call__(self, of: Episodes) -> Credited:
        """Credit of all tokens, 0 where ``of.mask`` is False."""
        ...


@dataclass
class GAE:
    """Generalized advantage estimation, one step per agent token (Schulman et al. 2016, arXiv 1506.02438).

    The step after the last token of a turn has ``turn_gamma`` and ``turn_gae_lambda``.
    """

    gamma: float = 1.0  # discount factor per token
    gae_lambda: float = 1.0  # lambda per token
    turn_gamma: float = 1.0  # discount factor of the step after a turn, and to the value after a truncated episode
    turn_gae_lambda: float = 1.0  # lambda of the same steps

    def __call__(self, of: Episodes) -> Credited:
        lambdas = self.gae_lambda, self.turn_gae_lambda
        advantages, targets = self._estimated(of, *lambdas)
        returns = targets if lambdas == (1, 1) else self._estimated(of, 1.0, 1.0)[1]
        none = np.zeros_like(of.values)
        absolute = of._replace(
            rewards=self._summed(of), penalties=none, values=none, last_values=np.abs(of.last_values)
        )
        return Credited(advantages, targets, self._estimated(absolute, *lambdas)[0], returns)

    def _summed(self, of: Episodes) -> np.ndarray:
        """Sum of the absolute values that each step adds: each value is added once and subtracted once."""
        return of.scales + 2 * np.abs(of.values)

    def _estimated(self, of: Episodes, gae_lambda: float, turn_gae_lambda: float) -> tuple[np.ndarray, np.ndarray]:
        """Advantages, and advantages + values."""
        _, is_last = turn_bounds(of.turns, of.mask)
        gammas = np.where(is_last, self.turn_gamma, self.gamma)
        lambdas = np.where(is_last, turn_gae_lambda, gae_lambda)
        return generalized_advantages(of.rewards, of.values, of.mask, of.last_values, gammas, lambdas)


@dataclass
class TurnGAE(GAE):
    """Generalized advantage estimation, one step per turn, with ``turn_gamma`` and ``turn_gae_lambda``.

    A token's advantage is that of its turn minus the token's own KL penalty: a penalty for the whole turn would punish
    its first token for its last.
    """

    def __call__(self, of: Episodes) -> Credited:
        found = super().__call__(of)
        return found._replace(advantages=found.advantages - of.penalties, scales=found.scales + np.abs(of.penalties))

    def _summed(self, of: Episodes) -> np.ndarray:
        is_first, _ = turn_bounds(of.turns, of.mask)
        return of.scales + (is_first * 2 * np.abs(of.values) - np.abs(of.penalties))

    def _estimated(self, of: Episodes, gae_lambda: float, turn_gae_lambda: float) -> tuple[np.ndarray, np.ndarray]:
        task_rewards = of.rewards + of.penalties
        factors = self.turn_gamma, turn_gae_lambda
        return turn_advantages(task_rewards, of.values, of.mask, of.turns, of.last_values, *factors)


@dataclass
class RewardMeans:
    """Mean rewards by key, in which the past counts half after each ``half_life`` by which the policy has moved.

    v <- v + (r - v) / n with n <- 2^(-KL / half_life) n + 1. For rewards 0 and 1 this is SPO's alpha / (alpha + beta)
    (arXiv 2509.13232), without its limits of the factor; the KL adds up those of all updates since the last reward.
    """

    half_life: float  # KL in nats per token
    moved: float = 0.0  # sum of the KLs of all updates, in nats per token
    # Mean, weight n, and `moved` at the last reward, by key.
    means: dict[str, tuple[float, float, float]] = field(default_factory=dict)

    def add(self, key: str, reward: float) -> None:
        """Count a reward."""
        mean, weight, moved = self.means.get(key, (0.0, 0.0, self.moved))
        weight = float(weight * 2 ** ((moved - self.moved) / self.half_life) + 1)
        self.means[key] = mean + (reward - mean) / weight, weight, self.moved
