"""Targets and losses of value functions that are learned from logged conversations.

N is the number of agent tokens, row by row. The state of a token is what the agent has read before it. The state after
a token is the state of the next agent token of the same conversation: after the last token of a turn, it includes the
partner's answer.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import huber_loss, mse_loss


def next_states(values: Tensor, episodes: Tensor) -> Tensor:
    """Values of the states after the tokens; 0 after the last token of an episode.

    Args:
        values: Values of the states before the tokens. Shape (N,).
        episodes: Number of the episode of each token; tokens of an episode are consecutive. Shape (N,).

    Returns:
        Shape (N,).
    """
    same = episodes[1:] == episodes[:-1]
    return torch.cat([values[1:] * same, values.new_zeros(min(1, len(values)))])


def step_discounts(units: Tensor, gamma: float) -> Tensor:
    """Discount of the step after each token: gamma where a unit ends, and 1 within it. Shape (N,) -> (N,).

    Args:
        units: Number of the unit of each token, such as its turn; tokens of a unit are consecutive.
        gamma: Discount per unit.
    """
    ends = torch.nn.functional.pad(units[1:] != units[:-1], (0, 1), value=True)
    return torch.where(ends, gamma, 1.0)


def td_targets(rewards: Tensor, discounts: Tensor, next_values: Tensor) -> Tensor:
    """Targets r_i + d_i V(s_{i+1}). Shapes (N,), (N,), (N,) -> (N,).

    Args:
        rewards: Reward of each token.
        discounts: Discount of the step after each token.
        next_values: Values of the states after the tokens; 0 where a conversation has ended.
    """
    return rewards + discounts * next_values


def returns_to_go(rewards: np.ndarray, discounts: np.ndarray, episodes: np.ndarray) -> np.ndarray:
    """Returns G_i = r_i + d_i G_{i+1} of each token's episode, by a scan from the end. Shapes (N,) -> (N,).

    Powers of a discount are never divided, so long conversations neither overflow nor become NaN.
    """
    returns, following, episode = np.zeros(len(rewards)), 0.0, None
    for i in range(len(rewards) - 1, -1, -1):
        if episodes[i] != episode:
            following, episode = 0.0, episodes[i]
        following = returns[i] = rewards[i] + discounts[i] * following
    return returns.astype(np.float32)


def expectile_loss(errors: Tensor, tau: float) -> Tensor:
    """Asymmetric squares |tau - 1(u < 0)| u^2 (Kostrikov et al. 2021, arXiv 2110.06169, eq. 5). Shape (N,) -> (N,).

    Args:
        errors: Targets minus values.
        tau: Expectile between 0 and 1: 0.5 is half of the squared error, and near 1 the value approaches the largest
            target.
    """
    return (tau - (errors < 0).float()).abs() * errors.square()


def q_loss(values: Tensor, targets: Tensor, huber_delta: float | None = None) -> Tensor:
    """Squared error, or Huber's loss with a limit delta. Shapes (N,), (N,) -> (N,)."""
    if huber_delta is None:
        return mse_loss(values, targets, reduction="none")
    return huber_loss(values, targets, reduction="none", delta=huber_delta)


def conservative_penalty(all_values: Tensor, values: Tensor, temperature: float = 1.0) -> Tensor:
    """logsumexp_a Q(s, a) / T - Q(s, a_i) / T (Kumar et al. 2020, arXiv 2006.04779, CQL(H)).

    It lowers the values of tokens that are not in the log: the cross-entropy of the logged token under softmax(Q / T).

    Args:
        all_values: Values of all tokens of the vocabulary. Shape (N, V).
        values: Values of the logged tokens. Shape (N,).
        temperature: T.

    Returns:
        Shape (N,).
    """
    return (all_values / temperature).logsumexp(dim=-1) - values / temperature


def sampled_conservative_penalty(
    candidate_values: Tensor,
    candidate_log_probs: Tensor,
    random_values: Tensor,
    random_log_probs: Tensor,
    values: Tensor,
) -> Tensor:
    """log[ (sum_k e^Q(a_k) / mu(a_k) + sum_k e^Q(b_k) / u(b_k)) / 2n ] - Q(s, a) (CHAI; Verma et al. 2022).

    The sum of e^Q over actions, of which there are too many, is estimated by importance sampling with two proposals: n
    candidates a_k ~ mu, and n random actions b_k ~ u. The mean over both is taken inside of the logarithm.

    Args:
        candidate_values: Values of the candidates. Shape (U, n).
        candidate_log_probs: log mu of the candidates, each as a whole. Shape (U, n).
        random_values: Values of the random actions. Shape (U, n).
        random_log_probs: log u of the random actions. Shape (U, n).
        values: Values of the logged actions. Shape (U,).

    Returns:
        Shape (U,).
    """
    weighted = torch.cat([candidate_values - candidate_log_probs, random_values - random_log_probs], dim=1)
    return weighted.logsumexp(dim=1) - math.log(weighted.shape[1]) - values


def advantage_weights(advantages: Tensor, temperature: float, max_log_weight: float) -> Tensor:
    """Weights exp(min(A / lambda, c)) of the logged tokens (AWAC; Nair et al. 2020, arXiv 2006.09359, eq. 13).

    Args:
        advantages: Shape (N,).
        temperature: lambda; the larger, the closer to imitation.
        max_log_weight: c, which limits a weight to exp(c).

    Returns:
        Shape (N,).
    """
    return (advantages / temperature).clamp(max=max_log_weight).exp()
