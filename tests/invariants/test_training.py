"""Equivalent settings give the same trajectory, and what must not change does not."""

import hashlib

import pytest
import torch
from collected import collect, make
from tiny import make_env, make_gpt2, make_policy, make_tokenizer


def make_ppo(kl_coeff=0.0, **kwargs):
    return make(kl_coeff=kl_coeff, **{"n_envs": 4, "batch_size": 16, "n_epochs": 2, "learning_rate": 1e-3, **kwargs})


def weights(module):
    digest = hashlib.sha256()
    for tensor in module.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("micro_batch_size", [None, 1, 3, 100])
def test_ratio_is_one_on_the_first_minibatch(micro_batch_size):
    algorithm = make_ppo(n_epochs=1, batch_size=10**6, micro_batch_size=micro_batch_size)
    collect(algorithm)
    algorithm.train()
    logged = algorithm.logger.name_to_value
    assert logged["train/clip_fraction"] == 0
    assert abs(logged["train/approx_kl"]) < 1e-6


def test_learning_rate_zero_changes_no_weight_and_keeps_ratio_one():
    algorithm = make_ppo(learning_rate=0.0)
    before = weights(algorithm.policy)
    algorithm.learn(16 * 4 * 2)
    assert weights(algorithm.policy) == before
    assert algorithm.logger.name_to_value["train/clip_fraction"] == 0


def test_train_mode_keeps_dropout_off():
    tokenizer = make_tokenizer()
    env = make_env(tokenizer)
    policy = make_policy(env, make_gpt2(tokenizer, resid_pdrop=0.5, attn_pdrop=0.5, embd_pdrop=0.5))
    obs = {k: torch.as_tensor(v[None]) for k, v in env.reset(seed=0)[0].items()}
    policy.set_training_mode(False)
    quiet = policy._logits_and_values(obs)
    policy.set_training_mode(True)
    policy.train()
    for a, b in zip(quiet, policy._logits_and_values(obs), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_gradient_accumulation_gives_the_same_gradients(critic):
    gradients = []
    for micro_batch_size in (None, 1, 3):
        algorithm = make_ppo(
            critic=critic,
            n_epochs=1,
            batch_size=10**6,
            ent_coef=0.1,
            max_grad_norm=1e9,
            micro_batch_size=micro_batch_size,
        )
        collect(algorithm)
        algorithm.train()
        gradients.append([p.grad for p in algorithm.policy.parameters() if p.grad is not None])
    for other in gradients[1:]:
        for a, b in zip(gradients[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_shared_critic_without_value_loss_leaves_the_policy_gradient_alone():
    algorithm = make_ppo(critic="shared", vf_coef=0.0, n_epochs=1, batch_size=10**6, max_grad_norm=1e9)
    collect(algorithm)
    algorithm.train()
    actor = [p.grad.clone() for p in algorithm.policy.actor_parameters()]
    torch.nn.init.normal_(algorithm.policy._value_head.output.weight, std=5.0)  # values do not enter without vf_coef
    again = make_ppo(critic="shared", vf_coef=0.0, n_epochs=1, batch_size=10**6, max_grad_norm=1e9)
    collect(again)
    torch.nn.init.normal_(again.policy._value_head.output.weight, std=5.0)
    again.train()
    for a, b in zip(actor, again.policy.actor_parameters(), strict=True):
        torch.testing.assert_close(a, b.grad, rtol=1e-5, atol=1e-7)


def test_actor_and_critic_partition_the_trainable_parameters():
    for critic in ("separate", "shared"):
        policy = make_ppo(critic=critic).policy
        actor, value = (
            {id(p) for p in parameters()} for parameters in (policy.actor_parameters, policy.critic_parameters)
        )
        assert not actor & value
        assert actor | value == {id(p) for p in policy.parameters() if p.requires_grad}


def test_adams_eps_is_a_visible_option():
    assert make_ppo().policy.optimizer.defaults["eps"] == 1e-5
    tokenizer = make_tokenizer()
    policy = make_policy(make_env(tokenizer), make_gpt2(tokenizer), optimizer_kwargs={"eps": 1e-8})
    assert policy.optimizer.defaults["eps"] == 1e-8


def test_same_seed_is_bitwise_equal_and_another_is_not():
    results = []
    for seed in (0, 0, 1):
        algorithm = make_ppo(kl_coeff=0.1, seed=seed)
        algorithm.learn(16 * 4 * 2)
        results.append(weights(algorithm.policy))
    assert results[0] == results[1] != results[2]
