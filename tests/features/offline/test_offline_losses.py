"""Losses and gradients of the offline algorithms against loops over single tokens, one unpadded pass for each."""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch

from rl4dialog.features.offline.algorithms.bc import AWAC, BC, MCReturns, PsiLearning
from rl4dialog.features.offline.algorithms.q_learning import CQL, ILQL
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
from tests.tiny import all_tokens, make_gpt2, make_t5

GAMMA, CQL_TEMPERATURE = 0.8, 0.7


@dataclass
class Token:
    """A token of the agent, with what the model says before it."""

    id: int
    reward: float
    turn: int
    logged: bool
    log_prior: torch.Tensor  # of all tokens
    hidden: torch.Tensor  # that the trained values read
    lagging: torch.Tensor  # that the lagging values read


def tokens_of(learner):
    """All conversations, token by token."""
    policy, batch = learner.policy, learner.log.replies(np.arange(len(learner.log)))
    conversations = [[] for _ in range(len(learner.log))]
    for row in range(len(batch)):
        prompt = batch.prompt_ids[row][batch.prompt_mask[row]].tolist()
        response = batch.response_ids[row][batch.token_mask[row]].tolist()
        if getattr(policy, "heads", None) is None:
            logits = of_values = lagging = all_tokens(policy.language_model, prompt, response)[0]
        else:
            logits, of_values, lagging = hidden_states(policy, prompt, response)
        for i in range(len(response)):
            if batch.response_mask[row, i]:
                numbers = batch.rewards[row, i], batch.turn[row, i], batch.loss_weights[row, i]
                reward, turn, weight = (float(n) for n in numbers)
                log_prior = logits[i].log_softmax(-1)
                token = Token(response[i], reward, int(turn), weight == 1, log_prior, of_values[i], lagging[i])
                conversations[int(batch.episode[row])].append(token)
    return conversations


def expected_loss(learner, name, per_turn, cql_weight):
    """The loss of a minibatch of all conversations, from the formulas of the documentation."""
    heads, lagging = learner.policy.heads, learner.policy._target_heads
    total, n = torch.zeros(()), 0
    for conversation in tokens_of(learner):
        v = [heads(t.hidden[None])[0] for t in conversation]
        with torch.no_grad():
            q_lagging = [torch.stack([head(t.lagging[None])[0] for head in lagging.q]).amin(0) for t in conversation]
        for i, t in enumerate(conversation):
            if not t.logged:
                continue
            n += 1
            last = i + 1 == len(conversation)
            ends_turn = last or conversation[i + 1].turn != t.turn
            discount = (GAMMA if ends_turn else 1.0) if per_turn else GAMMA
            q = torch.stack([head(t.hidden[None])[0] for head in heads.q])
            estimate, prior = q_lagging[i][t.id], t.log_prior.detach()[t.id]
            rest = 0.0 if last else None
            weight = 1.0
            if name in ILQL_WEIGHTS:
                limits = {"value_min": -math.inf, "value_max": math.inf} | CASES[name][1]
                estimate = estimate.clamp(limits["value_min"], limits["value_max"])
                weight = ILQL_WEIGHTS[name](float(estimate - v[i].detach()))
                after = rest if last else v[i + 1].detach()
                v_loss = abs(0.7 - float(estimate < v[i].detach())) * (estimate - v[i]) ** 2
            elif name in ("cql", "sarsa"):
                if not last:
                    nxt = conversation[i + 1]
                    after = q_lagging[i + 1].max() if name == "cql" else q_lagging[i + 1][nxt.id]
                    if name == "sarsa" and not nxt.logged:
                        after = v[i + 1].detach()
                else:
                    after = rest
                v_loss = 0.5 * (estimate - v[i]) ** 2
            elif name == "mc":
                y, factor = 0.0, 1.0
                for k in range(i, len(conversation)):
                    y += factor * conversation[k].reward
                    ends = k + 1 == len(conversation) or conversation[k + 1].turn != conversation[k].turn
                    factor *= (GAMMA if ends else 1.0) if per_turn else GAMMA
                v_loss = 0.5 * (y - v[i]) ** 2
            elif name == "psi":
                after = rest if last else q_lagging[i + 1].logsumexp(-1)
                v_loss = torch.zeros(())
            else:
                expected = [
                    (c.log_prior.detach().exp() * ql).sum() for c, ql in zip(conversation, q_lagging, strict=True)
                ]
                after = rest if last else expected[i + 1]
                v_loss = torch.zeros(())
                weight = float(((estimate - expected[i]) / 1.5).clamp(max=2.0).exp())
            if name != "mc":
                y = (t.reward / 2 + float(prior) if name == "psi" else t.reward) + discount * float(after)
            errors = q[:, t.id] - y
            if name == "psi":
                losses = torch.where(errors.abs() < 1, 0.5 * errors**2, errors.abs() - 0.5)
            else:
                losses = errors**2
            conservative = ((q / CQL_TEMPERATURE).logsumexp(-1) - q[:, t.id] / CQL_TEMPERATURE).sum()
            total = total + losses.sum() + v_loss + cql_weight * conservative - weight * t.log_prior[t.id]
    return total / n


