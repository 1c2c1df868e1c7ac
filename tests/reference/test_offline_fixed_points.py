"""Each offline algorithm reaches the values that dynamic programming gives on a small process of tokens.

The state is the last token, and the trunk is a table: hidden states are one-hot vectors of it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv

from rl4dialog.algorithms.offline.awac import AWAC
from rl4dialog.algorithms.offline.base import OfflineAlgorithm
from rl4dialog.algorithms.offline.cql import CQL
from rl4dialog.algorithms.offline.ilql import ILQL
from rl4dialog.algorithms.offline.mc_returns import MCReturns
from rl4dialog.algorithms.offline.psi_learning import PsiLearning
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Frame, Turn
from rl4dialog.envs.conversation import ConversationRules
from rl4dialog.policies.value_guided import ValueGuidedCausalLMPolicy
from rl4dialog.rollouts.conversation_log import ConversationEncoder, ConversationLog
from rl4dialog.rollouts.conversation_rows import Limits
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.text.tokenizer import tokenizer_hash
from tests.tiny import make_env, make_gpt2, make_tokenizer

END, START, A, B, C, D = 0, 3, 4, 5, 6, 7
GAMMA = 0.9
# Token sequences after START, with the reward of each token and how often they are in the log.
LOG = [
    ([A, C, END], [0.0, 1.0, 2.0], 3),
    ([A, D, END], [0.0, 0.0, 5.0], 2),
    ([B, C, END], [1.0, 0.5, 2.0], 4),
    ([B, B, D, END], [1.0, -1.0, 0.0, 5.0], 2),
    ([A, END], [0.0, -1.0], 3),
]
STATES = (START, A, B, C, D)


class TablePolicy(ValueGuidedCausalLMPolicy):
    """Hidden states are one-hot vectors of the token before."""

    def _response_hidden(self, trunk: Any, replies: Any) -> torch.Tensor:
        before = torch.cat([replies.prompt_ids[:, -1:], replies.response_ids[:, :-1]], dim=1)
        width = self.language_model.config.n_embd
        return torch.nn.functional.one_hot(before[replies.response_mask], width).float()


def transitions() -> Counter[tuple[int, int, float, int]]:
    """Counts of (state, action, reward, next state) in the log."""
    found: Counter[tuple[int, int, float, int]] = Counter()
    for tokens, rewards, n in LOG:
        state = START
        for token, reward in zip(tokens, rewards, strict=True):
            found[state, token, reward, token] += n
            state = token
    return found


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ConversationLog:
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path))
    tokenizer = make_tokenizer()
    encoder = ConversationEncoder(
        EndOfTurn(tokenizer, [END]), Limits(8, 8), Frame.plain(None), ConversationRules(), tokenizer_hash(tokenizer)
    )

    def conversations() -> Any:
        for tokens, rewards, n in LOG:
            turn = Turn("", AGENT, ids=tuple(tokens), token_rewards=tuple(rewards))
            for i in range(n):
                yield Dialogue(i, (Turn("w0", PARTNER), turn), n_given=1, tokenizer=encoder.tokenizer_hash, prompt="w0")

    return ConversationLog.build(conversations, encoder, {"test": "fixed points"})


def trained(algorithm: type[OfflineAlgorithm], log: ConversationLog, n_iters: int = 900, **args: Any) -> Any:
    """Full batches until convergence."""
    tokenizer = make_tokenizer()
    n = len(tokenizer)
    model = make_gpt2(tokenizer, n_embd=n + 1, n_head=1, n_layer=1)
    learner = algorithm(
        TablePolicy,
        DummyVecEnv([lambda: make_env(tokenizer)]),
        log,
        learning_rate={"start": 0.1, "end": 0.0, "schedule": "cosine"},
        n_steps=int(log.n_tokens.sum()),
        batch_size=int(log.n_tokens.sum()),
        gamma=GAMMA,
        max_grad_norm=100.0,
        polyak_rate=0.2,
        policy_kwargs={
            "model": model,
            "end_of_turn": EndOfTurn(tokenizer, [END]),
            "critic": "shared",
            "target": "heads",
            "head_width": 0,
            **algorithm.policy_arguments(),
        },
        seed=0,
        device="cpu",
        **args,
    )
    learner.set_logger(Logger(folder=None, output_formats=[]))
    learner.learn(n_iters * learner.timesteps_per_iteration)
    return learner


def q_table(learner: Any) -> np.ndarray:
    width = learner.policy.language_model.config.n_embd
    with torch.no_grad():
        return learner.policy.heads.q_all(torch.eye(width)).amin(dim=0).numpy()


def behaviour() -> dict[int, dict[int, float]]:
    """Probability of each action in each state of the log."""
    counts: dict[int, Counter[int]] = {state: Counter() for state in STATES}
    for (state, action, _, _), n in transitions().items():
        counts[state][action] += n
    return {s: {a: n / sum(c.values()) for a, n in c.items()} for s, c in counts.items()}


def mean_rewards() -> dict[tuple[int, int], float]:
    totals: dict[tuple[int, int], list[float]] = {}
    for (state, action, reward, _), n in transitions().items():
        totals.setdefault((state, action), []).extend([reward] * n)
    return {key: float(np.mean(values)) for key, values in totals.items()}


def solved(value_of: Any) -> dict[tuple[int, int], float]:
    """Iterate Q(s, a) = r(s, a) + gamma V(s') with V = value_of(actions' values, their probabilities)."""
    rewards, policy = mean_rewards(), behaviour()
    q = dict.fromkeys(rewards, 0.0)
    for _ in range(300):
        v = {s: value_of([q[s, a] for a in policy[s]], list(policy[s].values()), s) for s in STATES}
        q = {(s, a): rewards[s, a] + (GAMMA * v[a] if a != END else 0.0) for s, a in q}
    return q


def expectile(values: list[float], weights: list[float], tau: float) -> float:
    low, high = min(values), max(values)
    for _ in range(100):
        m = (low + high) / 2
        slope = sum(w * abs(tau - (v < m)) * (v - m) for v, w in zip(values, weights, strict=True))
        low, high = (m, high) if slope > 0 else (low, m)
    return (low + high) / 2


def assert_reached(learner: Any, expected: dict[tuple[int, int], float]) -> None:
    table = q_table(learner)
    for (state, action), value in expected.items():
        assert table[state, action] == pytest.approx(value, abs=0.01), (state, action)


@pytest.mark.parametrize("tau", [0.5, 0.7, 0.9, 0.99])
def test_ilql_reaches_the_expectile_values(log: ConversationLog, tau: float) -> None:
    learner = trained(ILQL, log, 2500 if tau == 0.99 else 900, tau=tau)
    assert_reached(learner, solved(lambda values, weights, _: expectile(values, weights, tau)))


def test_sarsa_reaches_the_values_of_the_behaviour(log: ConversationLog) -> None:
    learner = trained(CQL, log, backup="data", cql_weight=0.0)
    q = dict.fromkeys(mean_rewards(), 0.0)
    for _ in range(300):
        targets: dict[tuple[int, int], list[float]] = {}
        for tokens, rewards, n in LOG:
            for i, (state, action) in enumerate(zip([START, *tokens], tokens, strict=False)):
                following = GAMMA * q[action, tokens[i + 1]] if i + 1 < len(tokens) else 0.0
                targets.setdefault((state, action), []).extend([rewards[i] + following] * n)
        q = {key: float(np.mean(values)) for key, values in targets.items()}
    assert_reached(learner, q)


def test_ilql_between_is_the_behaviour_and_the_best_supported_action(log: ConversationLog) -> None:
    of_behaviour = solved(lambda values, weights, _: float(np.dot(values, weights)))
    best = solved(lambda values, weights, _: max(values))
    near_best = solved(lambda values, weights, _: expectile(values, weights, 0.9999))
    half = solved(lambda values, weights, _: expectile(values, weights, 0.5))
    assert half == pytest.approx(of_behaviour) and near_best == pytest.approx(best, abs=0.2)


def test_monte_carlo_reaches_the_mean_returns(log: ConversationLog) -> None:
    returns: dict[tuple[int, int], list[float]] = {}
    for tokens, rewards, n in LOG:
        state = START
        for i, token in enumerate(tokens):
            value = sum(GAMMA**k * r for k, r in enumerate(rewards[i:]))
            returns.setdefault((state, token), []).extend([value] * n)
            state = token
    assert_reached(trained(MCReturns, log), {key: float(np.mean(v)) for key, v in returns.items()})


def log_probs(learner: Any) -> np.ndarray:
    width = learner.policy.language_model.config.n_embd
    with torch.no_grad():
        return learner.policy.model_logits(torch.eye(width)).log_softmax(dim=-1).numpy()


def test_psi_learning_reaches_the_regularized_values(log: ConversationLog) -> None:
    learner = trained(PsiLearning, log, 1500, huber_delta=None, reward_scale=2.0)
    policy, prior, table = behaviour(), log_probs(learner), q_table(learner)
    rewards, n = mean_rewards(), len(make_tokenizer())
    # The log says nothing about the values of other tokens.
    others = {s: [table[s, a] for a in range(n) if a not in policy[s]] for s in STATES}
    q = dict.fromkeys(rewards, 0.0)
    for _ in range(500):
        v = {s: np.logaddexp.reduce([*(q[s, a] for a in policy[s]), *others[s]]) for s in STATES}
        q = {(s, a): rewards[s, a] / 2 + prior[s, a] + (GAMMA * v[a] if a != END else 0.0) for s, a in q}
    assert_reached(learner, q)


def test_awac_reaches_the_values_of_its_own_policy(log: ConversationLog) -> None:
    learner = trained(AWAC, log, 1500, temperature=2.0)
    policy, table, lagging = np.exp(log_probs(learner)), q_table(learner), learner.policy
    rewards = mean_rewards()
    with torch.no_grad():
        width = lagging.language_model.config.n_embd
        targets = lagging.target_q_all(torch.eye(width)).numpy()
    for (state, action), reward in rewards.items():
        v = float((policy[action] * targets[action]).sum()) if action != END else 0.0
        assert table[state, action] == pytest.approx(reward + GAMMA * v, abs=0.01)
    # The weights exp(A / lambda) tilt the behaviour towards better tokens.
    tilted = {s: {a: p * np.exp(min(targets[s, a] / 2, 3)) for a, p in acts.items()} for s, acts in behaviour().items()}
    for state, acts in tilted.items():
        for action, weight in acts.items():
            assert policy[state, action] == pytest.approx(weight / sum(acts.values()), abs=0.02)


def test_conservative_values_of_unsupported_tokens_stay_below_supported_ones(log: ConversationLog) -> None:
    learner = trained(CQL, log, backup="max", cql_weight=0.5)
    table, policy = q_table(learner), behaviour()
    for state in STATES:
        supported = [table[state, a] for a in policy[state]]
        others = [table[state, a] for a in range(len(make_tokenizer())) if a not in policy[state]]
        assert max(others) < min(supported)


def test_cql_reaches_its_own_stationary_point(log: ConversationLog) -> None:
    """With a weight alpha, 2 (Q - y) + alpha (softmax(Q) - mu) / mu = 0 at each supported token, summed over heads."""
    alpha = 0.5
    learner = trained(CQL, log, 2500, backup="max", cql_weight=alpha)
    table, policy, rewards = q_table(learner), behaviour(), mean_rewards()
    n = len(make_tokenizer())
    for (state, action), reward in rewards.items():
        target = reward + (GAMMA * table[action, :n].max() if action != END else 0.0)
        soft = np.exp(table[state, :n] - np.logaddexp.reduce(table[state, :n]))[action]
        share = policy[state][action]
        assert 2 * (table[state, action] - target) + alpha * (soft / share - 1) == pytest.approx(0, abs=0.02)
