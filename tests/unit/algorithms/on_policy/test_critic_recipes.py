"""What trains the critic apart from the policy: a rate and passes of its own."""

import copy

import numpy as np
import pytest
import torch
from collected import collected
from learn import ALGORITHMS
from tiny import make_llama, make_tokenizer

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
