"""Losses and targets of learning from logs."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import huber_loss, mse_loss


def next_states(values: Tensor, episodes: Tensor) -> Tensor:
    """Values of the states after the tokens; 0 after the last token of an episode. Shapes (N,), (N,) -> (N,).

    ``episodes`` numbers each token's episode, whose tokens are consecutive.
    """
    same = episodes[1:] == episodes[:-1]
    return torch.cat([values[1:] * same, values.new_zeros(min(1, len(values)))])


def step_discounts(units: Tensor, gamma: float) -> Tensor:
    """Discount of the step after each token: gamma where a unit, such as a turn, ends, else 1. Shape (N,) -> (N,)."""
    ends = torch.nn.functional.pad(units[1:] != units[:-1], (0, 1), value=True)
    return torch.where(ends, gamma, 1.0)


def td_targets(rewards: Tensor, discounts: Tensor, next_values: Tensor) -> Tensor:
    """Targets r_i + d_i V(s_{i+1}), with values 0 where a conversation has ended. Shapes (N,), (N,), (N,) -> (N,)."""
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

    ``errors`` are targets minus values. With ``tau`` = 0.5 it is half of the squared error; near 1, the value
    approaches the largest target.
    """
    return (tau - (errors < 0).float()).abs() * errors.square()


def q_loss(values: Tensor, targets: Tensor, huber_delta: float | None = None) -> Tensor:
    """Squared error, or Huber's loss with a limit delta. Shapes (N,), (N,) -> (N,)."""
    if huber_delta is None:
        return mse_loss(values, targets, reduction="none")
    return huber_loss(values, targets, reduction="none", delta=huber_delta)


def conservative_penalty(all_values: Tensor, values: Tensor, temperature: float = 1.0) -> Tensor:
    """logsumexp_a Q(s, a) / T - Q(s, a_i) / T (Kumar et al. 2020, arXiv 2006.04779, CQL(H)). Shapes (N, V), (N,).

    It lowers the values of tokens that are not in the log: the cross-entropy of the logged token under softmax(Q / T).
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
    candidates a_k ~ mu, and n random actions b_k ~ u. The mean over both is taken inside of the logarithm. Shapes (U,
    n), and (U,) for the values of logged actions and the result.
    """
    weighted = torch.cat([candidate_values - candidate_log_probs, random_values - random_log_probs], dim=1)
    return weighted.logsumexp(dim=1) - math.log(weighted.shape[1]) - values


def advantage_weights(advantages: Tensor, temperature: float, max_log_weight: float) -> Tensor:
    """Weights exp(min(A / lambda, c)) of the logged tokens (AWAC; Nair et al. 2020, arXiv 2006.09359, eq. 13).

    The larger the ``temperature`` lambda, the closer to imitation; c is ``max_log_weight``. Shape (N,) -> (N,).
    """
    return (advantages / temperature).clamp(max=max_log_weight).exp()
