"""Generalized advantage estimation over the agent tokens of whole episodes."""

from __future__ import annotations

import numpy as np


def generalized_advantages(
    rewards: np.ndarray,
    values: np.ndarray,
    mask: np.ndarray,
    last_values: np.ndarray,
    gamma: float,
    gae_lambda: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and returns, GAE(lambda) of Schulman et al. 2016 (arXiv 1506.02438, eq. 16).

    delta_t = r_t + gamma * V(s_{t+1}) - V(s_t);  A_t = sum_k (gamma * lambda)^k delta_{t+k}. The agent tokens of an
    episode are consecutive, without the conversation partner's tokens. The recursion therefore runs from the last token
    of one agent turn to the first of the next.

    Args:
        rewards: Reward of each agent token, KL penalty included. Shape (E, L).
        values: Value of the state before each token. Shape (E, L).
        mask: True at an episode's tokens, which fill each row from the left. Shape (E, L).
        last_values: Value of the state after the last token; 0 if the episode ended there. Shape (E,).
        gamma: Discount factor per token.
        gae_lambda: 1 gives Monte Carlo returns, 0 the one-step temporal difference.

    Returns:
        Advantages and returns (advantages + values), 0 where mask is False. Shapes (E, L), (E, L).
    """
    rewards = np.where(mask, rewards, 0.0).astype(np.float32)
    values = np.where(mask, values, 0.0).astype(np.float32)
    advantages = np.zeros_like(rewards)
    next_advantage = np.zeros(len(rewards), dtype=np.float32)
    next_value = last_values.astype(np.float32)
    for t in reversed(range(rewards.shape[1])):
        real = mask[:, t]
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * gae_lambda * next_advantage
        advantages[:, t] = np.where(real, advantage, 0.0)
        # Skip columns after the end of an episode.
        next_advantage = np.where(real, advantage, next_advantage)
        next_value = np.where(real, values[:, t], next_value)
    return advantages, advantages + values


def leave_one_out_advantages(rewards: np.ndarray) -> np.ndarray:
    """Each reward minus the mean of the others (RLOO; Kool et al. 2019, Ahmadian et al. 2024, arXiv 2402.14740).

    Args:
        rewards: Rewards of the replies to one prompt. Shape (n,).

    Returns:
        Advantages; 0 if n is 1. Shape (n,).
    """
    if len(rewards) < 2:
        return np.zeros_like(rewards)
    return (rewards - rewards.mean()) * len(rewards) / (len(rewards) - 1)


def group_advantages(rewards: np.ndarray, scale: bool = True, eps: float = 1e-4) -> np.ndarray:
    """Each reward minus the group's mean, divided by its standard deviation (GRPO; Shao et al. 2024, arXiv 2402.03300).

    Args:
        rewards: Rewards of the replies to one prompt. Shape (n,).
        scale: Divide by the (unbiased) standard deviation; False as in Liu et al. 2025, arXiv 2503.20783.
        eps: Added to the standard deviation.

    Returns:
        Advantages; 0 if n is 1. Shape (n,).
    """
    if len(rewards) < 2:
        return np.zeros_like(rewards)
    centered = rewards - rewards.mean()
    return centered / (rewards.std(ddof=1) + eps) if scale else centered
