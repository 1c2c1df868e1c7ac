"""Losses and gradients with values of replies against loops over turns, one unpadded pass for each state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl4dialog.algorithms.offline.cql import CQL
from rl4dialog.algorithms.offline.ilql import ILQL
from rl4dialog.algorithms.offline.mc_returns import MCReturns
from tests.covering import covering
from tests.offline import (
    assert_gradients,
    dialogues,
    hidden_states,
    make_learner,
    make_log,
    marked_tokenizer,
    part_trunks,
    whole_batch,
)
from tests.tiny import make_gpt2

GAMMA = 0.8


@dataclass
class ReplyTurn:
    """A turn of the agent; without a reply, the state after a conversation that was cut."""

    before: list[int]
    reply: list[int]
    reward: float
    logged: bool


def turns_of(learner: Any) -> list[list[ReplyTurn]]:
    """All conversations, turn by turn."""
    batch = learner.log.replies(np.arange(len(learner.log)))
    conversations: list[list[ReplyTurn]] = [[] for _ in range(len(learner.log))]
    for row in range(len(batch)):
        prompt = batch.prompt_ids[row][batch.prompt_mask[row]].tolist()
        response = batch.response_ids[row][batch.token_mask[row]].tolist()
        for i in range(len(response)):
            if not batch.response_mask[row, i]:
                continue
            turns = conversations[int(batch.episode[row])]
            begins = i == 0 or not batch.response_mask[row, i - 1] or batch.turn[row, i] != batch.turn[row, i - 1]
            if begins:
                turns.append(ReplyTurn(prompt + response[:i], [], 0.0, bool(batch.loss_weights[row, i])))
            turns[-1].reply.append(response[i])
            turns[-1].reward += float(batch.rewards[row, i])
    return conversations


def expected_loss(learner: Any, name: str, features: str) -> torch.Tensor:
    """The loss of a minibatch of all conversations."""
    policy = learner.policy
    heads, lagging = policy.heads, policy._target_heads
    values, imitation = [], []
    for conversation in turns_of(learner):
        v, q, q_lagging = [], [], []
        for turn in conversation:
            logits, *of_values = hidden_states(policy, turn.before, turn.reply)
            v.append(heads(of_values[0][:1])[0])
            state, state_lagging = (each[-1] if features == "last" else each[1:].mean(dim=0) for each in of_values)
            q.append(torch.stack([head(state[None])[0, 0] for head in heads.q]))
            q_lagging.append(torch.stack([head(state_lagging[None])[0, 0] for head in lagging.q]).min().detach())
            if turn.logged:
                imitation += [-row.log_softmax(-1)[id] for row, id in zip(logits, turn.reply, strict=False)]
        for u, turn in enumerate(conversation):
            if not turn.logged:
                continue
            is_last = u + 1 == len(conversation)
            if name == "ilql":
                target = turn.reward + (0.0 if is_last else GAMMA * float(v[u + 1]))
                v_loss = abs(0.7 - float(q_lagging[u] < v[u])) * (q_lagging[u] - v[u]) ** 2
            elif name == "sarsa":
                following = 0.0 if is_last else float(q_lagging[u + 1] if conversation[u + 1].logged else v[u + 1])
                target = turn.reward + GAMMA * following
                v_loss = 0.5 * (q_lagging[u] - v[u]) ** 2
            else:
                target = sum(GAMMA**k * later.reward for k, later in enumerate(conversation[u:]))
                v_loss = 0.5 * (target - v[u]) ** 2
            values.append(((q[u] - target) ** 2).sum() + 2.0 * v_loss)
    return torch.stack(values).mean() + 0.5 * torch.stack(imitation).mean()


CASES = {"ilql": (ILQL, {}), "sarsa": (CQL, {"backup": "data", "cql_weight": 0.0}), "mc": (MCReturns, {})}


ROWS_AND_CRITICS = ((True, "shared"), (False, "shared"), (True, "separate"))


@pytest.mark.parametrize(
    ("name", "features", "rows"),
    covering(
        CASES,
        ("last", "mean"),
        ROWS_AND_CRITICS,
        now=[
            *zip(CASES, ("last", "mean", "last"), ROWS_AND_CRITICS, strict=True),
            *zip(CASES, ("mean", "last", "mean"), ROWS_AND_CRITICS[::-1], strict=True),
        ],
    ),
)
def test_gradient_is_that_of_a_loop(name: str, features: str, rows: tuple[bool, str], tmp_path: Path) -> None:
    (algorithm, args), (join_turns, critic) = CASES[name], rows
    model = make_gpt2(marked_tokenizer())
    log = make_log(tmp_path, model, dialogues(of_first=0.25), join_turns=join_turns)
    policy = {"critic": critic, "target": "heads" if critic == "shared" else "model", "features": features}
    weights = {"gamma": GAMMA, "policy_weight": 0.5, "v_weight": 2.0}
    learner = make_learner(algorithm, log, model, reranked=True, policy=policy, **weights, **args)
    part_trunks(learner.policy)
    whole = whole_batch(learner)
    learner.micro_batch_size, learner.split_by_length = 2, False
    assert_gradients(learner, expected_loss(learner, name, features), [whole], learner._parts(whole))
