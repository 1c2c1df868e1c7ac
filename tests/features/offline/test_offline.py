"""Settings and layouts that do not change what is learned from a log, and searches that agree with each other."""

import itertools

import numpy as np
import pytest
import torch
from covering import covering

from rl4dialog.features.offline.algorithms.bc import AWAC, BC, MCReturns, PsiLearning
from rl4dialog.features.offline.algorithms.q_learning import CQL, ILQL, States
from rl4dialog.features.offline.losses import next_states, returns_to_go
from rl4dialog.functional.replies import Replies
from tests.offline import (
    dialogues,
    gradients,
    guided_class_of,
    make_learner,
    make_log,
    marked_tokenizer,
    part_trunks,
    randomize,
    whole_batch,
)
from tests.tiny import MODELS, make_env, make_gpt2, make_llama, make_policy, make_t5, make_tokenizer

QLEARNERS = [(ILQL, {"cql_weight": 0.3}), (CQL, {}), (MCReturns, {}), (PsiLearning, {}), (AWAC, {})]
ALGORITHMS = [(BC, {}), *QLEARNERS]


def close(first, second):
    assert first.keys() == second.keys() and first
    for name, gradient in first.items():
        torch.testing.assert_close(gradient, second[name], rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize(("number", "make_model"), covering(range(len(ALGORITHMS)), (make_gpt2, make_t5)))
def test_micro_batches_and_their_padding_change_no_gradient(number, make_model, tmp_path):
    algorithm, args = ALGORITHMS[number]
    model = make_model(marked_tokenizer())
    learner = make_learner(algorithm, make_log(tmp_path, model), model, **args)
    batch = whole_batch(learner)
    learner.split_by_length, learner.micro_batch_size = False, 1
    parts = learner._parts(batch)
    assert len(parts) == 5
    close(gradients(learner, [batch]), gradients(learner, parts))


@pytest.mark.parametrize(("algorithm", "args"), ALGORITHMS)
def test_rows_of_whole_conversations_and_of_single_replies_have_the_same_gradient(algorithm, args, tmp_path):
    found = []
    for join_turns in (True, False):
        model = make_llama(marked_tokenizer())
        log = make_log(tmp_path / str(join_turns), model, join_turns=join_turns)
        learner = make_learner(algorithm, log, model, **args)
        batch = whole_batch(learner)
        assert (len(batch) == len(log)) == join_turns
        found.append(gradients(learner, [batch]))
    close(*found)


def test_cut_windows_hold_every_token_of_the_agent_once_and_link_states(tmp_path):
    """A window of 8 tokens does not hold these conversations; the state after a window is the first of the next."""
    model = make_gpt2(marked_tokenizer())
    whole, cut = (make_log(tmp_path / str(n), model, prompt=n) for n in (40, 8))
    both = [log.replies(np.arange(len(log))) for log in (whole, cut)]
    for name in ("response_ids", "rewards", "turn", "loss_weights"):
        assert torch.equal(both[0].flat(name), both[1].flat(name))
    assert len(both[1]) > len(both[0]) == 5
    learner = make_learner(ILQL, cut, model)
    batch = whole_batch(learner)
    states = States.of(learner.policy, batch, learner.discounts(batch))
    after = next_states(states.values, states.episodes)
    last = np.flatnonzero(np.diff(both[1].token_episodes(), append=-1))
    assert after[last].abs().sum() == 0
    others = np.setdiff1d(np.arange(len(after)), last)
    assert torch.equal(after[others], states.values[others + 1])


@pytest.mark.parametrize("terminated", [True, False])
def test_only_conversations_that_were_cut_have_a_state_after_their_last_token(terminated, tmp_path):
    conversation = [(["w1", "w2 w3", "w4"], [1.0], terminated)]
    model = make_gpt2(marked_tokenizer())
    log = make_log(tmp_path, model, dialogues(conversation))
    batch = log.replies(np.arange(1))
    n = 3 if terminated else 4  # with the end-of-sequence token
    assert batch.n_tokens == n and int(log.n_tokens[0]) == 3
    assert batch.flat("loss_weights").tolist() == [1.0, 1.0, 1.0, *([] if terminated else [0.0])]
    assert batch.flat("rewards").tolist() == [0.0, 0.0, 1.0, *([] if terminated else [0.0])]


@pytest.mark.parametrize("name", MODELS)
def test_policy_with_beta_0_is_its_language_model_bit_for_bit(name):
    env = make_env(make_tokenizer())
    obs = {"prompt_ids": torch.tensor([[1, 4, 5], [6, 7, 8]]), "prompt_mask": torch.tensor([[0, 1, 1], [1, 1, 1]])}
    found = []
    for policy_class, args in ((None, {"critic": "none"}), (guided_class_of, {"guidance": {"beta": 0.0}})):
        model = MODELS[name](make_tokenizer())
        kind = {} if policy_class is None else {"policy_class": policy_class(model)}
        policy = policy_of(env, model, **kind, **args)
        torch.manual_seed(3)
        found.append(policy.generate(obs))
    assert torch.equal(found[0].response_ids, found[1].response_ids)
    assert torch.equal(found[0].log_probs, found[1].log_probs)


def policy_of(env, model, **args):
    if "policy_class" not in args:
        return make_policy(env, model, **args)
    policy = args.pop("policy_class")(
        env.observation_space, env.action_space, lambda _: 1e-3, model=model, end_of_turn=env.end_of_turn, **args
    )
    randomize(policy)
    return policy


def guided(name="gpt2", **args):
    model = MODELS[name](make_tokenizer())
    return policy_of(make_env(make_tokenizer()), model, policy_class=guided_class_of(model), **args)


OBS = {
    "prompt_ids": torch.tensor([[1, 1, 4, 5], [6, 7, 8, 9], [3, 3, 3, 4]]),
    "prompt_mask": torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]]).bool(),
}


