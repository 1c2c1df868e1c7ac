"""Equivalent settings give the same trajectory, and what must not change does not."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rows import rows_of
from stable_baselines3.common.vec_env import DummyVecEnv
from tiny import make_env, make_gpt2, make_policy, make_tokenizer

from rl4dialog.algorithms.on_policy.ppo import PPO
from rl4dialog.core.errors import ModelError
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.policies.causal import CausalLMActorCriticPolicy
from rl4dialog.policies.saving import CRITIC_FILE, load_policy_weights, save_policy
from rl4dialog.rollouts.kl_controllers import FixedKLController


def make_ppo(kl_coeff: float = 0.0, critic: str = "separate", n_envs: int = 4, seed: int = 0, **kwargs: Any) -> PPO:
    tokenizer = make_tokenizer()
    arguments: dict[str, Any] = {"n_steps": 16, "batch_size": 16, "n_epochs": 2, "learning_rate": 1e-3, **kwargs}
    return PPO(
        CausalLMActorCriticPolicy,
        DummyVecEnv([lambda: UtteranceView(make_env(tokenizer)) for _ in range(n_envs)]),
        policy_kwargs={
            "model": make_gpt2(tokenizer),
            "end_of_turn": make_env(tokenizer).end_of_turn,
            "critic": critic,
        },
        kl_controller=FixedKLController(kl_coeff),
        device="cpu",
        seed=seed,
        **arguments,
    )


def collect(algorithm: PPO) -> None:
    _, callback = algorithm._setup_learn(10**6)
    algorithm.collect_rollouts(algorithm.env, callback, algorithm.rollout_buffer, algorithm.n_steps)


def weights(module: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for tensor in module.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("micro_batch_size", [None, 1, 3, 100])
def test_ratio_is_one_on_the_first_minibatch(micro_batch_size: int | None) -> None:
    algorithm = make_ppo(n_epochs=1, batch_size=10**6, micro_batch_size=micro_batch_size)
    collect(algorithm)
    algorithm.train()
    logged = algorithm.logger.name_to_value
    assert logged["train/clip_fraction"] == 0
    assert abs(logged["train/approx_kl"]) < 1e-6


def test_learning_rate_zero_changes_no_weight_and_keeps_ratio_one() -> None:
    algorithm = make_ppo(learning_rate=0.0)
    before = weights(algorithm.policy)
    algorithm.learn(16 * 4 * 2)
    assert weights(algorithm.policy) == before
    assert algorithm.logger.name_to_value["train/clip_fraction"] == 0


def test_reference_never_changes_and_kl_is_zero_at_first() -> None:
    algorithm = make_ppo(learning_rate=1e-2)
    before = weights(algorithm.policy._reference_model)
    collect(algorithm)
    assert abs(algorithm.logger.name_to_value["rollout/kl"]) < 1e-5
    algorithm.train()
    collect(algorithm)
    assert abs(algorithm.logger.name_to_value["rollout/kl"]) > 1e-3
    assert weights(algorithm.policy._reference_model) == before


def test_train_mode_keeps_dropout_off() -> None:
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
def test_gradient_accumulation_gives_the_same_gradients(critic: str) -> None:
    gradients = []
    for micro_batch_size in (None, 1, 2, 4):
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


@pytest.mark.parametrize("batch_size", [1, 7, 16, 50, None])
def test_every_utterance_is_used_exactly_once_per_epoch(batch_size: int | None) -> None:
    algorithm = make_ppo()
    collect(algorithm)
    stored = sorted(u.response_ids.tolist() for u in rows_of(algorithm.rollout_buffer))
    seen = []
    for samples in algorithm.rollout_buffer.get(batch_size):
        ids, mask = samples.observations["response_ids"], samples.observations["response_mask"]
        assert samples.actions.tolist() == ids[mask].tolist()
        assert len(samples.advantages) == int(mask.sum())
        seen += [row[keep].tolist() for row, keep in zip(ids, mask, strict=True)]
    assert sorted(seen) == stored


def test_shared_critic_without_value_loss_leaves_the_policy_gradient_alone() -> None:
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


def test_actor_and_critic_partition_the_trainable_parameters() -> None:
    for critic in ("separate", "shared"):
        policy = make_ppo(critic=critic).policy
        actor, value = (
            {id(p) for p in parameters()} for parameters in (policy.actor_parameters, policy.critic_parameters)
        )
        assert not actor & value
        assert actor | value == {id(p) for p in policy.parameters() if p.requires_grad}


def test_adams_eps_is_a_visible_option() -> None:
    assert make_ppo().policy.optimizer.defaults["eps"] == 1e-5
    tokenizer = make_tokenizer()
    policy = make_policy(make_env(tokenizer), make_gpt2(tokenizer), optimizer_kwargs={"eps": 1e-8})
    assert policy.optimizer.defaults["eps"] == 1e-8


def test_same_seed_is_bitwise_equal_and_another_is_not() -> None:
    results = []
    for seed in (0, 0, 1):
        algorithm = make_ppo(kl_coeff=0.1, seed=seed)
        algorithm.learn(16 * 4 * 2)
        results.append(weights(algorithm.policy))
    assert results[0] == results[1] != results[2]


def test_kl_penalty_is_paid_per_token_and_the_score_on_the_last() -> None:
    algorithm = make_ppo(kl_coeff=0.3, learning_rate=1e-2)
    collect(algorithm)
    algorithm.train()
    collect(algorithm)
    for u in rows_of(algorithm.rollout_buffer):
        log_ratio = u.log_probs - u.ref_log_probs
        np.testing.assert_allclose(u.rewards, u.task_rewards - 0.3 * log_ratio, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_saved_policy_loads_with_the_same_values_and_log_probs(tmp_path: Path, critic: str) -> None:
    trained = make_ppo(critic=critic, learning_rate=1e-2)
    trained.learn(16 * 4)
    save_policy(trained.policy, tmp_path)
    loaded = make_ppo(critic=critic)
    load_policy_weights(loaded.policy, tmp_path)
    samples = next(trained.rollout_buffer.get(None))
    with torch.no_grad():
        for a, b in zip(
            trained.policy.evaluate_actions(samples.observations, samples.actions),
            loaded.policy.evaluate_actions(samples.observations, samples.actions),
            strict=True,
        ):
            assert torch.equal(a, b)
    (tmp_path / CRITIC_FILE).unlink()
    with pytest.raises(ModelError, match=r"critic\.safetensors is missing"):
        load_policy_weights(loaded.policy, tmp_path)
