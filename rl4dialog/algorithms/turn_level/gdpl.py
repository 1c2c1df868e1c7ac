"""Guided dialogue policy learning (Takanobu et al. 2019, arXiv 1908.10719): PPO on a learned reward.

The estimator is trained as in adversarial inverse reinforcement learning (Fu et al. 2018, arXiv 1710.11248).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor, nn
from torch.nn import functional as F

from rl4dialog.algorithms.turn_level.behaviour_cloning import demonstrations_of
from rl4dialog.algorithms.turn_level.iterations import OnPolicyIterations
from rl4dialog.core.arguments import Count, NonNegativeInt, Positive


class RewardEstimator(nn.Module):
    """f(s, a, s') = g(s, a) + γ h(s') - h(s), where h is 0 after the end of an episode that was not truncated."""

    def __init__(self, n_inputs: int, n_actions: int, gamma: float, width: int, is_discrete: bool) -> None:
        super().__init__()
        self._gamma, self._n_actions, self._is_discrete = gamma, n_actions, is_discrete
        self.g = nn.Sequential(nn.Linear(n_inputs + n_actions, width), nn.ReLU(), nn.Linear(width, 1))
        self.h = nn.Sequential(nn.Linear(n_inputs, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, observations: Tensor, actions: Tensor, next_observations: Tensor, dones: Tensor) -> Tensor:
        """Rewards (B,) of actions (B, size of an action), or numbered ones (B,), between observations (B, size).

        ``dones`` is 1 where the episode ended with the action and was not truncated, else 0. Shape (B,).
        """
        if self._is_discrete:
            actions = F.one_hot(actions.long().flatten(), self._n_actions).float()
        value, next_value = self.h(observations).squeeze(1), self.h(next_observations).squeeze(1)
        shaping = self._gamma * (1 - dones) * next_value - value
        return self.g(torch.cat([observations, actions], dim=1)).squeeze(1) + shaping


class GDPL(OnPolicyIterations, PPO):
    """PPO whose reward is f - log π, with an estimator f that learns to tell demonstrations from the policy's turns.

    The environment's own reward is only logged. In the first iterations, the policy does not move while the estimator
    learns; begin with ``warm_start.id: bc``.

    Args:
        policy: An actor-critic policy.
        env: Environments with a method ``demonstrations()``.
        estimator_learning_rate: Learning rate of the estimator's Adam.
        estimator_epochs: Epochs of the estimator over the turns of an iteration.
        estimator_batch_size: Turns of each kind per step of the estimator.
        estimator_warmup_iters: Number of first iterations that train the estimator only.
        estimator_width: Units of its hidden layers.
        kwargs: Arguments of PPO.
    """

    def __init__(
        self,
        policy: Any,
        env: VecEnv,
        estimator_learning_rate: Positive = 1e-3,
        estimator_epochs: Count = 2,
        estimator_batch_size: Count = 128,
        estimator_warmup_iters: NonNegativeInt = 10,
        estimator_width: Count = 100,
        **kwargs: Any,
    ) -> None:
        super().__init__(policy, env, **kwargs)
        space: Any = self.action_space
        is_discrete = hasattr(space, "n") and not space.shape
        n_actions = int(space.n) if is_discrete else int(space.shape[0])
        shape = self.observation_space.shape
        assert shape is not None
        # As a part of the policy, it is saved and loaded with it; the policy's optimizer does not contain it.
        self._estimator = RewardEstimator(shape[0], n_actions, self.gamma, estimator_width, is_discrete).to(self.device)
        self.policy.estimator = self._estimator
        self.estimator_optimizer = torch.optim.Adam(self._estimator.parameters(), estimator_learning_rate)
        self._epochs, self._estimator_batch = estimator_epochs, estimator_batch_size
        self._warmup = estimator_warmup_iters
        self._cut: dict[tuple[int, int], np.ndarray] = {}  # last observations of truncated episodes, by step and env
        observations, actions, dones = demonstrations_of(self)
        self._demonstrated = (observations, actions, observations.roll(-1, 0), dones)

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        modules, variables = super()._get_torch_save_params()
        return [*modules, "estimator_optimizer"], variables

    def _update_info_buffer(self, infos: list[dict[str, Any]], dones: np.ndarray | None = None) -> None:
        super()._update_info_buffer(infos, dones)
        # stable-baselines3 calls this before it adds a step to the buffer, which has no place for last observations.
        for env, info in enumerate(infos):
            if info.get("TimeLimit.truncated") and info.get("terminal_observation") is not None:
                self._cut[self.rollout_buffer.pos, env] = info["terminal_observation"]

    def train(self) -> None:
        observations, actions, following, dones = turns = self._turns()
        # 1. The estimator learns to tell the turns of the log from those of the rollout. log pi(a|s) does not change.
        with torch.no_grad():
            log_probs = self.policy.get_distribution(observations).log_prob(actions)
            demonstrated = self.policy.get_distribution(self._demonstrated[0]).log_prob(self._demonstrated[1])
        loss = self._train_estimator((turns, log_probs), (self._demonstrated, demonstrated))
        # 2. The reward of a turn, in place of the task's: the log-odds of being from the log, f(s, a, s') - log pi(a|s)
        with torch.no_grad():
            rewards = self._estimator(observations, actions, following, dones) - log_probs
            last_values = self.policy.predict_values(obs_as_tensor(self._last_obs, self.device))  # type: ignore[arg-type]
        buffer = self.rollout_buffer
        buffer.rewards = rewards.view(self.n_envs, self.n_steps).T.cpu().numpy().copy()
        if self._cut:
            # A truncated episode would have gone on: its last step earns the value of its last observation, too, as in
            # stable-baselines3's collect_rollouts, whose rewards have just been replaced.
            last_seen = torch.as_tensor(np.stack([*self._cut.values()]), device=self.device).float()
            with torch.no_grad():
                values = self.policy.predict_values(last_seen).flatten().cpu().numpy()
            buffer.rewards[tuple(np.array([*self._cut]).T)] += self.gamma * values
            self._cut = {}
        # 3. PPO on these rewards, once the estimator has had its first iterations.
        buffer.compute_returns_and_advantage(last_values, self._last_episode_starts)  # type: ignore[arg-type]
        if self.iteration > self._warmup:
            super().train()
        self.logger.record("train/estimator_loss", loss)
        self.logger.record("train/estimated_reward", float(rewards.mean()))

    def _turns(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Observations, actions, next observations and ends of the rollout, one environment after the other.

        A truncated episode has no end: its last step is followed by the last observation.
        """
        buffer = self.rollout_buffer
        last: Any = self._last_obs

        def rows(array: Any) -> Tensor:
            tensor = torch.as_tensor(array, device=self.device).float().transpose(0, 1)
            return tensor.reshape(-1, *tensor.shape[2:])

        observations = torch.as_tensor(buffer.observations)
        following = torch.cat([observations[1:], torch.as_tensor(last, dtype=observations.dtype)[None]])
        starts = torch.as_tensor(buffer.episode_starts)
        dones = torch.cat([starts[1:], torch.as_tensor(self._last_episode_starts, dtype=starts.dtype)[None]])
        for place, seen in self._cut.items():
            following[place], dones[place] = torch.as_tensor(seen, dtype=following.dtype), 0
        actions = rows(buffer.actions)
        return rows(observations), actions, rows(following), rows(dones)

    def _train_estimator(self, own: tuple[Any, Tensor], demonstrated: tuple[Any, Tensor]) -> float:
        """Train the classifier exp f / (exp f + π); returns its mean loss."""
        losses = []
        for _ in range(self._epochs):
            for rows in torch.randperm(len(own[1])).split(self._estimator_batch):
                others = torch.randint(len(demonstrated[1]), (len(rows),))
                loss = torch.zeros(())
                for (turns, log_probs), chosen, target in ((own, rows, 0.0), (demonstrated, others, 1.0)):
                    logits = self._estimator(*(each[chosen] for each in turns)) - log_probs[chosen]
                    loss = loss + F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, target))
                self.estimator_optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                self.estimator_optimizer.step()
                losses.append(float(loss.detach()))
        return sum(losses) / len(losses)
