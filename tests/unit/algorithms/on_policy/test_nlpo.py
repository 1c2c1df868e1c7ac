"""NLPO's mask follows the weights on time, and the log says when."""

from __future__ import annotations

from stable_baselines3.common.vec_env import DummyVecEnv
from tiny import make_env, make_gpt2, make_tokenizer, maskable_class_of

from rl4dialog.algorithms.on_policy.ppo import NLPO
from rl4dialog.envs.utterance_view import UtteranceView


def test_log_says_when_the_mask_was_synced() -> None:
    tokenizer = make_tokenizer()
    model = make_gpt2(tokenizer)
    policy = {"model": model, "end_of_turn": make_env(tokenizer).end_of_turn, "target_update_iterations": 2}
    env = DummyVecEnv([lambda: UtteranceView(make_env(tokenizer))])
    arguments = {"n_steps": 8, "batch_size": 8, "n_epochs": 1, "seed": 0, "device": "cpu"}
    trained = NLPO(maskable_class_of(model), env, policy_kwargs=policy, **arguments)
    _, callback = trained._setup_learn(10**6)
    synced = []
    for _ in range(4):
        trained.collect_rollouts(trained.env, callback, trained.rollout_buffer, trained.n_steps)
        trained.train()
        synced.append(trained.logger.name_to_value["train/mask_synced"])
    assert synced == [0.0, 1.0, 0.0, 1.0]