ILQL_WEIGHTS = {
    "ilql": lambda advantage: 1.0,
    "ilql_exp": lambda advantage: math.exp(min(0.5 * advantage, 0.05)),
    "ilql_sign": lambda advantage: 0.8 if advantage > 0 else 0.2,
}
CASES = {
    "ilql": (ILQL, {}),
    "ilql_exp": (ILQL, {"imitation": "exp", "imitation_beta": 0.5, "max_log_weight": 0.05, "value_max": 0.2}),
    "ilql_sign": (ILQL, {"imitation": "sign", "imitation_beta": 0.8, "value_min": -0.3}),
    "sarsa": (CQL, {"backup": "data"}),
    "cql": (CQL, {}),
    "mc": (MCReturns, {}),
    "psi": (PsiLearning, {"reward_scale": 2.0}),
    "awac": (AWAC, {"temperature": 1.5, "max_log_weight": 2.0}),
}


MODELS = {"gpt2": make_gpt2, "t5": partial(make_t5, n_spare=0)}
KINDS = (("gpt2", "shared"), ("gpt2", "separate"), ("t5", "shared"))


@pytest.mark.parametrize(("name", "kind", "discount_per"), covering(CASES, KINDS, ("token", "turn")))
def test_gradient_is_that_of_a_loop(name, kind, discount_per, tmp_path):
    (algorithm, args), (architecture, critic) = CASES[name], kind
    model = MODELS[architecture](marked_tokenizer())
    cql_weight = 0.3 if discount_per == "token" else 0.0  # without it, only the values of logged tokens are computed
    settings = {"gamma": GAMMA, "discount_per": discount_per, "cql_weight": cql_weight}
    settings["cql_temperature"] = CQL_TEMPERATURE
    policy = {"critic": critic, "target": "heads" if critic == "shared" else "model"}
    log = make_log(tmp_path, model, dialogues(of_first=0.25))
    learner = make_learner(algorithm, log, model, policy=policy, **settings, **args)
    part_trunks(learner.policy)
    loss = expected_loss(learner, name, discount_per == "turn", cql_weight)
    assert_gradients(learner, loss, [whole_batch(learner)])


def test_lagging_values_become_the_trained_ones_every_few_steps(tmp_path):
    model = make_gpt2(marked_tokenizer())
    learner = make_learner(ILQL, make_log(tmp_path, model), model, hard_update_every=3, polyak_rate=0.5)
    trained, lagging = (heads.output.output.bias.data for heads in (learner.policy.heads, learner.policy._target_heads))
    distances = []
    for learner._n_updates in range(6):
        lagging.copy_(trained + 1)
        learner._after_step()
        distances.append(round(float((lagging - trained).sum()), 4))
    assert distances == [0.5, 0.5, 0.0, 0.5, 0.5, 0.0]


@pytest.mark.parametrize("architecture", MODELS)
def test_behaviour_cloning_is_the_mean_cross_entropy_of_the_agents_tokens(architecture, tmp_path):
    model = MODELS[architecture](marked_tokenizer())
    learner = make_learner(BC, make_log(tmp_path, model), model)
    tokens = [t for conversation in tokens_of(learner) for t in conversation if t.logged]
    assert_gradients(learner, -torch.stack([t.log_prior[t.id] for t in tokens]).mean(), [whole_batch(learner)])
