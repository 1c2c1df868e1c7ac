"""REINFORCE with a baseline: an on-policy algorithm of stable-baselines3 that overrides only train()."""

from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from torch.nn.functional import mse_loss
from torch.nn.utils import clip_grad_norm_

from rl4dialog import AlgorithmRegistry


@AlgorithmRegistry.register("my_reinforce")
class Reinforce(OnPolicyAlgorithm):
    """One gradient step on advantage times log-probability, over all replies of an iteration."""

    data_parallel = True  # train() computes the same in several processes

    def __init__(self, policy, env, learning_rate=1e-4, n_steps=128, vf_coef=0.5, max_grad_norm=1.0, **kwargs):
        super().__init__(
            policy,
            env,
            learning_rate=learning_rate,
            n_steps=n_steps,
            gamma=1.0,
            gae_lambda=1.0,
            ent_coef=0.0,
            vf_coef=vf_coef,
            max_grad_norm=max_grad_norm,
            use_sde=False,
            sde_sample_freq=-1,
            **kwargs,
        )

    def train(self):
        self._update_learning_rate(self.policy.optimizer)
        for rollout in self.rollout_buffer.get(batch_size=None):  # one minibatch of all agent tokens
            values, log_prob, _ = self.policy.evaluate_actions(rollout.observations, rollout.actions)
            policy_loss = -(rollout.advantages * log_prob).mean()
            value_loss = mse_loss(rollout.returns, values.flatten())
            self.policy.optimizer.zero_grad()
            (policy_loss + self.vf_coef * value_loss).backward()
            clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
            self.logger.record("train/policy_gradient_loss", policy_loss.item())
            self.logger.record("train/value_loss", value_loss.item())
