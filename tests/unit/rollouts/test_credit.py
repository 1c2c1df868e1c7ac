"""Rewards to go of critic-free algorithms against loops over conversations, and against PPO without a critic."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from conversing import algorithm_on_conversations, conversation_tokenizer, ending_often
from gymnasium import spaces
from rows import one_row, rows_of
from tiny import make_gpt2
from two_processes import in_two_processes

from rl4dialog.algorithms.on_policy.critic_free import GRPO, RLOO, Reinforce
from rl4dialog.algorithms.on_policy.ppo import PPO
from rl4dialog.functional.advantages import group_advantages, leave_one_out_advantages
from rl4dialog.rollouts.buffer import BaselineRolloutBuffer, GroupRolloutBuffer

SPACE, BETA = spaces.Discrete(10), 0.3
GROUPS = {0: [4, 1, 2, 2], 1: [1, 1, 3], 2: [2, 5]}  # numbers of turns: in each group, one goes on alone
BUFFERS = {
    "none": partial(BaselineRolloutBuffer, baseline="none", half_life=1.0),
    "batch": partial(BaselineRolloutBuffer, baseline="batch", half_life=1.0),
    "running": partial(BaselineRolloutBuffer, baseline="running", half_life=1.0),
    "rloo": partial(GroupRolloutBuffer, advantages_of=leave_one_out_advantages),
    "grpo": partial(GroupRolloutBuffer, advantages_of=group_advantages, scale="group"),
    "grpo of the batch": partial(
        GroupRolloutBuffer, advantages_of=partial(group_advantages, scale=False), scale="batch"
    ),
}


def conversations(rng):
    """Turns of conversations as lists of rows; a cut reply is a turn like others, and replies differ in length."""
    found = []
    for group, lengths in GROUPS.items():
        for n_turns in lengths:
            episode, rows = len(found), []
            for turn in range(n_turns):
                n = int(rng.integers(1, 5))
                numbers = {name: rng.normal(size=n).astype(np.float32) for name in ("task_rewards", "ref_log_probs")}
                numbers["unmasked_log_probs"] = rng.normal(size=n).astype(np.float32)
                numbers["values"], numbers["cut"] = rng.normal(size=n), np.full(n, float(turn == 1))
                rows.append(one_row([1], np.arange(n), episode, group, turn=turn, **numbers))
            found.append(rows)
    return found


def fill(buffer, talks):
    """Add turns as parallel environments deliver them, and compute advantages."""
    buffer.reset()
    for turn in range(max(map(len, talks))):
        for rows in talks:
            if turn < len(rows):
                buffer.add(copy.deepcopy(rows[turn]))
    buffer.compute_rewards(BETA)
    buffer.compute_returns_and_advantage()
    return {(row.episode, int(row.turn[0])): row for row in rows_of(buffer)}


def rewards_to_go(credit, talks, discount):
    """Returns of the tokens of each turn of each conversation, and their own KL penalties, by a loop."""
    task, penalty, to_go = {}, {}, {}
    for i, rows in enumerate(talks):
        for u, row in enumerate(rows):
            penalty[i, u] = BETA * (row.unmasked_log_probs - row.ref_log_probs)[0].double().numpy()
            task[i, u] = row.task_rewards[0].double().numpy()
    for i, u in task:
        for t in range(len(task[i, u])):
            here = task[i, u].sum() if credit == "turn" else (task[i, u] - penalty[i, u])[t:].sum()
            later = [
                discount ** (v - u) * (task[i, v] - (penalty[i, v] if credit == "token" else 0))
                for v in range(u + 1, len(talks[i]))
            ]
            to_go.setdefault((i, u), []).append(here + sum(map(np.sum, later)))
    return to_go, penalty


def expected_advantages(kind, credit, talks, earlier, discount=1.0):
    """Advantages of the tokens of each turn, and returns; ``earlier`` holds returns of earlier iterations by turn."""
    group_of = [rows[0].group.item() for rows in talks]
    to_go, penalty = rewards_to_go(credit, talks, discount)
    of_turn = {key: found[0] for key, found in to_go.items()}
    baselines, scales = {}, dict.fromkeys(of_turn, 1.0)
    for i, u in of_turn:
        everyone = [of_turn[j, v] for j, v in of_turn if v == u]
        group = [of_turn[j, v] for j, v in of_turn if v == u and group_of[j] == group_of[i]]
        others = [of_turn[j, v] for j, v in of_turn if v == u and group_of[j] == group_of[i] and j != i]
        compared_with = {"none": [0.0], "running": earlier.get(u, everyone), "batch": everyone, "rloo": others or group}
        baselines[i, u] = np.mean(compared_with.get(kind, group))
    differences = {key: of_turn[key] - baselines[key] for key in of_turn}
    if kind == "batch":
        scales = dict.fromkeys(of_turn, np.std([*differences.values()], ddof=1) + 1e-4)
    elif kind == "grpo of the batch":
        scales = dict.fromkeys(of_turn, np.std([*of_turn.values()], ddof=1) + 1e-4)
    elif kind == "grpo":
        for group in GROUPS:
            members = [key for key in of_turn if group_of[key[0]] == group]
            n_free = len(members) - len({u for _, u in members})
            scales |= dict.fromkeys(members, (sum(differences[key] ** 2 for key in members) / n_free) ** 0.5 + 1e-4)
    own = penalty if credit == "turn" else dict.fromkeys(penalty, 0.0)
    return {key: (np.array(to_go[key]) - own[key] - baselines[key]) / scales[key] for key in to_go}, of_turn


@pytest.mark.parametrize(("credit", "discount"), [("turn", None), ("turn", 0.6), ("token", None), ("token", 0.6)])
@pytest.mark.parametrize("kind", BUFFERS)
def test_advantages_are_those_of_a_loop_over_ragged_conversations(kind, credit, discount):
    rng = np.random.default_rng(0)
    arguments, earlier = {"gamma": 0.5, "gae_lambda": 0.5, "credit": credit, "turn_gamma": discount}, {}
    buffer = BUFFERS[kind](8, SPACE, SPACE, "cpu", **arguments)
    for _ in range(3):
        talks = conversations(rng)
        rows = fill(buffer, talks)
        expected, of_turn = expected_advantages(kind, credit, talks, earlier, 1.0 if discount is None else discount)
        assert rows.keys() == expected.keys() and len(rows) == sum(map(sum, GROUPS.values()))
        for key, advantages in expected.items():
            np.testing.assert_allclose(rows[key].advantages, advantages, rtol=1e-3, atol=1e-4)
        for (_, u), value in of_turn.items():
            earlier.setdefault(u, []).append(value)


def test_who_goes_on_alone_is_compared_with_nobody():
    rng = np.random.default_rng(1)
    talks = conversations(rng)
    rows = fill(BUFFERS["rloo"](8, SPACE, SPACE, "cpu", credit="turn"), talks)
    penalties = BETA * (talks[0][3].unmasked_log_probs - talks[0][3].ref_log_probs)[0].numpy()
    np.testing.assert_allclose(rows[0, 3].advantages, -penalties, rtol=1e-5)
    assert abs(rows[0, 1].advantages).max() > 0.1


@pytest.mark.parametrize("kind", ["batch", "running", "grpo of the batch"])
def test_two_processes_compare_as_one(kind, tmp_path):
    talks = conversations(np.random.default_rng(3))
    parts = talks[: len(GROUPS[0])], talks[len(GROUPS[0]) :]

    def advantages(some):
        rows = fill(BUFFERS[kind](8, SPACE, SPACE, "cpu", credit="turn"), some)
        return {key: row.advantages for key, row in rows.items()}

    found = in_two_processes(lambda number: advantages(parts[number]), tmp_path)
    for key, expected in advantages(talks).items():
        np.testing.assert_allclose({**found[0], **found[1]}[key], expected, rtol=1e-5, atol=1e-6)


def test_means_of_turns_are_restored():
    buffer = BUFFERS["running"](8, SPACE, SPACE, "cpu", credit="turn")
    fill(buffer, conversations(np.random.default_rng(2)))
    again = BUFFERS["running"](8, SPACE, SPACE, "cpu", credit="turn")
    again.load_state_dict(buffer.state_dict())
    assert again.means.means == buffer.means.means and set(buffer.means.means) == {f"turn {u}" for u in range(5)}


def weights_after(algorithm, **kwargs):
    """Parameters of the language model after two iterations on conversations with a KL penalty."""
    torch.manual_seed(0)
    model = ending_often(make_gpt2(conversation_tokenizer()))
    trained = algorithm_on_conversations(algorithm, model, **kwargs)
    for parameter in trained.policy.critic_parameters():
        parameter.data.zero_()  # as the head of a new critic is
    trained.set_random_seed(0)  # a new critic has drawn random numbers
    trained.learn(2 * trained.timesteps_per_iteration)
    return [parameter.detach().clone() for parameter in trained.policy.actor_parameters()]


@pytest.mark.parametrize("credit", ["turn", "token"])
def test_reinforce_without_baseline_is_ppo_without_a_critic(credit):
    """The values of PPO's new critic are 0, and its loss has no weight."""
    same = {"n_epochs": 2, "batch_size": 40, "credit": credit, "normalize_advantage": True}
    ppo = weights_after(PPO, vf_coef=0.0, gamma=1.0, gae_lambda=1.0, **same)
    reinforce = weights_after(Reinforce, baseline="none", critic="none", **same)
    for of_ppo, of_reinforce in zip(ppo, reinforce, strict=True):
        torch.testing.assert_close(of_ppo, of_reinforce, rtol=0, atol=1e-6)
    other = weights_after(Reinforce, baseline="batch", critic="none", **same)
    assert any((a - b).abs().max() > 1e-5 for a, b in zip(reinforce, other, strict=True))


@pytest.mark.parametrize("algorithm", [RLOO, GRPO, Reinforce])
def test_total_rewards_are_the_default(algorithm):
    model = ending_often(make_gpt2(conversation_tokenizer()))
    trained = algorithm_on_conversations(algorithm, model, n_envs=4, critic="none")
    assert trained.rollout_buffer.credit == trained.credit == "conversation"
