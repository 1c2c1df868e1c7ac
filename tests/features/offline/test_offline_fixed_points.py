"""Where dynamic programming ends on a small process of tokens, no offline algorithm has a gradient, and one gets there.

The state is the last token, and the trunk is a table: hidden states are one-hot vectors of it.
"""

from collections import defaultdict

import numpy as np
import pytest
import torch
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv

from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Frame, Turn
from rl4dialog.envs.conversation import ConversationRules
from rl4dialog.features.offline.algorithms.bc import AWAC, MCReturns, PsiLearning
from rl4dialog.features.offline.algorithms.q_learning import CQL, ILQL
from rl4dialog.features.offline.conversation_log import ConversationEncoder, ConversationLog
from rl4dialog.features.offline.policies.value_guided import ValueGuidedCausalLMPolicy
from rl4dialog.rollouts.learned_turns import Limits
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.text.tokenizer import tokenizer_hash
from tests.offline import gradients, whole_batch
from tests.tiny import make_env, make_gpt2, make_tokenizer

END, START, A, B, C, D = 0, 3, 4, 5, 6, 7
GAMMA = 0.9
N = len(make_tokenizer())
NEVER = -30.0
"""Logit of tokens that are not in the log."""
# Token sequences after START, with the reward of each token and how often they are in the log.
LOG = [
    ([A, C, END], [0.0, 1.0, 2.0], 3),
    ([A, D, END], [0.0, 0.0, 5.0], 2),
    ([B, C, END], [1.0, 0.5, 2.0], 4),
    ([B, B, D, END], [1.0, -1.0, 0.0, 5.0], 2),
    ([A, END], [0.0, -1.0], 3),
]
STEPS = defaultdict(list)
for _tokens, _rewards, _n in LOG:
    for _i, _pair in enumerate(zip([START, *_tokens], _tokens, strict=False)):
        _return = sum(GAMMA**k * r for k, r in enumerate(_rewards[_i:]))
        STEPS[_pair] += [(_rewards[_i], _return, [*_tokens, None][_i + 1])] * _n
N_STEPS = sum(map(len, STEPS.values()))
COUNTS = {s: {a: len(found) for (state, a), found in STEPS.items() if state == s} for s in (START, A, B, C, D)}
REWARDS = {pair: float(np.mean([reward for reward, _, _ in found])) for pair, found in STEPS.items()}


class TablePolicy(ValueGuidedCausalLMPolicy):
    """Hidden states are one-hot vectors of the token before."""

    def _response_hidden(self, trunk, replies):
        before = torch.cat([replies.prompt_ids[:, -1:], replies.response_ids[:, :-1]], dim=1)
        width = self.language_model.config.n_embd
        return torch.nn.functional.one_hot(before[replies.response_mask], width).float()


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    tokenizer = make_tokenizer()
    encoder = ConversationEncoder(
        EndOfTurn(tokenizer, [END]), Limits(8, 8), Frame.plain(None), ConversationRules(), tokenizer_hash(tokenizer)
    )

    def conversations():
        for tokens, rewards, n in LOG:
            turn = Turn("", AGENT, ids=tuple(tokens), token_rewards=tuple(rewards))
            for i in range(n):
                yield Dialogue(i, (Turn("w0", PARTNER), turn), n_given=1, tokenizer=encoder.tokenizer_hash, prompt="w0")

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RL4DIALOG_CACHE", str(tmp_path_factory.mktemp("log")))
        return ConversationLog.build(conversations, encoder, {"test": "fixed points"})


