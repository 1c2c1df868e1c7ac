"""Updates of stable-baselines3 and sb3-contrib in two processes, which see the numbers of both."""

import numpy as np
import pytest
import stable_baselines3
import torch
from collected import collected, make
from two_processes import in_two_processes

from rl4dialog.algorithms.on_policy.ppo import A2C
from rl4dialog.algorithms.on_policy.rollout_mixin import with_rollouts
from rl4dialog.algorithms.on_policy.trpo import TRPO
from rl4dialog.functional.distributed import n_processes


class Own(stable_baselines3.A2C):
    """An algorithm that a user has made."""

    data_parallel = True


OF_A2C = {"learning_rate": 1e-2, "ent_coef": 0.1, "max_grad_norm": 0.1, "normalize_advantage": True}
OF_TRPO = {"cg_max_steps": 4, "cg_damping": 0.5, "n_critic_updates": 2, "batch_size": 16}


def updated(algorithm, replies, rows_of, **settings):
    """Weights of the actor, and of the actor and the critic, after an update on rows of replies, and what it logs."""
    torch.manual_seed(n_processes())
    trained = make(algorithm, critic="separate", **settings)
    if rows_of:
        trained._setup_learn(10**6)
        buffer = trained.rollout_buffer
        buffer.reset()
        buffer.add(replies[torch.tensor(rows_of)])
        buffer.values, buffer.returns = buffer._numbers("values", "returns")
        trained.train()
    parts = trained.policy.actor_parameters(), trained.policy.parameters()
    actor, every = (torch.cat([weights.detach().flatten() for weights in part]).numpy() for part in parts)
    logged = {name: float(value) for name, value in trained.logger.name_to_value.items()} if rows_of else {}
    logged.pop("train/explained_variance", None)  # of the own replies
    return actor, every, logged


@pytest.mark.parametrize(
    ("algorithm", "settings", "in_two", "rows"),
    [
        (A2C, OF_A2C, {}, range(12)),
        (A2C, {**OF_A2C, "target_kl": 0.2}, {}, range(12)),
        (with_rollouts(Own), OF_A2C, {}, range(12)),
        (TRPO, {**OF_TRPO, "batch_size": 10**6}, {}, range(12)),
        # All replies are equal, so that a share of them is as good as all, and minibatches are.
        (TRPO, OF_TRPO, {"sub_sampling_factor": 2}, [0] * 12),
    ],
)
def test_two_processes_update_as_one(algorithm, settings, in_two, rows, tmp_path):
    assert algorithm.data_parallel
    whole, rows = collected(algorithm, n_envs=4, critic="separate", **settings).rollout_buffer.replies, list(rows)
    actor_before, before, _ = updated(algorithm, whole, [], **settings)
    actor, one, logged = updated(algorithm, whole, rows, **settings)
    assert min(np.abs(actor - actor_before).max(), np.abs(one - before).max()) > 1e-3

    def work(number):
        return updated(algorithm, whole, rows[:4] if number == 0 else rows[4:], **settings, **in_two)

    first, second = in_two_processes(work, tmp_path)
    assert (first[1] == second[1]).all()
    np.testing.assert_allclose(first[1], one, rtol=0, atol=1e-5)
    assert first[2] == second[2] == pytest.approx(logged, rel=1e-4, abs=1e-6)
