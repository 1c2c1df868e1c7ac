"""A conversation in one row gives the numbers of its turns in separate rows, and the partner's tokens none."""

import copy
from dataclasses import fields

import architectures
import numpy as np
import pytest
import torch
from collected import collect
from conversing import MAX_REPLY, algorithm_on_conversations, conversation_tokenizer, ending_often
from covering import covering, quick
from rows import evaluated
from tiny import make_env, make_gpt2, make_llama, make_policy, make_t5, make_tokenizer

from rl4dialog.algorithms.on_policy.critic_free import GRPO, RLOO
from rl4dialog.algorithms.on_policy.ppo import A2C, NLPO, PPO
from rl4dialog.algorithms.on_policy.trpo import TRPO
from rl4dialog.functional.replies import Replies, joined_turns

CAUSAL = {"gpt2": make_gpt2, "llama": make_llama}
NUMBERS = ("log_probs", "values", "ref_log_probs", "task_rewards", "rewards", "advantages", "returns", "turn")
ALL_AT_ONCE = {"n_epochs": 1, "batch_size": 10**6}
ALGORITHMS = {
    "ppo": (PPO, {**ALL_AT_ONCE, "ent_coef": 0.03, "clip_range_vf": 0.5}),
    "ppo, credit of turns": (PPO, {**ALL_AT_ONCE, "credit": "turn", "normalize_rewards": True}),
    "nlpo": (NLPO, {**ALL_AT_ONCE, "policy_kwargs": {"top_mask": 8, "mask_type": "learned_top_k"}}),
    "a2c": (A2C, {"normalize_advantage": True, "ent_coef": 0.03}),
    "trpo": (TRPO, {"cg_max_steps": 4, "cg_damping": 0.5, "n_critic_updates": 1, "target_kl": 0.02}),
    "rloo": (RLOO, {**ALL_AT_ONCE, "n_generations": 2, "n_envs": 4, "policy_kwargs": {"critic": "none"}}),
    "gspo": (
        GRPO,
        {
            **ALL_AT_ONCE,
            **{"n_generations": 2, "n_envs": 4, "policy_kwargs": {"critic": "none"}},
            **{"n_epochs": 2, "ratio": "sequence", "loss_aggregation": "sequence_mean", "clip_range": 0.01},
            "mask_truncated": True,
        },
    ),
    "grpo": (GRPO, {**ALL_AT_ONCE, "n_generations": 2, "n_envs": 4, "policy_kwargs": {"critic": "none"}}),
}


def pair(architecture, algorithm=PPO, **kwargs):
    """Two algorithms after the same rollout, with joined and with separate turns."""
    model = ending_often(CAUSAL[architecture](conversation_tokenizer()))
    both = []
    for join_turns in (True, False):
        trained = algorithm_on_conversations(algorithm, model, join_turns=join_turns, **kwargs)
        collect(trained)
        both.append(trained)
    joined, separate = (trained.rollout_buffer.replies for trained in both)
    turns_per_conversation = {len(np.unique(row)) for row in joined.per_row("turn")}
    assert {1, 3, 6} <= turns_per_conversation and len(joined) < 0.6 * len(separate)
    assert (joined.token_mask & ~joined.response_mask).any() and not (
        separate.token_mask ^ separate.response_mask
    ).any()
    return both[0], both[1]


def watch(target, name, note):
    """Let a method report its arguments before it runs."""
    original = getattr(target, name)

    def watched(*args):
        note(*args)
        return original(*args)

    setattr(target, name, watched)


def gradients(trained):
    return {name: p.grad.clone() for name, p in trained.policy.named_parameters() if p.grad is not None}


def assert_same_gradients(found, expected):
    assert found.keys() == expected.keys() and expected
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize(("architecture", "critic"), covering(CAUSAL, ("separate", "shared")))
def test_rollout_has_the_same_numbers(architecture, critic):
    joined, separate = pair(architecture, policy_kwargs={"critic": critic}, **ALL_AT_ONCE)
    mine, theirs = joined.rollout_buffer.replies, separate.rollout_buffer.replies
    assert mine.flat("response_ids").tolist() == theirs.flat("response_ids").tolist()
    for name in NUMBERS:
        torch.testing.assert_close(mine.flat(name), theirs.flat(name), rtol=1e-5, atol=1e-5, msg=name)
    assert (mine.flat("log_probs") - mine.flat("ref_log_probs")).abs().max() > 1e-2
    logged, expected = (
        {name: value for name, value in a.logger.name_to_value.items() if name.startswith("rollout/")}
        for a in (joined, separate)
    )
    assert logged == pytest.approx(expected, rel=1e-5, abs=1e-5)
    again, known = (evaluated(trained.policy, rows) for trained, rows in ((joined, mine), (separate, theirs)))
    for number, other in zip(again, known, strict=True):
        flat, others = number[mine.response_mask], other[theirs.response_mask]
        torch.testing.assert_close(flat, others, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("algorithm", "architecture"), covering(ALGORITHMS, CAUSAL))