def make_learner(algorithm, log, **args):
    """An algorithm on full batches, which are all of the log."""
    tokenizer = make_tokenizer()
    learner = algorithm(
        TablePolicy,
        DummyVecEnv([lambda: make_env(tokenizer)]),
        log,
        n_steps=N_STEPS,
        batch_size=N_STEPS,
        gamma=GAMMA,
        policy_kwargs={
            "model": make_gpt2(tokenizer, n_embd=N + 1, n_head=1, n_layer=1),
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
    return learner


def solved(value_of, paid, elsewhere=0.0):
    """Iterate Q(s, a) = r(s, a) + gamma V(s'), with V of a state and the table of Q. Shape (N, N)."""
    q = np.full((N, N), elsewhere)
    for _ in range(60):
        v = {s: value_of(s, q) for s in COUNTS}
        for (s, a), reward in paid.items():
            q[s, a] = reward + (GAMMA * v[a] if a != END else 0.0)
    return q


def logged(s, q):
    """Values of the actions of a state, and how often they are in the log."""
    return [q[s, a] for a in COUNTS[s]], list(COUNTS[s].values())


def expectile(values, counts, tau):
    low, high = min(values), max(values)
    for _ in range(60):
        m = (low + high) / 2
        slope = sum(n * abs(tau - (v < m)) * (v - m) for v, n in zip(values, counts, strict=True))
        low, high = (m, high) if slope > 0 else (low, m)
    return (low + high) / 2


def mean(s, q):
    return float(np.average(logged(s, q)[0], weights=logged(s, q)[1]))


IMITATION = np.full((N, N), NEVER)
"""Logits of the policy that is in the log. Shape (N, N)."""
for (_s, _a), _found in STEPS.items():
    IMITATION[_s, _a] = np.log(len(_found) / sum(COUNTS[_s].values()))


def of_ilql(tau):
    q = solved(lambda s, q: expectile(*logged(s, q), tau), REWARDS)
    return q, {s: expectile(*logged(s, q), tau) for s in COUNTS}, IMITATION


def of_sarsa():
    q = np.zeros((N, N))
    for _ in range(60):
        for (s, a), found in STEPS.items():
            q[s, a] = np.mean([reward + (0.0 if then is None else GAMMA * q[a, then]) for reward, _, then in found])
    return q, {s: mean(s, q) for s in COUNTS}, IMITATION


def of_mc():
    q = np.zeros((N, N))
    for pair, found in STEPS.items():
        q[pair] = np.mean([total for _, total, _ in found])
    return q, {s: mean(s, q) for s in COUNTS}, IMITATION


def of_psi():
    """The log says nothing about the values of other tokens, which stay where they are, at 0."""
    paid = {pair: reward / 2 + IMITATION[pair] for pair, reward in REWARDS.items()}
    return solved(lambda s, q: float(np.logaddexp.reduce(q[s])), paid), {}, IMITATION


def of_awac():
    """The weights exp(A / lambda) tilt the policy towards better tokens, and Q is that of the policy itself."""
    policy, q = IMITATION, np.zeros((N, N))
    for _ in range(60):
        probabilities = np.exp(policy)
        q = solved(lambda s, q, probs=probabilities: float(probs[s] @ q[s]), REWARDS)
        policy = IMITATION + q / 2
        policy -= np.logaddexp.reduce(policy, axis=1)[:, None]
    return q, {}, policy


def of_cql(alpha=0.5):
    """With a weight alpha, 2 (Q - y) + alpha (softmax(Q) - mu) / mu = 0 at each token of the log, for each head."""
    q = np.full((N, N), NEVER)
    for _ in range(2000):
        soft = np.exp(q - np.logaddexp.reduce(q, axis=1)[:, None])
        for (s, a), reward in REWARDS.items():
            target = reward + (GAMMA * q[a].max() if a != END else 0.0)
            q[s, a] += 0.1 * (2 * (target - q[s, a]) - alpha * (soft[s, a] / np.exp(IMITATION[s, a]) - 1))
    return q, {s: mean(s, q) for s in COUNTS}, IMITATION


FIXED_POINTS = {
    **{f"ilql {tau}": (ILQL, {"tau": tau}, lambda tau=tau: of_ilql(tau)) for tau in (0.5, 0.7, 0.9, 0.99)},
    "sarsa": (CQL, {"backup": "data", "cql_weight": 0.0}, of_sarsa),
    "cql": (CQL, {"backup": "max", "cql_weight": 0.5}, of_cql),
    "mc_returns": (MCReturns, {}, of_mc),
    "psi_learning": (PsiLearning, {"huber_delta": None, "reward_scale": 2.0}, of_psi),
    "awac": (AWAC, {"temperature": 2.0}, of_awac),
}


def slopes(learner, q, v, policy, off=0.0):
    """Gradients by state and action, with the trained values of tokens so far off.

    Returns:
        Of Q by each of the two heads, of V, and of the logits. Shapes (N, N), (N, 1) and (N, N).
    """
    heads, lagging = learner.policy.heads, learner.policy._target_heads
    logits = learner.policy.language_model.get_output_embeddings()
    v_table = np.zeros((N, 1))
    for s, value in v.items():
        v_table[s] = value
    tables = [(head.output, q + off) for head in heads.q] + [(head.output, q) for head in lagging.q]
    tables += [(heads.output.output, v_table), (logits, policy)]
    with torch.no_grad():
        for linear, table in tables:
            linear.weight[:, :N] = torch.tensor(table.T)
            if linear.bias is not None:
                linear.bias.zero_()
    gradients(learner, [whole_batch(learner)])
    found = [None if linear.weight.grad is None else linear.weight.grad[:, :N].T for linear, _ in tables]
    return found[:2], found[4], found[5]


@pytest.mark.parametrize("name", FIXED_POINTS)
def test_values_of_dynamic_programming_are_a_fixed_point(log, name):
    algorithm, args, solution = FIXED_POINTS[name]
    learner, (q, v, policy) = make_learner(algorithm, log, **args), solution()
    of_q, of_v, of_logits = slopes(learner, q, v, policy)
    assert (of_v is not None) == bool(v)
    for slope in (*of_q, of_logits, *([of_v] if v else [])):
        torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-5)
    if name == "cql":
        return
    # Each is a minimum, and each pair weighs as often as it is in the log.
    shares = np.zeros((N, N))
    for pair, found in STEPS.items():
        shares[pair] = len(found) / N_STEPS
    for slope in slopes(learner, q, v, policy, off=0.1)[0]:
        torch.testing.assert_close(slope, torch.tensor(0.2 * shares, dtype=torch.float32), rtol=1e-3, atol=1e-5)


def test_expectiles_are_between_the_mean_and_the_best_of_the_log():
    half, near_best = (solved(lambda s, q, tau=tau: expectile(*logged(s, q), tau), REWARDS) for tau in (0.5, 0.9999))
    assert half == pytest.approx(solved(mean, REWARDS))
    assert near_best == pytest.approx(solved(lambda s, q: max(logged(s, q)[0]), REWARDS), abs=0.2)


def test_conservative_penalty_lowers_tokens_that_are_not_in_the_log(log):
    for slope in slopes(make_learner(CQL, log, cql_weight=0.5), *of_mc())[0]:
        for s, actions in COUNTS.items():
            others = [a for a in range(N) if a not in actions]
            assert (slope[s, others] > 0).all()


def test_training_goes_from_one_fixed_point_to_another(log):
    rate = {"start": 0.05, "end": 0.0, "schedule": "cosine"}
    learner = make_learner(ILQL, log, tau=0.7, learning_rate=rate, max_grad_norm=100.0, polyak_rate=0.3)
    (start, *others), expected = of_ilql(0.5), of_ilql(0.7)[0]
    slopes(learner, start, *others)
    learner.learn(120 * learner.timesteps_per_iteration)
    with torch.no_grad():
        table = learner.policy.heads.q_all(torch.eye(N + 1)).amin(dim=0)
    assert max(abs(start[pair] - expected[pair]) for pair in STEPS) > 0.5
    for pair in STEPS:
        assert float(table[pair]) == pytest.approx(expected[pair], abs=0.06), pair
