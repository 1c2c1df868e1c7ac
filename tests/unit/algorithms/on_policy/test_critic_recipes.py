"""What trains the critic apart from the policy: bounds, a rate and passes of its own."""

import copy
import json
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from collected import collect, collected, make
from learn import ALGORITHMS
from tiny import make_llama, make_tokenizer
from two_processes import in_two_processes

from rl4dialog.algorithms.on_policy.ppo import PPO
from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.losses import bounded_value_loss
from rl4dialog.policies.heads import ValueBounds
from rl4dialog.policies.saving import CRITIC_FILE, states_beside, weights_hash

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


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_tether_groups_conversations_and_learns_its_share(critic):
    settings = {"policy_kwargs": {"critic": critic}, "baseline": "tether", "n_generations": 2, "value_gae_lambda": 1.0}
    algorithm = algorithm_of(**settings, vf_coef=5.0, critic_epochs=2)
    shares = []
    for _ in range(4):
        replies = algorithm.rollout_buffer.replies
        assert set(np.bincount(replies.group[np.unique(replies.episode, return_index=True)[1]])) <= {0, 2}
        algorithm.train()
        collect(algorithm, reset=False)
        shares.append(algorithm.logger.name_to_value["rollout/tether_rho"])
    assert 0 < shares[-1] < 0.2
    state = json.loads(json.dumps(algorithm.rollout_buffer.state_dict()))
    again = algorithm_of(**settings)
    again.rollout_buffer.load_state_dict(state)
    assert again.rollout_buffer.state_dict() == state


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"baseline": "tether"}, "tether compares conversations about one prompt; set alg.args.n_generations"),
        ({"baseline": "tether", "n_generations": 2}, "but alg.args.gamma is 0.99; set 1"),
        ({"baseline": "tether", "n_generations": 3, "gamma": 1.0}, "n_generations is 3, which does not divide"),
        ({"baseline": "tether", "n_generations": 2, "gamma": 1, "turn_gamma": 0.9}, "alg.args.turn_gamma is 0.9"),
        ({"baseline": "evpo", "gae_lambda": 0.95}, "alg.args.gae_lambda has no effect with alg.args.baseline: evpo"),
        ({"baseline": "evpo", "gae_horizon": 1.0}, "alg.args.gae_horizon has no effect with alg.args.baseline: evpo"),
    ],
)
def test_baselines_say_what_they_need(arguments, words):
    with pytest.raises(ConfigError, match=words):
        PPO.check_arguments(arguments, 4)
    with pytest.raises(ConfigError, match=words):
        make(PPO, n_envs=4, **arguments)


def test_processes_mix_one_baseline(tmp_path):
    def work(number):
        algorithm = algorithm_of(baseline="tether", n_generations=2, seed=3 + number)
        return algorithm.rollout_buffer.state_dict()["rho"], algorithm.rollout_buffer.replies.n_tokens

    (rho, _), (same, _) = in_two_processes(work, tmp_path)
    assert rho == same != 0


def pair_of_critics(critic="separate", **kwargs):
    """An algorithm with two critics that differ, with a rollout to train on."""
    algorithm = algorithm_of(policy_kwargs={"critic": critic, "n_critics": 2}, **kwargs)
    torch.manual_seed(0)
    with torch.no_grad():
        for head in algorithm.policy._critics:
            head.output.weight.normal_()
    collect(algorithm, reset=False)
    return algorithm


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_each_critic_learns_from_its_own_conversations(critic):
    algorithm = pair_of_critics(critic)
    policy, replies = algorithm.policy, algorithm.rollout_buffer.replies
    values = policy.critic_values(replies)
    assert values.shape == (2, replies.n_tokens) and not torch.allclose(values[0], values[1])
    torch.testing.assert_close(replies.flat("values"), values.mean(dim=0))
    of_token = replies.episode[replies.coordinates[0]] % 2
    errors = (values - replies.flat("returns")).square() * torch.stack([of_token == 0, of_token == 1])
    (algorithm.vf_coef * errors.sum() / replies.n_tokens).backward()
    expected = [parameter.grad.clone() for parameter in policy.critic_parameters()]

    algorithm.critic_epochs, algorithm.batch_size = 1, 10**6
    found = []
    algorithm.step_guard.step = lambda policy, _: found.extend(p.grad.clone() for p in policy.critic_parameters())
    algorithm._divide_replies()
    algorithm._train_critic(None)
    torch.testing.assert_close(found, expected)
    # A minibatch without conversations of a critic leaves this critic as it is.
    policy.optimizer.zero_grad()
    one = algorithm.rollout_buffer._minibatch([0])
    algorithm._gradient(one, lambda part: {"loss": policy.predict_values(part.observations)[:, 0]})
    other = policy._critics[1 - int(replies.critic[0])]
    assert all(parameter.grad is None for parameter in other.trained_parameters())


def test_states_at_which_critics_agree_have_no_advantage():
    algorithm = pair_of_critics(agreement_mask=0.25, n_epochs=1)
    replies, found = algorithm.rollout_buffer.replies, []
    deviations = algorithm.policy.critic_values(replies).std(dim=0).detach().sort().values
    terms_of = algorithm._terms

    def spy(part, *args):
        found.append((algorithm.policy.critic_values(part.replies).std(dim=0), part.advantages))
        return terms_of(part, *args)

    algorithm._terms, algorithm.batch_size = spy, 10**6
    algorithm.train()
    for spread, advantages in found:
        assert ((advantages == 0) == (spread < np.quantile(deviations, 0.25))).all()
    n_masked = sum(int((advantages == 0).sum()) for _, advantages in found)
    assert n_masked == pytest.approx(0.25 * len(deviations), abs=1)
    assert algorithm.logger.name_to_value["train/critics_agree"] == n_masked / len(deviations)


def test_equal_critics_mask_nothing():
    algorithm = algorithm_of(policy_kwargs={"n_critics": 2}, agreement_mask=0.25)
    algorithm.train()
    assert algorithm.logger.name_to_value["train/critics_agree"] == 0
    replies = algorithm.rollout_buffer.replies
    assert replies.informative[replies.response_mask].all()


@pytest.mark.parametrize("settings", [{"agreement_mask": 0.25, "critic_warmup_iters": 9}, {}])
def test_nothing_is_masked_in_a_warmup_or_unless_wanted(settings):
    algorithm = pair_of_critics(**settings)
    algorithm._divide_replies()
    replies = algorithm.rollout_buffer.replies
    assert replies.informative is None and set(replies.critic.tolist()) == {0, 1}


def test_processes_train_the_same_critics(tmp_path):
    def work(number):
        # So small minibatches have conversations of one critic only, in one process or in both.
        algorithm = pair_of_critics(seed=3 + number, batch_size=2, critic_epochs=1, agreement_mask=0.25)
        algorithm.train()
        return weights_hash(algorithm.policy), set(algorithm.rollout_buffer.replies.critic.tolist())

    (weights_of, parts), (same, _) = in_two_processes(work, tmp_path)
    assert weights_of == same and parts == {0, 1}


def test_file_of_several_critics_numbers_all_but_the_first():
    one, two = (algorithm_of(policy_kwargs={"n_critics": n}).policy for n in (1, 2))
    names, more = (set(states_beside(policy)[CRITIC_FILE]) for policy in (one, two))
    assert names < more and len(more) == 2 * len(names)
    assert all(name.startswith("_more_critics.2.") for name in more - names)
