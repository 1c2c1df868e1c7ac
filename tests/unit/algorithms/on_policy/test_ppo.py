"""PPO's update: when it stops, how large its steps are, and what it logs."""

import re

import pytest
import torch
from collected import collected, make
from pages import text_of
from rows import one_row
from runs import make_config
from two_processes import in_two_processes

from rl4dialog.algorithms.on_policy.ppo import A2C, PPO
from rl4dialog.algorithms.on_policy.trpo import TRPO
from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.core.yaml_loader import parse_yaml
from rl4dialog.functional.losses import ClipRange
from rl4dialog.functional.replies import Replies, ReplySamples
from rl4dialog.rollouts.kl_controllers import AdaptiveKLController
from rl4dialog.training.building.components import check_components


class FarFromTheRollout(PPO):
    """Says that the policy has moved so far as is written down, whatever it did."""

    kls: list[float]

    def _terms(self, batch, *args):
        terms = super()._terms(batch, *args)
        return {**terms, "approx_kl": torch.full_like(terms["approx_kl"], self.kls.pop(0))}


def n_steps_taken(trained):
    """Optimizer steps of one update."""
    n_taken = []
    step = trained.step_guard.step

    def counted(*args):
        n_taken.append(1)
        return step(*args)

    trained.step_guard.step = counted
    trained.train()
    return len(n_taken)


@pytest.mark.parametrize(
    ("target_kl", "n_steps"), [(0.1, 2), (None, 5), (0.2, 5)], ids=["too far", "no target", "far enough"]
)
def test_update_stops_before_a_step_where_it_is_half_as_far_again_as_the_target(target_kl, n_steps):
    trained = collected(FarFromTheRollout, target_kl=target_kl, n_epochs=5, batch_size=10**6)
    trained.kls = [0.02, 0.149, 0.151, 0.0, 0.25]
    left = 5 - n_steps - 1 if target_kl == 0.1 else 0
    assert n_steps_taken(trained) == n_steps
    assert len(trained.kls) == left and trained._n_updates == 5 - left
    logged = dict(trained.logger.name_to_value)  # which says 0 of what is not in it
    assert logged["train/n_updates"] == trained._n_updates and logged["train/skipped_steps"] == 0
    assert logged["train/first_approx_kl"] == pytest.approx(0.02)
    assert logged["train/approx_kl"] == pytest.approx(0.151 if left else 0.25)


@pytest.mark.parametrize("algorithm", [PPO, A2C, TRPO])
def test_learning_rate_follows_its_schedule(algorithm):
    kwargs = {"batch_size": 10**6} if algorithm is PPO else {}
    trained = collected(algorithm, learning_rate=lambda remaining: 0.01 * remaining, **kwargs)
    for remaining in (1.0, 0.25):
        trained._current_progress_remaining = remaining
        trained.train()
        assert {group["lr"] for group in trained.policy.optimizer.param_groups} == {0.01 * remaining}
        assert trained.logger.name_to_value["train/learning_rate"] == 0.01 * remaining


def test_clip_ranges_follow_their_schedules():
    names = {"clip_range": 0.4, "clip_range_high": 0.6, "clip_range_vf": 0.2}
    schedules = {name: lambda remaining, start=start: start * remaining for name, start in names.items()}
    trained = collected(batch_size=10**6, n_epochs=1, **schedules)
    trained._current_progress_remaining = 0.5
    seen = []
    terms = trained._terms
    trained._terms = lambda batch, *ranges: seen.append(ranges) or terms(batch, *ranges)
    trained.train()
    assert seen == [((0.2, 0.3),)]
    logged = trained.logger.name_to_value
    assert [logged[f"train/{name}"] for name in names] == [0.2, 0.3, 0.1]
    with pytest.raises(ConfigError, match=r"clip_range_high is 0\.1, below"):
        make(clip_range_high=0.1)


def test_critic_is_trained_on_truncated_replies_too():
    grads = []
    for mask_truncated in (False, True):
        trained = collected(batch_size=10**6, n_epochs=1, mask_truncated=mask_truncated, max_grad_norm=1e9)
        cut = trained.rollout_buffer.replies.flat("cut")
        assert 0 < cut.mean() < 1
        trained.train()
        grads.append([parameter.grad for parameter in trained.policy.critic_parameters()])
        grads.append([parameter.grad for parameter in trained.policy.actor_parameters()])
    for one, other in zip(grads[0], grads[2], strict=True):
        torch.testing.assert_close(one, other)
    assert any(not torch.allclose(one, other) for one, other in zip(grads[1], grads[3], strict=True))


