"""Any environment can be saved in the middle of an episode, and its evaluations repeat their episodes."""

import json

import gymnasium as gym
import numpy as np
import pytest

from rl4dialog.core.errors import ConfigError
from rl4dialog.features.dialogue_acts.gym_wrappers import NumberedEpisodes, ResumableEnv


class Counter(gym.Env):
    """Has a state of its own, which its actions alone do not give."""

    observation_space = gym.spaces.Box(0, 100, (1,), np.int64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self):
        self.count = self.n_loads = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.array([self.count]), {}

    def step(self, action):
        self.count += int(action)
        return np.array([self.count]), 1.5, self.count % 5 == 4, False, {}

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count, self.n_loads = state["count"], self.n_loads + 1
        return np.array([self.count])


def steps(env, n, rng):
    """Observations, rewards and ends of n random steps, with the resets between them."""
    found = []
    for _ in range(n):
        if isinstance(env.action_space, gym.spaces.Box):
            action = rng.uniform(-2, 2, env.action_space.shape).astype(np.float32)
        else:
            action = rng.integers(2)
        observation, reward, terminated, truncated, info = env.step(action)
        found.append((observation.tolist(), float(reward), terminated, truncated, info.get("episode")))
        if terminated or truncated:
            found.append(env.reset()[0].tolist())
    return found


def test_state_that_a_wrapper_hides_is_refused():
    with pytest.raises(ConfigError, match="register its class with EnvRegistry"):
        ResumableEnv(gym.wrappers.TimeLimit(Counter(), 9))


@pytest.mark.parametrize("n_before", [0, 3, 60])
@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1", "counter"])
def test_restored_environment_goes_on_as_the_saved_one(id, n_before):
    def make():
        return ResumableEnv(Counter() if id == "counter" else gym.make(id, max_episode_steps=25))

    env, other, rng = make(), make(), np.random.default_rng(0)
    observation, _ = env.reset(seed=1)
    found = steps(env, n_before, rng)
    state = json.loads(json.dumps(env.state_dict()))
    restored = other.load_state_dict(state)
    if found:
        observation = found[-1] if isinstance(found[-1], list) else found[-1][0]
    assert np.array_equal(restored, observation)
    actions = rng.bit_generator.state
    rest = steps(env, 60, rng)
    rng.bit_generator.state = actions
    assert steps(other, 60, rng) == rest


def test_state_of_the_environment_itself_is_preferred():
    env, own = ResumableEnv(Counter()), Counter()
    env.reset(seed=1)
    env.step(1)
    ResumableEnv(own).load_state_dict(env.state_dict())
    assert (own.count, own.n_loads) == (1, 1)


def test_episode_has_its_return_and_length():
    env = ResumableEnv(Counter())
    env.reset(seed=1)
    infos = [env.step(1)[-1] for _ in range(4)]
    assert infos == [{}, {}, {}, {"episode": {"r": 6.0, "l": 4}}]


def test_episodes_depend_on_their_number_only():
    def begin(first, step, n, seed=7):
        env = NumberedEpisodes(gym.make("CartPole-v1"), first, step)
        env.restart(seed)
        return [env.reset()[0].tolist() for _ in range(n)]

    every = begin(0, 1, 6)
    assert every == [each for pair in zip(begin(0, 2, 3), begin(1, 2, 3), strict=True) for each in pair]
    assert len({str(each) for each in every}) == 6
    assert begin(0, 1, 6, seed=8) != every
