"""A custom policy in dialogue acts with ConvLab-2's loop of `sample` and `update`, and its metrics."""

import sys

import numpy as np
import torch

from rl4dialog.core.config import load_config
from rl4dialog.features.dialogue_acts.environments import build_evaluation_envs
from rl4dialog.features.dialogue_acts.tasks.environment import DialogueActEnv
from rl4dialog.features.dialogue_acts.tasks.town_guide import town_guide
from rl4dialog.features.dialogue_acts.trainee import episodes_of_split, mean_scores


class MyPolicy:
    """A layer of probabilities, a bit per act, which imitates first and then learns by REINFORCE."""

    def __init__(self, env: DialogueActEnv) -> None:
        self.env, self.action_space = env, env.action_space
        self.net = torch.nn.Linear(env.observation_space.n, env.action_space.n)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)

    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        p = torch.sigmoid(self.net(torch.as_tensor(observation, dtype=torch.float32)))
        return (p > 0.5 if deterministic else torch.bernoulli(p)).to(torch.int8).numpy(), state

    def sample(self, n_turns):
        s, a, r = [], [], []
        while len(r) < n_turns:
            observation, rewards, is_over = self.env.reset()[0], [], False
            while not is_over:
                s.append(observation)
                a.append(self.predict(observation, deterministic=False)[0])
                observation, reward, terminated, truncated, _ = self.env.step(a[-1])
                rewards.append(reward)
                is_over = terminated or truncated
            r += np.cumsum(rewards[::-1])[::-1].tolist()  # returns
        return [torch.as_tensor(np.array(each), dtype=torch.float32) for each in (s, a, r)]

    def update(self, s, a, weights):
        log_probs = -torch.nn.functional.binary_cross_entropy_with_logits(self.net(s), a, reduction="none").sum(dim=1)
        self.optimizer.zero_grad()
        (-weights * log_probs).mean().backward()
        self.optimizer.step()


n_imitations, n_epochs, batchsz = map(int, sys.argv[1:]) if sys.argv[1:] else (300, 60, 1024)
torch.manual_seed(0)
env = DialogueActEnv(town_guide)
env.reset(seed=0)
policy = MyPolicy(env)
s, a, _ = (torch.as_tensor(each, dtype=torch.float32) for each in env.demonstrations())
for _ in range(n_imitations):
    policy.update(s, a, torch.ones(len(s)))
for epoch in range(n_epochs):
    s, a, r = policy.sample(batchsz)
    policy.update(s, a, (r - r.mean()) / (r.std() + 1e-6))
    if epoch % 10 == 0:
        print(f"epoch {epoch}: mean return {r.mean():.2f}")

config = load_config("task_configs/town_guide/ppo.yml", ["env.args.convlab2=true"])
scores = mean_scores(episodes_of_split(config, policy, build_evaluation_envs(config, "test"), "test"))
for name in ("inform_f1", "book", "complete", "success"):
    print(f"{name}: {scores[f'task/convlab2/{name}']:.3f}")
print(f"turns: {scores['episode/length']:.1f}, of successful dialogues: {scores['task/turns_of_success']:.1f}")
