"""Gradients that are not finite: no weight becomes NaN, whoever takes the step."""

import math

import pytest
import torch
from stable_baselines3.common.vec_env import DummyVecEnv
from tiny import make_env, make_gpt2, make_tokenizer

from rl4dialog.algorithms.on_policy.critic_free import GRPO
from rl4dialog.algorithms.on_policy.ppo import A2C, PPO
from rl4dialog.algorithms.on_policy.trpo import TRPO
from rl4dialog.core.errors import TrainingError
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.policies import gradient_steps
from rl4dialog.policies.causal import CausalLMActorCriticPolicy
from rl4dialog.policies.gradient_steps import MAX_SKIPPED_IN_A_ROW, StepGuard

_PPO = {"batch_size": 16, "n_epochs": 2}
SETTINGS = {PPO: _PPO, GRPO: {**_PPO, "n_generations": 2}, A2C: {}, TRPO: {"batch_size": 16}}


class PoisonedPolicy(CausalLMActorCriticPolicy):
    """A policy whose outputs make NaN gradients in chosen passes, counted from 0."""

    poisoned: tuple[int, ...] | range = ()
    n_passes = 0

    def _logits_and_values(self, obs, ids=None):
        logits, values = super()._logits_and_values(obs, ids)
        return self._poison(logits), values

    def _poison(self, outputs):
        if torch.is_grad_enabled():
            if self.n_passes in self.poisoned:
                outputs = outputs * math.nan
            self.n_passes += 1
        return outputs


def make(algorithm, poisoned=(), **kwargs):
    tokenizer = make_tokenizer()
    built = algorithm(
        PoisonedPolicy,
        DummyVecEnv([lambda: UtteranceView(make_env(tokenizer)) for _ in range(4)]),
        n_steps=16,
        learning_rate=1e-3,
        policy_kwargs={
            "model": make_gpt2(tokenizer),
            "end_of_turn": make_env(tokenizer).end_of_turn,
            "critic": "separate" if algorithm.needs_critic else "none",
            **kwargs.pop("policy_kwargs", {}),
        },
        seed=0,
        device="cpu",
        **{**SETTINGS[algorithm], **kwargs},
    )
    built.policy.poisoned, values = poisoned, built.policy.predict_values
    built.policy.predict_values = lambda obs: built.policy._poison(values(obs))
    return built


def weights(policy):
    return torch.cat([p.detach().flatten() for p in policy.parameters()]).clone()


@pytest.mark.parametrize("algorithm", [PPO, GRPO, A2C, TRPO])
def test_step_without_finite_gradient_is_left_out_and_counted(algorithm):
    built = make(algorithm, poisoned=(0,))
    built.learn(16 * 4)
    assert built.logger.name_to_value["train/skipped_steps"] == 1
    assert torch.isfinite(weights(built.policy)).all()
    assert all(math.isfinite(value) for name, value in built.logger.name_to_value.items() if name == "train/loss")
    built.learn(16 * 4)
    assert built.logger.name_to_value["train/skipped_steps"] == 0, "counted per iteration"


def test_skipped_step_moves_neither_weights_nor_the_optimizers_state():
    built = make(A2C, poisoned=(1,))
    built.learn(16 * 4)
    before, state = weights(built.policy), [s["square_avg"].clone() for s in built.policy.optimizer.state.values()]
    built.learn(16 * 4)
    assert torch.equal(before, weights(built.policy))
    after = [s["square_avg"] for s in built.policy.optimizer.state.values()]
    assert all(torch.equal(a, b) for a, b in zip(state, after, strict=True))


@pytest.mark.parametrize("algorithm", [PPO, A2C])
def test_many_in_a_row_end_the_run(algorithm):
    built = make(algorithm, poisoned=range(10**6))
    before = weights(built.policy)
    message = rf"^iteration \d+: .* {MAX_SKIPPED_IN_A_ROW} optimizer steps in a row .*learning_rate.*reward"
    with pytest.raises(TrainingError, match=message):
        built.learn(16 * 4 * (MAX_SKIPPED_IN_A_ROW + 1))
    assert torch.equal(before, weights(built.policy))


def test_finite_steps_in_between_begin_the_count_anew():
    guard = StepGuard()
    for _ in range(3):
        for _ in range(MAX_SKIPPED_IN_A_ROW - 1):
            assert not guard.allows(torch.tensor(math.inf))
        assert guard.allows(torch.tensor(1.0))
    assert guard.n_skipped == 3 * (MAX_SKIPPED_IN_A_ROW - 1)


@pytest.mark.parametrize("bad", [(), (0, 2)])
def test_a_step_that_the_device_skips_is_the_one_that_would_not_be_taken(bad, monkeypatch):
    found = []
    for by_itself in (False, True):
        monkeypatch.setattr(gradient_steps, "skips_by_itself", lambda *args, by_itself=by_itself: by_itself)
        torch.manual_seed(1)
        policy, guard = make(PPO).policy, StepGuard()
        for i in range(4):
            for parameter in policy.parameters():
                parameter.grad = torch.randn_like(parameter)
            if i in bad:
                next(policy.actor_parameters()).grad[0] = math.nan
            guard.step(policy, max_grad_norm=3.0)
        states = [
            state[name] for state in policy.optimizer.state.values() for name in ("step", "exp_avg", "exp_avg_sq")
        ]
        found.append([*policy.parameters(), *states, torch.tensor([guard.n_skipped, guard.n_in_a_row])])
    assert int(found[0][-1][0]) == len(bad)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_many_in_a_row_that_the_device_skips_end_the_run_after_the_update(monkeypatch):
    monkeypatch.setattr(gradient_steps, "skips_by_itself", lambda *args: True)
    test_many_in_a_row_end_the_run(PPO)


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_gradients_of_policy_and_critic_are_limited_together_or_each(factor):
    policy = make(PPO, policy_kwargs={"critic_lr_factor": factor}).policy
    both = [*policy.actor_parameters()], [*policy.critic_parameters()]
    for parameter in [*both[0], *both[1]]:
        parameter.grad = torch.ones_like(parameter)
    StepGuard().step(policy, max_grad_norm=3.0)
    norms = [math.hypot(*(float(parameter.grad.norm()) for parameter in each)) for each in both]
    if factor == 1:
        assert math.hypot(*norms) == pytest.approx(3.0, rel=1e-3)
    else:
        assert norms == pytest.approx([3.0, 3.0], rel=1e-3)
