"""TRPO's Fisher-vector products on a share of the replies."""

import pytest
import torch
from collected import collected

from rl4dialog.algorithms.on_policy.trpo import TRPO

SETTINGS = {"cg_max_steps": 4, "cg_damping": 0.5, "n_critic_updates": 1, "target_kl": 0.02}


def updated(factor, rows=None):
    """TRPO after an update; ``rows`` chooses the rows of the rollout."""
    trained = collected(TRPO, sub_sampling_factor=factor, normalize_advantage=False, **SETTINGS)
    if rows is not None:
        trained.rollout_buffer._added = [trained.rollout_buffer.replies[torch.tensor(rows)]]
    trained.train()
    return trained


def weights(trained):
    return torch.cat([parameter.detach().flatten() for parameter in trained.policy.actor_parameters()])


def test_share_of_equal_replies_gives_the_step_of_all():
    start = weights(collected(TRPO, **SETTINGS))
    one, other = (weights(updated(factor, rows=[0] * 12)) for factor in (1, 4))
    assert (one - start).abs().max() > 1e-4
    torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)


def test_share_of_different_replies_gives_another_step_within_the_trust_region():
    one, other = (updated(factor) for factor in (1, 4))
    assert not torch.allclose(weights(one), weights(other), atol=1e-5)
    for trained in (one, other):
        assert 0 < trained.logger.name_to_value["train/kl_divergence_loss"] < SETTINGS["target_kl"]


@pytest.mark.parametrize(("factor", "share"), [(2, 0.5), (4, 0.25), (10**6, 0.0)])
def test_share_has_about_the_chosen_number_of_tokens(factor, share):
    trained = collected(TRPO, n_steps=64, sub_sampling_factor=factor, **SETTINGS)
    seen = []
    get_distribution = trained.policy.get_distribution

    def recorded(observations):
        distribution = get_distribution(observations)
        seen.append(distribution.distribution.logits)
        return distribution

    trained.policy.get_distribution = recorded
    kl = trained._kl_of_some_replies()
    assert kl.item() == pytest.approx(0, abs=1e-7)
    longest = int(trained.rollout_buffer.replies.response_mask.sum(dim=1).max())
    assert 0 < len(seen[0]) <= share * trained.rollout_buffer.n_tokens + longest
    gradients = torch.autograd.grad(kl, list(trained.policy.actor_parameters()), allow_unused=True)
    assert max(float(g.abs().max()) for g in gradients if g is not None) < 1e-6
