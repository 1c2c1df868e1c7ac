"""Rollouts as they are written down: a policy and environments that follow a script.

All else follows from a reply's token ids: a token's log-probability is -id/10, without a mask -id/20, under the
reference -id/40, its value id/100 and its reward id.
"""

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.envs.utterance_view import PADDING_ACTION
from rl4dialog.functional.replies import Replies
from rl4dialog.rollouts.buffer import SequenceRolloutBuffer
from rl4dialog.rollouts.collector import RolloutCollector, RolloutStats

MAX_REPLY = 6
LAST_VALUE = 7.5


@dataclass
class Conversation:
    """An episode: its replies' ids, whether the last is cut, and what else infos say, by turn."""

    replies: list[list[int]]
    cut: bool = False
    infos: dict[int, dict[str, Any]] = field(default_factory=dict)


class ScriptedEnv:
    """Environment i speaks the conversations of ``scripts[i]``, from prompts that say what comes next."""

    def __init__(self, scripts):
        self.scripts, self.num_envs = scripts, len(scripts)
        self.at = [(0, 0)] * self.num_envs
        self.actions = []

    def get_attr(self, name, indices):
        assert name == "reward_terms"
        return [[RewardPart("id", 1.0, None)]]

    def observations(self):
        """Each prompt is [padding, environment + 1, conversation + 1, turn + 1]."""
        prompts = np.array([[9, env + 1, number + 1, turn + 1] for env, (number, turn) in enumerate(self.at)])
        reply = np.zeros((self.num_envs, MAX_REPLY), dtype=np.int64)
        return {"prompt_ids": prompts, "prompt_mask": np.array([[0, 1, 1, 1]] * self.num_envs), "context_ids": reply}

    def step_async(self, actions):
        self.actions.append([row[row != PADDING_ACTION].tolist() for row in actions])

    def step_wait(self):
        dones, infos = np.zeros(self.num_envs, dtype=bool), []
        for env, ids in enumerate(self.actions[-1]):
            texts = {"prompt_text": "p", "gen_text": "g", "ref_texts": [], "meta_info": {}, "sample_id": 0}
            info = {**texts, "reward_parts": {"id": np.array(ids)}, "TimeLimit.truncated": False}
            number, turn = self.at[env]
            if ids:
                conversation = self.scripts[env][number]
                assert ids == conversation.replies[turn]
                info["utterance_truncated"] = len(ids) == MAX_REPLY
                info |= conversation.infos.get(turn, {})
                dones[env] = "error" in info or turn + 1 == len(conversation.replies)
                self.at[env] = (number + 1, 0) if dones[env] else (number, turn + 1)
                if dones[env]:
                    info |= {"TimeLimit.truncated": conversation.cut, "terminal_observation": ids}
            infos.append(info)
        return self.observations(), np.full(self.num_envs, np.nan), dones, infos


class ScriptedPolicy:
    """Says what the environments' script wants, which it reads from their prompts."""

    device, max_reply_length, lockstep, joins_turns, n_logits = torch.device("cpu"), MAX_REPLY, False, False, 9
    remembering_prompts = staticmethod(nullcontext)

    def __init__(self, scripts):
        self.scripts = scripts
        self.terminal_observations = []
        self.n_passes = 0

    def generate(self, obs):
        self.n_passes += 1
        replies = [
            self.scripts[env - 1][number - 1].replies[turn - 1] for _, env, number, turn in obs["prompt_ids"].tolist()
        ]
        longest = max(map(len, replies))
        ids = torch.tensor([[*reply, *[0] * (longest - len(reply))] for reply in replies])
        numbers = {"log_probs": -ids / 10, "unmasked_log_probs": -ids / 20, "truncated_mass": ids / 50}
        return Replies(obs["prompt_ids"], obs["prompt_mask"].bool(), ids, ids > 0, **numbers)

    def predict_sequence_values(self, batch):
        return batch.response_ids / 100

    def graph_gaps(self, batch):
        return []

    def reference_log_probs(self, batch):
        return -batch.response_ids / 40

    def obs_to_tensor(self, observation):
        return observation, False

    def predict_values(self, observation):
        self.terminal_observations.append(observation)
        return torch.tensor([[LAST_VALUE]])


@dataclass
class Rollout:
    """What came of a script."""

    stats: RolloutStats | None
    observations: dict[str, np.ndarray]
    buffer: SequenceRolloutBuffer
    env: ScriptedEnv
    policy: ScriptedPolicy
    steps: list[dict[str, Any]]


def roll_out(scripts, n_tokens, collector=None, n_steps=None, policy_class=ScriptedPolicy, **kwargs):
    """Collect from a script; ``n_steps`` is when the callback stops it."""
    env, policy, space = ScriptedEnv(scripts), policy_class(scripts), spaces.Discrete(100)
    buffer = SequenceRolloutBuffer(1, space, space, "cpu")
    steps = []

    def on_step(step, n_tokens, is_last):
        steps.append(step)
        return len(steps) != n_steps

    collector = collector or RolloutCollector()
    arguments = (policy, env, buffer, env.observations(), n_tokens, on_step)
    stats, observations = collector.collect(*arguments, **kwargs)
    return Rollout(stats, observations, buffer, env, policy, steps)
