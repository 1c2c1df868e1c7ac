"""Losses and gradients with values of replies, and of CHAI, against loops over turns, one unpadded pass for each."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from rl4dialog.features.offline.algorithms.bc import MCReturns
from rl4dialog.features.offline.algorithms.chai import CHAI, turn_numbers
from rl4dialog.features.offline.algorithms.q_learning import CQL, ILQL
from rl4dialog.features.offline.losses import sampled_conservative_penalty
from rl4dialog.functional.advantages import Turns
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
from tests.tiny import make_gpt2, reply_log_probs

GAMMA = 0.8


@dataclass
class ReplyTurn:
    """A turn of the agent; without a reply, the state after a conversation that was cut."""

    before: list[int]
    reply: list[int]
    reward: float
    logged: bool


def turns_of(learner):
    """All conversations, turn by turn."""
    batch = learner.log.replies(np.arange(len(learner.log)))
    conversations = [[] for _ in range(len(learner.log))]
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


def expected_loss(learner, name, features):
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
                target = turn.reward + (0.0 if is_last else GAMMA * float(v[u + 1].detach()))
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


@pytest.mark.parametrize(("name", "features", "rows"), covering(CASES, ("last", "mean"), ROWS_AND_CRITICS))
def test_gradient_is_that_of_a_loop(name, features, rows, tmp_path):
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


def test_penalty_of_chai_is_a_loop():
    random = torch.Generator().manual_seed(0)
    q, log_mu, others, log_u = (torch.randn(3, 4, generator=random) for _ in range(4))
    logged = torch.randn(3, generator=random)
    found = sampled_conservative_penalty(q, log_mu, others, log_u, logged)
    for i in range(3):
        total = 0.0
        for k in range(4):
            total += math.exp(q[i, k]) / math.exp(log_mu[i, k]) + math.exp(others[i, k]) / math.exp(log_u[i, k])
        assert found[i].item() == pytest.approx(math.log(total / 8) - logged[i].item(), rel=1e-5)


def test_penalty_of_chai_estimates_the_sum_over_all_actions():
    """The mean of the estimate over all pairs of one candidate and one random action is the whole sum."""
    values = torch.tensor([0.5, -1.0, 2.0, 0.0])
    mu, u = torch.tensor([0.6, 0.1, 0.1, 0.2]), torch.full((4,), 0.25)
    mean = 0.0
    for a in range(4):
        for b in range(4):
            args = (x.view(1, 1) for x in (values[a], mu[a].log(), values[b], u[b].log()))
            mean += float(mu[a] * u[b] * sampled_conservative_penalty(*args, torch.zeros(1)).exp())
    assert mean == pytest.approx(float(values.exp().sum()), rel=1e-5)


def expected_loss_of_chai(learner, cql_weight, temperature):
    """The loss of a minibatch of all conversations, with the candidates and random replies that were drawn."""
    policy, n_replies = learner.policy, len(learner._log_replies)
    model, losses = policy.language_model, []

    def values_of(heads, before, reply):
        state = hidden_states(policy, before, reply)[1 if heads is policy.heads else 2][-1:]
        return torch.stack([head(state)[0, 0] for head in heads.q])

    for number, conversation in enumerate(turns_of(learner)):
        for u, turn in enumerate(conversation):
            if not turn.logged:
                continue
            target = turn.reward
            if u + 1 < len(conversation):
                before = conversation[u + 1].before
                replies = learner._candidates[number, u + 1].replies
                target += GAMMA * max(float(values_of(policy._target_heads, before, ids).min()) for ids in replies)
            q = values_of(policy.heads, turn.before, turn.reply)
            candidates, random = learner._candidates[number, u], learner._random[number, u]
            loss = ((q - target) ** 2).sum()
            for j in range(len(q)):
                terms = []
                for ids in candidates.replies:
                    log_mu = reply_log_probs(model, turn.before, ids).sum()
                    terms.append(values_of(policy.heads, turn.before, ids)[j] / temperature - log_mu.detach())
                for ids in random:
                    terms.append(values_of(policy.heads, turn.before, ids)[j] / temperature + math.log(n_replies))
                inner = torch.stack(terms).logsumexp(0) - math.log(len(terms))
                loss = loss + cql_weight * (inner - q[j] / temperature)
            losses.append(loss)
    return torch.stack(losses).mean()


@pytest.mark.parametrize(("join_turns", "critic"), ROWS_AND_CRITICS)
def test_gradient_of_chai_is_that_of_a_loop(join_turns, critic, tmp_path):
    model = make_gpt2(marked_tokenizer())
    log = make_log(tmp_path, model, dialogues(of_first=0.25), join_turns=join_turns)
    settings = {"gamma": GAMMA, "cql_weight": 0.3, "cql_temperature": 2.0, "n_candidates": 2}
    policy = {"critic": critic, "target": "heads" if critic == "shared" else "model"}
    learner = make_learner(CHAI, log, model, reranked=True, policy=policy, **settings)
    part_trunks(learner.policy)
    batch = whole_batch(learner)
    learner.micro_batch_size, learner.split_by_length = 2, False
    assert_gradients(learner, expected_loss_of_chai(learner, 0.3, 2.0), [batch], learner._parts(batch))
    assert all(p.grad is None for p in learner.policy.language_model.parameters())


def test_training_with_chai_leaves_the_language_model_as_it_is(tmp_path):
    model = make_gpt2(marked_tokenizer())
    learner = make_learner(CHAI, make_log(tmp_path, model), model, reranked=True, n_candidates=2)
    before = {name: tensor.clone() for name, tensor in learner.policy.state_dict().items()}
    learner.learn(2 * learner.timesteps_per_iteration)
    changed = {name for name, tensor in learner.policy.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed and not any(name.startswith("_policy_model") for name in changed)
    assert any(name.startswith("_value_head.trunk") for name in changed)
    assert any(name.startswith("_target_heads.trunk") for name in changed)


def test_every_state_of_a_minibatch_of_chai_has_candidates(tmp_path):
    model = make_gpt2(marked_tokenizer())
    learner = make_learner(CHAI, make_log(tmp_path, model), model, reranked=True)
    batch = whole_batch(learner)
    states = turn_numbers(batch, Turns.of(batch))
    assert len(states) == 9  # 8 replies, and the state after the conversation that was cut
    assert all(len(learner._candidates[state].replies) == 5 == len(learner._random[state]) for state in states)