def test_update_has_the_same_losses_and_gradients(algorithm, architecture):
    made, kwargs = ALGORITHMS[algorithm]
    joined, separate = pair(architecture, made, **kwargs)
    before = copy.deepcopy(joined.policy.state_dict())
    for trained in (joined, separate):
        trained.train()
    logged, expected = (
        {name: value for name, value in a.logger.name_to_value.items() if name.startswith("train/")}
        for a in (joined, separate)
    )
    assert logged == pytest.approx(expected, rel=1e-2 if made is TRPO else 1e-4, abs=1e-5)
    if made is TRPO:  # conjugate gradients amplify rounding
        for name, weight in separate.policy.state_dict().items():
            step, wanted = joined.policy.state_dict()[name] - before[name], weight - before[name]
            torch.testing.assert_close(step, wanted, rtol=5e-2, atol=2e-4, msg=name)
    else:
        assert_same_gradients(gradients(joined), gradients(separate))


@pytest.mark.parametrize(
    ("architecture", "kwargs"),
    [("gpt2", {"micro_batch_size": 2}), ("llama", {"split_by_length": False}), ("llama", {"batch_size": 40})],
)
def test_micro_batches_and_groups_of_joined_rows(monkeypatch, architecture, kwargs):
    """Groups stay together, so that their minibatches hold the same conversations either way."""
    monkeypatch.setattr("rl4dialog.algorithms.on_policy.clipped.FIXED_COST", {"cpu": 8})
    settings = {**ALL_AT_ONCE, "n_generations": 2, "n_envs": 4, "policy_kwargs": {"critic": "none"}, **kwargs}
    joined, separate = pair(architecture, RLOO, **settings)
    for trained in (joined, separate):
        np.random.seed(0)
        trained.train()
    assert joined.logger.name_to_value["train/loss"] == pytest.approx(
        separate.logger.name_to_value["train/loss"], rel=1e-4, abs=1e-5
    )
    assert_same_gradients(gradients(joined), gradients(separate))


@pytest.mark.parametrize("architecture", quick("gpt2", of=CAUSAL))
def test_shared_prompts_of_joined_rows_are_read_once(architecture):
    settings = {**ALL_AT_ONCE, "n_generations": 4, "n_envs": 4}
    shared, apart = (
        pair(architecture, RLOO, policy_kwargs={"critic": "none", "share_prompts": flag}, **settings)[0]
        for flag in (True, False)
    )
    calls = []
    watch(shared.policy, "_hidden_after_shared_prompts", lambda *args: calls.append(args))
    for trained in (shared, apart):
        trained.train()
    assert calls
    assert_same_gradients(gradients(shared), gradients(apart))


@pytest.mark.parametrize("architecture", quick("llama", of=CAUSAL))
def test_log_probs_are_those_of_the_conversation_as_one_sequence_and_turn_by_turn(architecture):
    model = ending_often(CAUSAL[architecture](conversation_tokenizer()))
    trained = algorithm_on_conversations(PPO, model, **ALL_AT_ONCE)
    replies = collect(trained)
    policy, n_turns = trained.policy, set()
    for row in range(len(replies)):
        prompt = replies.prompt_ids[row][replies.prompt_mask[row]]
        response, own = replies.response_ids[row], replies.response_mask[row]
        whole = torch.cat([prompt, response[replies.token_mask[row]]])
        places = len(prompt) + own.nonzero().squeeze(1)
        n_turns.add(len(replies.turn[row][own].unique()))
        for lm, name in ((policy.language_model, "log_probs"), (policy._reference_model, "ref_log_probs")):
            with torch.no_grad():
                expected = lm(input_ids=whole[None]).logits[0].log_softmax(-1)[places - 1, whole[places]]
            found = getattr(replies, name)[row][own]
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
            single = []
            for turn in replies.turn[row][own].unique():
                of_turn = places[replies.turn[row][own] == turn]
                alone = Replies.from_ids([whole[: of_turn[0]].tolist()], [whole[of_turn].tolist()])
                numbers = policy.sequence_log_probs if name == "log_probs" else policy.reference_log_probs
                single.append(numbers(alone)[0])
            torch.testing.assert_close(torch.cat(single), expected, rtol=1e-5, atol=1e-5)
    assert {1, 3, 6} <= n_turns


