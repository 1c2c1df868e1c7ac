"""Arguments of RLOO and GRPO, which a constructor checks as a config does."""

import pytest
from stable_baselines3.common.vec_env import DummyVecEnv
from tiny import make_env, make_gpt2, make_tokenizer, policy_class_of

from rl4dialog.algorithms.on_policy.critic_free import GRPO, RLOO
from rl4dialog.core.errors import ConfigError
from rl4dialog.envs.utterance_view import UtteranceView


def make(algorithm, n_envs=4, **kwargs):
    tokenizer = make_tokenizer()
    model = make_gpt2(tokenizer)
    trained = algorithm(
        policy_class_of(model),
        DummyVecEnv([lambda: UtteranceView(make_env(tokenizer))] * n_envs),
        policy_kwargs={"model": model, "end_of_turn": make_env(tokenizer).end_of_turn, "critic": "none"},
        device="cpu",
        **kwargs,
    )
    return trained


def test_defaults_are_those_of_the_papers():
    rloo, grpo = make(RLOO), make(GRPO)
    assert (rloo.group_size, rloo.kl_in, rloo.kl_estimator) == (4, "reward", "k1")
    assert (grpo.group_size, grpo.kl_in, grpo.kl_estimator) == (4, "loss", "k3")
    assert grpo.scale_rewards == "group" and grpo.constant_groups == "keep"
    scales = [make(GRPO, scale_rewards=value).scale_rewards for value in (True, False, "batch", "none")]
    assert scales == ["group", "none", "batch", "none"]
    assert make(GRPO, constant_groups="resample", max_resampling=5).max_resampling == 5
    for trained in (rloo, grpo):
        assert trained.normalize_advantage is False
    assert make(RLOO, normalize_advantage=True).normalize_advantage is True


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n_generations": 3}, r"n_generations is 3, which does not divide env\.n_envs = 4"),
        ({"gae_lambda": 0.9}, "gae_lambda has no meaning without a critic"),
        ({"vf_coef": 0.5}, "vf_coef has no meaning without a critic"),
        ({"clip_range_vf": 0.5}, "clip_range_vf has no meaning without a critic"),
        ({"critic_warmup_iters": 2}, "critic_warmup_iters has no meaning without a critic"),
        ({"max_resampling": 2}, r"max_resampling has no effect without alg\.args\.constant_groups: resample"),
        ({"clip_range_high": 0.1}, r"clip_range_high is 0\.1, below alg\.args\.clip_range = 0\.2"),
        ({"credit": "turn"}, r"alg\.args\.credit has no .* the advantage of its total reward.* such as ppo"),
        ({"turn_gamma": 0.5}, r"alg\.args\.turn_gamma has no .* the advantage of its total reward.* such as ppo"),
        ({"turn_gae_lambda": 1.0}, r"alg\.args\.turn_gae_lambda has no .* the advantage of its total reward"),
    ],
)
def test_constructor_and_config_refuse_the_same(arguments, words):
    with pytest.raises(ConfigError, match=words):
        make(GRPO, **arguments)
    with pytest.raises(ConfigError, match=words):
        GRPO.check_arguments(arguments, 4)
