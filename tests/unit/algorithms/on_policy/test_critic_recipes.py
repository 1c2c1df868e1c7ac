"""What trains the critic apart from the policy: bounds, a rate and passes of its own."""

import copy
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from collected import collected
from learn import ALGORITHMS
from tiny import make_llama, make_tokenizer

from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.losses import bounded_value_loss
from rl4dialog.policies.heads import ValueBounds

SETTINGS = {**ALGORITHMS["ppo"][1], "batch_size": 30, "n_epochs": 1}


def algorithm_of(**kwargs):
    settings = {**SETTINGS, **kwargs}
    return collected(ALGORITHMS["ppo"][0], n_steps=12, n_envs=4, model=make_llama(make_tokenizer()), **settings)


def weights(policy):
    copied = [[p.detach().clone() for p in own] for own in (policy.actor_parameters(), policy.critic_parameters())]
    return copied


def moved(before, after):
    return [
        max(float((a - b).abs().max()) for a, b in zip(*each, strict=True)) for each in zip(before, after, strict=True)
    ]


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_rate_of_the_critic_is_a_multiple_of_the_policys(critic):
    found = []
    for factor in (1.0, 4.0):
        torch.manual_seed(0)
        algorithm = algorithm_of(policy_kwargs={"critic": critic, "critic_lr_factor": factor}, max_grad_norm=1e9)
        before = weights(algorithm.policy)
        algorithm.batch_size = 10**6  # one step of Adam, of the size of the learning rate
        algorithm.train()
        found.append(moved(before, weights(algorithm.policy)))
    (of_policy, of_critic), (same, four_times) = found
    assert same == pytest.approx(of_policy, rel=1e-3) and four_times == pytest.approx(4 * of_critic, rel=1e-2)


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_further_passes_train_the_critic_alone_even_after_an_early_stop(critic):
    # A target below any KL ends the policy's passes after the first step.
    algorithm = algorithm_of(policy_kwargs={"critic": critic}, target_kl=1e-12, n_epochs=3)
    again = algorithm_of(policy_kwargs={"critic": critic}, target_kl=1e-12, n_epochs=3, critic_epochs=2)
    again.policy.load_state_dict(algorithm.policy.state_dict())
    again.rollout_buffer = copy.deepcopy(algorithm.rollout_buffer)
    for each in (algorithm, again):
        np.random.seed(0)
        each.train()
    of_policy, of_critic = moved(weights(algorithm.policy), weights(again.policy))
    assert of_policy == 0 and of_critic > 0


def test_values_stay_within_their_bounds_and_begin_in_the_middle():
    outputs = torch.tensor([-50.0, 0.0, 50.0])
    for loss in ("squared", "cross_entropy"):
        values = ValueBounds(-1.0, 3.0, loss).values(outputs)
        assert values[1] == 1.0 and -1 <= values[0] < -0.9 and 2.9 < values[2] <= 3
    # BPCO: V = low + (high - low) (1/2 + atan(z) / pi).
    assert ValueBounds(0.0, 1.0).values(torch.tensor([1.0])).item() == pytest.approx(0.75)
    policy = algorithm_of(policy_kwargs={"value_range": (0.0, 50.0)}).policy
    assert policy.value_bounds == ValueBounds(0.0, 50.0, "squared")


def test_gradient_of_the_cross_entropy_is_that_of_a_bernoulli():
    outputs, returns = torch.tensor([0.3, -1.2, 2.0], requires_grad=True), torch.tensor([1.0, 0.0, 0.25])
    bounds = ValueBounds(0.0, 1.0, "cross_entropy")
    bounded_value_loss(bounds.shares(bounds.values(outputs)), returns).sum().backward()
    torch.testing.assert_close(outputs.grad, outputs.detach().sigmoid() - returns)
    assert torch.isfinite(bounded_value_loss(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]))).all()


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_bounded_critic_learns_the_returns(loss):
    policy_kwargs = {"value_range": (0.0, 20.0), "value_loss": loss, "critic_lr_factor": 20.0}
    algorithm = algorithm_of(policy_kwargs=policy_kwargs, critic_epochs=30, value_gae_lambda=1.0, vf_coef=1.0)
    batch = next(algorithm.rollout_buffer.minibatches())

    def error():
        with torch.no_grad():
            values = algorithm.policy.predict_values(batch.observations).squeeze(1)
        return float((values - batch.returns).square().mean())

    before = error()
    algorithm.train()
    assert error() < 0.5 * before


@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_returns_that_leave_the_range_by_more_than_rounding_are_named(scale):
    algorithm = algorithm_of(policy_kwargs={"value_range": (-3 * scale, scale)})
    for beyond, is_refused in ((3e-4, False), (5e-4, True)):
        for returns in ([-(3 + beyond) * scale, 0.0], [0.0, (1 + beyond) * scale]):
            algorithm.rollout_buffer = SimpleNamespace(returns=np.array(returns))
            words = rf"value_range is \[-{3 * scale:g}, {scale:g}\], but the values' targets go from .* widen it"
            with pytest.raises(ConfigError, match=words) if is_refused else nullcontext():
                algorithm._check_targets()


def test_explained_variance_of_returns_is_not_flattered_by_the_values():
    algorithm = algorithm_of(gae_lambda=0.0)
    buffer = algorithm.rollout_buffer
    buffer.replies.values = torch.randn(buffer.replies.response_mask.shape)
    buffer.compute_returns_and_advantage()
    rows = np.split(buffer.episode_returns, np.cumsum([len(row) for row in buffer.replies.per_row("rewards")])[:-1])
    for returns, rewards in zip(rows, buffer.replies.per_row("rewards"), strict=True):
        expected = sum(algorithm.gamma**i * reward for i, reward in enumerate(rewards))
        assert returns[0] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    algorithm.train()
    logged = algorithm.logger.name_to_value
    assert logged["train/return_explained_variance"] < logged["train/explained_variance"]