@pytest.mark.parametrize(
    ("algorithm", "architecture"),
    [("ppo", "llama"), ("ppo, credit of turns", "gpt2"), ("a2c", "llama"), ("grpo", "gpt2")],
)
def test_nothing_at_the_partners_tokens_or_padding_moves_a_gradient(algorithm, architecture):
    made, kwargs = ALGORITHMS[algorithm]
    model = ending_often(CAUSAL[architecture](conversation_tokenizer()))
    results = []
    for perturb in (False, True):
        trained = algorithm_on_conversations(made, model, **kwargs)
        buffer = trained.rollout_buffer
        collect(trained)
        if perturb:
            replies, names = buffer.replies, [field.name for field in fields(Replies)]
            outside = ~replies.response_mask
            for name in names[names.index("turn") : names.index("episode")]:
                if getattr(replies, name) is not None:
                    junk = 99 if name == "turn" else torch.nan
                    setattr(replies, name, getattr(replies, name).masked_fill(outside, junk))
            replies.response_ids = replies.response_ids.masked_fill(~replies.token_mask, 7)
            replies.prompt_ids = replies.prompt_ids.masked_fill(~replies.prompt_mask, 7)
            buffer.compute_rewards(trained._reward_kl_coeff())
            buffer.compute_returns_and_advantage()
        trained.train()
        logged = {name: value for name, value in trained.logger.name_to_value.items() if name.startswith("train/")}
        results.append((gradients(trained), logged))
    (grads, logged), (others, same) = results
    assert logged == same
    assert_same_gradients(others, grads)


def test_encoder_decoders_have_one_row_per_reply():
    model = ending_often(make_t5(conversation_tokenizer()))
    found = []
    for join_turns in (True, False):
        trained = algorithm_on_conversations(PPO, model, join_turns=join_turns, **ALL_AT_ONCE)
        replies = collect(trained)
        assert len(replies) == len(replies.per_reply("turn")) > len(np.unique(replies.row_episodes()))
        trained.train()
        found.append((replies.flat("advantages"), gradients(trained)))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=0, atol=0)
    assert_same_gradients(found[0][1], found[1][1])


def test_processes_in_lockstep_join_what_they_evaluated_at_once():
    model = ending_often(make_gpt2(conversation_tokenizer()))
    rows = []
    for lockstep in (True, False):
        trained = algorithm_on_conversations(PPO, model, **ALL_AT_ONCE)
        trained.policy.lockstep = lockstep
        passes = []
        watch(trained.policy, "reference_log_probs", passes.append)
        rows.append(collect(trained))
        is_single = max(part.response_ids.shape[1] for part in passes) <= MAX_REPLY
        assert is_single is lockstep, "single replies, or joined rows"
    in_lockstep, deferred = rows
    assert torch.equal(in_lockstep.response_ids, deferred.response_ids)
    assert torch.equal(in_lockstep.token_mask, deferred.token_mask)
    for name in NUMBERS:
        torch.testing.assert_close(in_lockstep.flat(name), deferred.flat(name), rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize("context", quick(20, of=[20, 30]))
def test_rows_end_where_context_was_dropped_and_never_exceed_the_models_positions(context):
    model = ending_often(make_gpt2(conversation_tokenizer(), n_positions=context + 5))
    both = []
    for join_turns in (True, False):
        kwargs = {"env_kwargs": {"max_prompt_length": context}, "join_turns": join_turns, **ALL_AT_ONCE}
        trained = algorithm_on_conversations(PPO, model, **kwargs)
        both.append(collect(trained))
    joined, separate = both
    lengths = joined.prompt_mask.sum(dim=1) + joined.token_mask.sum(dim=1)
    assert lengths.max() <= context + MAX_REPLY
    n_episodes = len(np.unique(joined.row_episodes()))
    assert n_episodes < len(joined) < len(separate)
    for name in NUMBERS:
        torch.testing.assert_close(joined.flat(name), separate.flat(name), rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize("name", quick("gemma2", "mamba", "mixtral", "openai-gpt", of=architectures.CAUSAL))
def test_every_architecture_reads_three_turns_as_one_row(name):
    env = make_env(make_tokenizer(), vocab_size=25, max_prompt_length=12)
    policy = make_policy(env, architectures.make_model(name), critic="shared")
    prompts = [[3, 4], [3, 4, 5, 6, 9, 9], [3, 4, 5, 6, 9, 9, 7, 10]]
    separate = Replies.from_ids(prompts, [[5, 6], [7], [8, 8, 11]])
    separate.episode = torch.zeros(3, dtype=torch.long)
    joined = joined_turns(separate)
    assert joined.response_ids.tolist() == [[5, 6, 9, 9, 7, 10, 8, 8, 11]]
    with torch.no_grad():
        both = evaluated(policy, joined), evaluated(policy, separate)
    for number, other in zip(*both, strict=True):
        torch.testing.assert_close(number[joined.response_mask], other[separate.response_mask], rtol=1e-5, atol=1e-5)
