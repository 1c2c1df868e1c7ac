"""Algorithms with a tiny model, before and after their first rollout."""

from stable_baselines3.common.vec_env import DummyVecEnv
from tiny import make_env, make_gpt2, make_tokenizer, maskable_class_of, policy_class_of

from rl4dialog.algorithms.on_policy.ppo import PPO
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.rollouts.kl_controllers import FixedKLController


def make(
    algorithm=PPO,
    critic="separate",
    n_steps=16,
    env_kwargs=None,
    model=None,
    n_envs=2,
    policy_kwargs=None,
    kl_coeff=None,
    env=None,
    **kwargs,
):
    """An algorithm on environments of ``make_env``, or of ``env``."""
    tokenizer = make_tokenizer()
    model = make_gpt2(tokenizer) if model is None else model
    make_one = env or (lambda: make_env(tokenizer, **(env_kwargs or {})))
    kl = {} if kl_coeff is None else {"kl_controller": FixedKLController(kl_coeff)}
    of_policy = {"model": model, "end_of_turn": make_one().end_of_turn, "critic": critic, **(policy_kwargs or {})}
    return algorithm(
        (maskable_class_of if algorithm.maskable else policy_class_of)(model),
        DummyVecEnv([lambda: UtteranceView(make_one())] * n_envs),
        n_steps=n_steps,
        policy_kwargs=of_policy,
        **{"seed": 0, "device": "cpu", **kl, **kwargs},
    )


def collect(algorithm, reset=True):
    """Roll out; returns the rows."""
    _, callback = algorithm._setup_learn(10**6, reset_num_timesteps=reset)
    algorithm.collect_rollouts(algorithm.env, callback, algorithm.rollout_buffer, algorithm.n_steps)
    return algorithm.rollout_buffer.replies


def collected(algorithm=PPO, **kwargs):
    """An algorithm that has a rollout to train on."""
    trained = make(algorithm, **kwargs)
    collect(trained)
    return trained
