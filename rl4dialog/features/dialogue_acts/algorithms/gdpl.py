"""Guided dialogue policy learning (Takanobu et al. 2019, arXiv 1908.10719): PPO on a learned reward.

The estimator is trained as in adversarial inverse reinforcement learning (Fu et al. 2018, arXiv 1710.11248).
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor, nn
from torch.nn import functional as F

from rl4dialog.core.arguments import Count, LearningRate, NonNegative, NonNegativeInt
from rl4dialog.core.errors import ConfigError
from rl4dialog.features.dialogue_acts.algorithms.behaviour_cloning import demonstrations_of
from rl4dialog.features.dialogue_acts.algorithms.iterations import OnPolicyIterations

Turns = tuple[Tensor, Tensor, Tensor]
"""Observations (B, size), actions (B, size of an action), or numbered ones (B,), and next observations (B, size)."""


class RewardEstimator(nn.Module):
    """f(s, a, s') = log π₀(a|s) + g(s, a, s'), with a network g and the policy π₀ that training begins with.

    In the published f, a network has to learn the log-probability of a whole action. Far from it, f - log π is mostly
    -log π, a reward for noise.
    """

    def __init__(self, n_inputs: int, n_actions: int, width: int, is_discrete: bool, policy: Any) -> None:
        super().__init__()
        self._n_actions, self._is_discrete = n_actions, is_discrete
        self.g = nn.Sequential(nn.Linear(2 * n_inputs + n_actions, width), nn.ReLU(), nn.Linear(width, 1))
        self.start = copy.deepcopy(policy).requires_grad_(False)

    def inputs(self, observations: Tensor, actions: Tensor, next_observations: Tensor) -> Tensor:
        """Inputs of g (B, n_inputs) for turns."""
        if self._is_discrete:
            actions = F.one_hot(actions.long().flatten(), self._n_actions).float()
        return torch.cat([observations, actions, next_observations], dim=1)

    def log_odds(self, turns: Turns, policy: Any) -> tuple[Tensor, Tensor]:
        """Inputs of g, and what f - log π has beside g: log π₀ - log π (B,)."""
        actions = turns[1].flatten() if self._is_discrete else turns[1]  # buffers have numbered ones as (B, 1)
        with torch.no_grad():
            log_probs = [each.get_distribution(turns[0]).log_prob(actions) for each in (self.start, policy)]
        return self.inputs(*turns), log_probs[0] - log_probs[1]


class GDPL(OnPolicyIterations, PPO):
    """PPO whose reward is f - log π, with an estimator f that learns to tell demonstrations from the policy's turns.

    The environment's own reward is only logged. In the first iterations, the policy does not move while the estimator
    and the values learn; begin with ``warm_start.id: bc``. Rewards are shifted so that their mean is 0 in each
    iteration: otherwise the policy would gain by ending dialogues, or by never doing so.

    Args:
        policy: An actor-critic policy.
        env: Environments with a method ``demonstrations()``. The last turn of a dialogue has no next observation and
            is left out.
        estimator_learning_rate: Learning rate of the estimator's Adam.
        estimator_epochs: Epochs of the estimator over the turns of an iteration.
        estimator_batch_size: Turns of each kind per step of the estimator.
        estimator_warmup_iters: Number of first iterations that train the estimator and the values only.
        estimator_width: Units of its hidden layer.
        estimator_gradient_penalty: Coefficient of g's squared gradient between demonstrations and the policy's turns
            (Thanh-Tung et al. 2019, arXiv 1902.03984). More of it makes rewards smaller.
        kwargs: Arguments of PPO.

    Raises:
        ConfigError: If there are no demonstrations, or each has one turn only.
    """

    def __init__(
        self,
        policy: Any,
        env: VecEnv,
        estimator_learning_rate: LearningRate = 1e-3,
        estimator_epochs: Count = 2,
        estimator_batch_size: Count = 128,
        estimator_warmup_iters: NonNegativeInt = 10,
        estimator_width: Count = 100,
        estimator_gradient_penalty: NonNegative = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(policy, env, **kwargs)
        space: Any = self.action_space
        is_discrete = hasattr(space, "n") and not space.shape
        n_actions = int(space.n) if is_discrete else int(space.shape[0])
        shape = self.observation_space.shape
        assert shape is not None
        # As a part of the policy, it is saved and loaded with it; the policy's optimizer does not contain it.
        estimator = RewardEstimator(shape[0], n_actions, estimator_width, is_discrete, self.policy).to(self.device)
        self._estimator = self.policy.estimator = estimator
        self.estimator_optimizer = torch.optim.Adam(estimator.g.parameters(), estimator_learning_rate)
        self._epochs, self._estimator_batch = estimator_epochs, estimator_batch_size
        self._warmup, self._penalty = estimator_warmup_iters, estimator_gradient_penalty
        # Last observations of episodes, and whether they were truncated, by step and environment
        self._ends: dict[tuple[int, int], tuple[np.ndarray, bool]] = {}
        observations, actions, dones = demonstrations_of(self)
        goes_on = dones == 0
        if not goes_on.any():
            needs = "demonstrations of more than one turn: it compares what follows a turn"
            raise ConfigError(f"alg.id: gdpl needs {needs}")
        self._demonstrated = (observations[goes_on], actions[goes_on], observations.roll(-1, 0)[goes_on])

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        modules, variables = super()._get_torch_save_params()
        return [*modules, "estimator_optimizer"], variables

    def _update_info_buffer(self, infos: list[dict[str, Any]], dones: np.ndarray | None = None) -> None:
        super()._update_info_buffer(infos, dones)
        # stable-baselines3 calls this before it adds a step to the buffer, which has no place for last observations.
        for env, info in enumerate(infos):
            if info.get("terminal_observation") is not None:
                truncated = bool(info.get("TimeLimit.truncated"))
                self._ends[self.rollout_buffer.pos, env] = (info["terminal_observation"], truncated)

    def train(self) -> None:
        if self.iteration == 1:  # after the warm start
            own = {key: value for key, value in self.policy.state_dict().items() if not key.startswith("estimator.")}
            self._estimator.start.load_state_dict(own)
        # 1. The estimator learns to tell the turns of the log from those of the rollout. log pi(a|s) does not change.
        turns = self._estimator.log_odds(self._turns(), self.policy)
        loss = self._train_estimator(turns, self._estimator.log_odds(self._demonstrated, self.policy))
        # 2. The reward of a turn, in place of the task's: the log-odds of being from the log, f(s, a, s') - log pi(a|s)
        with torch.no_grad():
            rewards = self._estimator.g(turns[0]).squeeze(1) + turns[1]
            last_values = self.policy.predict_values(obs_as_tensor(self._last_obs, self.device))  # type: ignore[arg-type]
        buffer = self.rollout_buffer
        buffer.rewards = (rewards - rewards.mean()).view(self.n_envs, self.n_steps).T.cpu().numpy().copy()
        cut = {place: seen for place, (seen, truncated) in self._ends.items() if truncated}
        if cut:
            # A truncated episode would have gone on: its last step earns the value of its last observation, too, as in
            # stable-baselines3's collect_rollouts, whose rewards have just been replaced.
            last_seen = torch.as_tensor(np.stack([*cut.values()]), device=self.device).float()
            with torch.no_grad():
                values = self.policy.predict_values(last_seen).flatten().cpu().numpy()
            buffer.rewards[tuple(np.array([*cut]).T)] += self.gamma * values
        self._ends = {}
        # 3. PPO on these rewards, once the estimator has had its first iterations, and the values, too.
        buffer.compute_returns_and_advantage(last_values, self._last_episode_starts)  # type: ignore[arg-type]
        if self.iteration > self._warmup:
            super().train()
        else:
            self._train_values()
        self.logger.record("train/estimator_loss", loss)
        self.logger.record("train/estimated_reward", float(rewards.mean()))

    def _turns(self) -> Turns:
        """The turns of the rollout, one environment after the other; an episode's last one leads to its last state."""
        buffer = self.rollout_buffer
        last: Any = self._last_obs

        def rows(array: Any) -> Tensor:
            tensor = torch.as_tensor(array, device=self.device).float().transpose(0, 1)
            return tensor.reshape(-1, *tensor.shape[2:])

        observations = torch.as_tensor(buffer.observations)
        following = torch.cat([observations[1:], torch.as_tensor(last, dtype=observations.dtype)[None]])
        for place, (seen, _) in self._ends.items():
            following[place] = torch.as_tensor(seen, dtype=following.dtype)
        return rows(observations), rows(buffer.actions), rows(following)

    def _train_values(self) -> None:
        for _ in range(self.n_epochs):
            for rows in self.rollout_buffer.get(self.batch_size):
                loss = F.mse_loss(self.policy.predict_values(rows.observations).flatten(), rows.returns)
                self.policy.optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                self.policy.optimizer.step()

    def _train_estimator(self, own: tuple[Tensor, Tensor], demonstrated: tuple[Tensor, Tensor]) -> float:
        """Train the classifier exp f / (exp f + π) on inputs of g and log π₀ - log π; returns its mean loss."""
        losses, g = [], self._estimator.g
        for _ in range(self._epochs):
            for rows in torch.randperm(len(own[1])).split(self._estimator_batch):
                others = torch.randint(len(demonstrated[1]), (len(rows),))
                ours, theirs = own[0][rows], demonstrated[0][others]
                logits = g(ours).squeeze(1) + own[1][rows], g(theirs).squeeze(1) + demonstrated[1][others]
                loss = F.softplus(logits[0]).mean() + F.softplus(-logits[1]).mean()
                losses.append(float(loss.detach()))
                if self._penalty:
                    share = torch.rand(len(rows), 1, device=ours.device)
                    between = (share * ours + (1 - share) * theirs).requires_grad_()
                    (slope,) = torch.autograd.grad(g(between).sum(), between, create_graph=True)
                    loss = loss + self._penalty * slope.square().sum(1).mean()
                self.estimator_optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                self.estimator_optimizer.step()
        self.estimator_optimizer.zero_grad()  # PPO clips the norm of all gradients of the policy, of which g is a part
        return sum(losses) / len(losses)