def reward_of_prompt(previous, action, current, done, meta):
    return float(done and meta["n"] % 2)


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_warmup_trains_only_the_critic(critic):
    controller = AdaptiveKLController(0.1, target_kl=10.0)
    settings = {"learning_rate": 1e-3, "ent_coef": 0.1, "n_epochs": 8, "kl_controller": controller}
    env_kwargs = {"reward_parts": [RewardPart("prompt", 1.0, reward_of_prompt)]}
    size = {"n_steps": 128 if critic == "separate" else 16, "batch_size": 64}
    trained = make(critic=critic, critic_warmup_iters=6, env_kwargs=env_kwargs, **size, **settings)
    actor, head = ([p.detach().clone() for p in trained.policy.actor_parameters()], trained.policy._value_head.output)
    _, callback = trained._setup_learn(10**6)
    explained = []
    for _ in range(6):
        trained.collect_rollouts(trained.env, callback, trained.rollout_buffer, trained.n_steps)
        trained.train()
        explained.append(trained.logger.name_to_value["train/explained_variance"])
    now = list(trained.policy.actor_parameters())
    assert all(torch.equal(one, other) for one, other in zip(actor, now, strict=True))
    assert not any(parameter in trained.policy.optimizer.state for parameter in now)
    assert head.weight.abs().max() > 0 and controller.coeff == 0.1
    if critic == "separate":  # the states of a model without training explain little
        assert explained[0] == 0 and min(explained[-2:]) > 0.3, explained
    trained.collect_rollouts(trained.env, callback, trained.rollout_buffer, trained.n_steps)
    trained.train()
    assert not any(torch.equal(one, other) for one, other in zip(actor[:2], now[:2], strict=True))
    assert controller.coeff < 0.1


def test_supervised_loss_is_added_with_its_weight():
    def squares(policy, batch_size):
        assert batch_size == 3
        total = sum(parameter.square().sum() for parameter in policy.actor_parameters())
        return total

    grads = []
    for coef in (0.0, 0.25):
        settings = {"supervised_coef": coef, "supervised_batch_size": 3 if coef else None, "supervised_loss": squares}
        trained = collected(batch_size=10**6, n_epochs=1, max_grad_norm=1e9, learning_rate=0.0, **settings)
        trained.train()
        grads.append([parameter.grad for parameter in trained.policy.actor_parameters()])
    for without, added, parameter in zip(*grads, trained.policy.actor_parameters(), strict=True):
        torch.testing.assert_close(added - without, 0.5 * parameter.detach(), rtol=1e-4, atol=1e-5)
    assert trained.logger.name_to_value["train/supervised_loss"] == pytest.approx(float(squares(trained.policy, 3)))


def long_and_short(n_short):
    """One reply to a long prompt and others to short ones, of two tokens each."""
    return ReplySamples(Replies.from_ids([[1] * n for n in [500, *[3] * n_short]], [[5, 6]] * (1 + n_short)))


def test_minibatch_is_parted_by_length_where_that_saves_padding():
    sizes = {}
    for split_by_length in (True, False):
        trained = make(split_by_length=split_by_length)
        parts = trained._parts(long_and_short(4))
        sizes[split_by_length] = [(len(part.observations["prompt_ids"]), weight) for part, weight in parts]
    assert sizes == {True: [(1, 1.0), (4, 1.0)], False: [(5, 1.0)]}
    by_two = make(micro_batch_size=2)
    assert [len(part.observations["prompt_ids"]) for part, _ in by_two._parts(long_and_short(4))] == [1, 2, 2]


def test_processes_in_lockstep_make_as_many_passes_and_the_last_for_nothing(tmp_path):
    def work(number):
        trained = make(micro_batch_size=1)
        trained.policy.lockstep = True
        parts = trained._parts(long_and_short(2 * number))
        return [(len(part.observations["prompt_ids"]), weight) for part, weight in parts]

    first, second = in_two_processes(work, tmp_path)
    assert first == [(1, 1.0), (1, 0.0), (1, 0.0)] and second == [(1, 1.0)] * 3


@pytest.mark.parametrize("ent_coef", [0.0, 0.5])
def test_terms_of_the_loss_are_those_of_each_token(ent_coef):
    trained = make(ent_coef=ent_coef)
    samples = ReplySamples(
        one_row([1], [1, 1, 1], log_probs=torch.zeros(3), advantages=[2.0, -1.0, -1.0], loss_weights=torch.ones(3))
    )
    ratio, entropy = torch.tensor([1.0, 1.0, 0.5]), torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    terms = trained._policy_terms(ratio.log(), entropy, samples, ClipRange(0.0, 0.0))
    assert terms["clip_fraction"].tolist() == [0.0, 0.0, 1.0], "what lies just on the limit is not clipped"
    torch.testing.assert_close(terms["approx_kl"], ratio - 1 - ratio.log())
    torch.testing.assert_close(terms["policy_gradient_loss"], torch.tensor([-2.0, 1.0, 1.0]))
    torch.testing.assert_close(terms["entropy_loss"], -entropy)
    torch.testing.assert_close(terms["loss"], torch.tensor([-2.0, 1.0, 1.0]) - ent_coef * entropy)
    assert terms["loss"].requires_grad == bool(ent_coef), "nothing goes backwards through an entropy without weight"


ROWS = re.findall(r"^\| ([^|(]+) \([^|]+\) \| `(\{id: .*\})` \|$", text_of("docs/algorithms.md"), re.M)


@pytest.mark.parametrize(("name", "block"), ROWS)
def test_settings_of_a_paper_are_a_valid_config(name, block, tmp_path):
    alg = parse_yaml(block, name)
    config = make_config(tmp_path, alg__id=alg["id"], alg__kl_div=alg["kl_div"], env__n_envs=4)
    config["alg"]["args"] |= alg["args"]
    check_components(parse_config(config, name))
