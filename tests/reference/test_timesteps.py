"""What callbacks see of ``num_timesteps``, beside stable-baselines3's own."""

import numpy as np
import pytest
import stable_baselines3
from covering import quick
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EveryNTimesteps, StopTrainingOnMaxEpisodes
from stable_baselines3.common.vec_env import DummyVecEnv
from tiny import make_env, make_gpt2, make_tokenizer, policy_class_of

from rl4dialog.algorithms.on_policy.critic_free import RLOO
from rl4dialog.algorithms.on_policy.ppo import PPO
from rl4dialog.envs.utterance_view import UtteranceView

N_ENVS, N_STEPS = 4, 6


class Watching(BaseCallback):
    """Keeps the callback's count and the model's, by event."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def _see(self, event):
        self.seen.append((event, self.num_timesteps, self.model.num_timesteps))

    def _on_rollout_start(self):
        self._see("start")

    def _on_step(self):
        self._see("step")
        return True

    def _on_rollout_end(self):
        self._see("end")


def build(max_length, vanilla=False, cls=PPO):
    tokenizer = make_tokenizer()
    model = make_gpt2(tokenizer)

    def make():
        env = make_env(tokenizer, max_episode_length=max_length)
        return env if vanilla else UtteranceView(env)

    policy_kwargs = {"model": model, "end_of_turn": make_env(tokenizer).end_of_turn}
    return (stable_baselines3.PPO if vanilla else cls)(
        policy_class_of(model),
        DummyVecEnv([make] * N_ENVS),
        n_steps=N_STEPS,
        batch_size=N_ENVS * N_STEPS,
        n_epochs=1,
        policy_kwargs=policy_kwargs,
        seed=0,
        device="cpu",
    )


def test_replies_of_one_token_are_counted_as_stable_baselines3_counts_steps():
    seen = []
    for vanilla in (True, False):
        callback = Watching()
        build(1, vanilla).learn(2 * N_ENVS * N_STEPS, callback)
        seen.append(callback.seen)
    assert len(seen[0]) == 2 * (N_STEPS + 2)
    assert seen[0] == seen[1]


@pytest.mark.parametrize("cls", quick(PPO, of=[PPO, RLOO]))
def test_longer_replies_count_up_to_the_same_numbers(cls):
    callback = Watching()
    algorithm = build(5, cls=cls)
    algorithm.learn(2 * N_ENVS * N_STEPS, callback)
    per_iteration = N_ENVS * N_STEPS
    for event, expected in (("start", [0, 1]), ("end", [1, 2])):
        assert [own for name, _, own in callback.seen if name == event] == [per_iteration * n for n in expected]
    steps = [(mine, own) for name, mine, own in callback.seen if name == "step"]
    counts = np.array([own for _, own in steps])
    assert all(mine == own for mine, own in steps)
    assert (np.diff(counts) >= 0).all() and (counts % N_ENVS == 0).all() and counts[0] > 0
    assert len(set(counts)) > 3, "they grow within an iteration"
    # As with stable-baselines3, the last step of a rollout has them all, and no other has.
    for i, (event, mine, own) in enumerate(callback.seen):
        is_last = event == "step" and callback.seen[i + 1][0] == "end"
        assert is_last == (event == "step" and own % per_iteration == 0)
        assert event != "end" or mine == own, "what the callback holds is not from before"


def test_iteration_counts_whole_rollouts_only():
    iterations = {"step": [], "end": []}

    class Iterations(Watching):
        def _see(self, event):
            if event in iterations:
                iterations[event].append(self.model.iteration)

    build(5).learn(2 * N_ENVS * N_STEPS, Iterations())
    assert set(iterations["step"]) == {0, 1} and iterations["end"] == [1, 2]


def test_stable_baselines3s_callbacks_that_count_work_within_a_rollout():
    triggered = Watching()
    build(2).learn(2 * N_ENVS * N_STEPS, EveryNTimesteps(2 * N_ENVS, triggered))
    assert len(triggered.seen) >= 3, "more often than once in an iteration"

    algorithm, seen = build(1), Watching()
    algorithm.learn(10**4, CallbackList([StopTrainingOnMaxEpisodes(9), seen]))
    # The ninth step of four environments is the third of the second rollout, which is dropped.
    assert [event for event, *_ in seen.seen].count("step") == 9
    assert seen.seen[-1] == ("step", 9 * N_ENVS, 9 * N_ENVS)
    assert algorithm.num_timesteps == N_ENVS * N_STEPS and algorithm.iteration == 1
