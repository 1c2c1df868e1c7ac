"""CHAI's penalty and gradients against loops over single replies."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from rl4dialog.algorithms.offline.chai import CHAI
from rl4dialog.functional.turns import Turns, turn_numbers
from rl4dialog.functional.value_losses import sampled_conservative_penalty
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
from tests.reference.test_turn_losses import GAMMA, turns_of
from tests.tiny import make_gpt2, reply_log_probs


def test_penalty_is_a_loop() -> None:
    random = torch.Generator().manual_seed(0)
    q, log_mu, others, log_u = (torch.randn(3, 4, generator=random) for _ in range(4))
    logged = torch.randn(3, generator=random)
    found = sampled_conservative_penalty(q, log_mu, others, log_u, logged)
    for i in range(3):
        total = 0.0
        for k in range(4):
            total += math.exp(q[i, k]) / math.exp(log_mu[i, k]) + math.exp(others[i, k]) / math.exp(log_u[i, k])
        assert found[i].item() == pytest.approx(math.log(total / 8) - logged[i].item(), rel=1e-5)


def test_penalty_estimates_the_sum_over_all_actions() -> None:
    """The mean of the estimate over all pairs of one candidate and one random action is the whole sum."""
    values = torch.tensor([0.5, -1.0, 2.0, 0.0])
    mu, u = torch.tensor([0.6, 0.1, 0.1, 0.2]), torch.full((4,), 0.25)
    mean = 0.0
    for a in range(4):
        for b in range(4):
            args = (x.view(1, 1) for x in (values[a], mu[a].log(), values[b], u[b].log()))
            mean += float(mu[a] * u[b] * sampled_conservative_penalty(*args, torch.zeros(1)).exp())
    assert mean == pytest.approx(float(values.exp().sum()), rel=1e-5)


def expected_loss(learner: Any, cql_weight: float, temperature: float) -> torch.Tensor:
    """The loss of a minibatch of all conversations, with the candidates and random replies that were drawn."""
    policy, n_replies = learner.policy, len(learner._log_replies)
    model, losses = policy.language_model, []

    def values_of(heads: Any, before: list[int], reply: list[int]) -> torch.Tensor:
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


@pytest.mark.parametrize(("join_turns", "critic"), [(True, "shared"), (False, "shared"), (True, "separate")])
def test_gradient_is_that_of_a_loop(join_turns: bool, critic: str, tmp_path: Path) -> None:
    model = make_gpt2(marked_tokenizer())
    log = make_log(tmp_path, model, dialogues(of_first=0.25), join_turns=join_turns)
    settings = {"gamma": GAMMA, "cql_weight": 0.3, "cql_temperature": 2.0, "n_candidates": 2}
    policy = {"critic": critic, "target": "heads" if critic == "shared" else "model"}
    learner = make_learner(CHAI, log, model, reranked=True, policy=policy, **settings)
    part_trunks(learner.policy)
    batch = whole_batch(learner)
    learner.micro_batch_size, learner.split_by_length = 2, False
    assert_gradients(learner, expected_loss(learner, 0.3, 2.0), [batch], learner._parts(batch))
    assert all(p.grad is None for p in learner.policy.language_model.parameters())


def test_training_leaves_the_language_model_as_it_is(tmp_path: Path) -> None:
    model = make_gpt2(marked_tokenizer())
    learner = make_learner(CHAI, make_log(tmp_path, model), model, reranked=True, n_candidates=2)
    before = {name: tensor.clone() for name, tensor in learner.policy.state_dict().items()}
    learner.learn(2 * learner.timesteps_per_iteration)
    changed = {name for name, tensor in learner.policy.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed and not any(name.startswith("_policy_model") for name in changed)
    assert any(name.startswith("_value_head.trunk") for name in changed)
    assert any(name.startswith("_target_heads.trunk") for name in changed)


def test_every_state_of_a_minibatch_has_candidates(tmp_path: Path) -> None:
    model = make_gpt2(marked_tokenizer())
    learner = make_learner(CHAI, make_log(tmp_path, model), model, reranked=True)
    batch = whole_batch(learner)
    states = turn_numbers(batch, Turns.of(batch))
    assert len(states) == 9  # 8 replies, and the state after the conversation that was cut
    assert all(len(learner._candidates[state].replies) == 5 == len(learner._random[state]) for state in states)