GUIDANCE = [
    {"beta": 2.0},
    {"beta": 2.0, "clip": 0.2, "prior_weight": 0.5, "use": "online"},
    {"beta": 1.0, "prior": {"temperature": 0.7, "top_k": 8, "min_p": 0.02}},
]


@pytest.mark.parametrize(
    ("name", "critic", "target", "number"),
    covering(MODELS, ("shared", "separate"), ("model", "heads"), range(len(GUIDANCE))),
)
def test_log_probs_of_sampling_are_those_of_a_pass_over_whole_replies(name, critic, target, number):
    guidance = GUIDANCE[number]
    policy = guided(name, critic=critic, target=target, guidance=guidance, generation_kwargs={"temperature": 0.8})
    part_trunks(policy)
    torch.manual_seed(0)
    replies = policy.generate(OBS)
    expected = policy.sequence_log_probs(replies)
    mask = replies.response_mask
    torch.testing.assert_close(replies.log_probs[mask], expected[mask], rtol=1e-4, atol=1e-4)
    prior = policy.prior_log_probs(replies)
    torch.testing.assert_close(replies.unmasked_log_probs[mask], prior[mask], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(expected[mask], prior[mask], atol=1e-2)
    # stable-baselines3's API over whole replies
    _, log_prob, _ = policy.evaluate_actions(replies.observations, replies.flat("response_ids"))
    torch.testing.assert_close(log_prob, expected[mask], rtol=1e-4, atol=1e-4)


def test_guidance_is_the_formula():
    settings = {"beta": 1.5, "clip": 0.3, "prior_weight": 0.7, "prior": {"temperature": 0.4}}
    policy = guided(guidance=settings, generation_kwargs={"temperature": 0.6})
    replies = Replies.from_ids([[4, 5]], [[6, 7, 0]])
    hidden = policy._policy_hidden(replies)
    heads, values = policy._guiding(replies)
    q, v = heads.q_all(values).amin(dim=0), heads(values)
    prior = (policy.model_logits(hidden) / 0.4).log_softmax(dim=-1)
    wanted = (0.7 * prior + (1.5 * (q - v[:, None])).clamp(max=0.3)) / 0.6
    found = policy._logits(replies, hidden)
    torch.testing.assert_close(found.log_softmax(-1), wanted.log_softmax(-1), rtol=1e-5, atol=1e-5)


def small_vocabulary(**guidance):
    """Three tokens besides the end."""
    policy = guided(guidance={"beta": 2.0, **guidance}, generation_kwargs={"max_new_tokens": 3})
    with torch.no_grad():  # tokens beyond the fourth are never chosen
        for heads in (policy.heads, policy._target_heads):
            for head in heads.q:
                head.output.bias[4:] = -1e4
    return policy


def test_wide_beams_are_exhaustive_search():
    policy = small_vocabulary(search="beam", num_beams=64)
    found = policy.generate(OBS)
    candidates = [
        ids
        for length in (1, 2, 3)
        for ids in itertools.product(range(4), repeat=length)
        if 0 not in ids[:-1] and (ids[-1] == 0 or length == 3)
    ]
    for row in range(3):
        prompt = OBS["prompt_ids"][row][OBS["prompt_mask"][row]].tolist()
        replies = Replies.from_ids([prompt] * len(candidates), candidates)
        scores = policy.sequence_log_probs(replies).sum(dim=1)
        best = candidates[int(scores.argmax())]
        assert found.response_ids[row][found.response_mask[row]].tolist() == list(best)
        torch.testing.assert_close(found.log_probs[row].sum(), scores.max(), rtol=1e-4, atol=1e-4)


def test_rerank_of_one_candidate_is_a_sample_and_of_many_has_the_highest_rank():
    sampled, one, many = (
        small_vocabulary(**g) for g in ({}, {"search": "rerank"}, {"search": "rerank", "n_candidates": 64})
    )
    found = []
    for policy in (sampled, one):
        torch.manual_seed(1)
        found.append(policy.generate(OBS).response_ids)
    assert torch.equal(*found)
    torch.manual_seed(1)
    best, others = many.generate(OBS), sampled.generate(OBS)
    assert (many.ranks(best) >= many.ranks(others) - 1e-5).all() and many.ranks(best).sum() > many.ranks(others).sum()


def test_awac_with_a_large_temperature_imitates(tmp_path):
    found = []
    for algorithm, args in ((BC, {}), (AWAC, {"temperature": 1e9})):
        model = make_gpt2(marked_tokenizer())
        learner = make_learner(algorithm, make_log(tmp_path / algorithm.__name__, model), model, **args)
        everything = gradients(learner, [whole_batch(learner)])
        found.append({name: g for name, g in everything.items() if name.startswith("_policy_model")})
    close(*found)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_returns_of_long_conversations_are_finite_and_right(gamma):
    n = 10_000
    rewards = np.random.default_rng(0).normal(size=n)
    returns = returns_to_go(rewards, np.full(n, gamma), np.zeros(n))
    assert np.isfinite(returns).all()
    for i in (0, 1, 5_000, n - 1):
        expected = sum(gamma**k * r for k, r in enumerate(rewards[i:])) if gamma else rewards[i]
        assert returns[i] == pytest.approx(expected, rel=1e-4, abs=1e-4)
