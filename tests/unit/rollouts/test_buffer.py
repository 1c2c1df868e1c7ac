"""The buffer of whole replies: conversations, the KL penalty, minibatches."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from rows import one_row, rows_of

from rl4dialog.functional.advantages import generalized_advantages
from rl4dialog.functional.replies import ReplySamples
from rl4dialog.rollouts.buffer import GroupRolloutBuffer, SequenceRolloutBuffer

NUMBERS = ("actions", "old_values", "old_log_prob", "advantages", "returns", "ref_log_prob")


def make_buffer(gamma=0.9, gae_lambda=0.8, **kwargs):
    space = spaces.Discrete(10)
    return SequenceRolloutBuffer(8, space, space, "cpu", gamma=gamma, gae_lambda=gae_lambda, **kwargs)


def utterance(rng, n, episode, **overrides):
    arrays = {name: rng.normal(size=n).astype(np.float32) for name in ("log_probs", "ref_log_probs", "values")}
    arrays["unmasked_log_probs"] = arrays["log_probs"]
    fields = {
        "prompt_ids": rng.integers(1, 9, size=rng.integers(1, 5)),
        "response_ids": rng.integers(1, 9, size=n),
        "task_rewards": rng.normal(size=n).astype(np.float32),
        "episode": episode,
        **arrays,
        **overrides,
    }
    return one_row(**fields)


def test_advantages_run_from_the_last_token_of_a_turn_to_the_first_of_the_next():
    """Turns of two conversations, interleaved as parallel environments deliver them, against one long episode each."""
    rng = np.random.default_rng(0)
    conversations = [[utterance(rng, n, 0) for n in (3, 1, 4)], [utterance(rng, n, 1) for n in (2, 5)]]
    buffer = make_buffer()
    for turn in range(3):
        for conversation in conversations:
            if turn < len(conversation):
                buffer.add(conversation[turn])
    buffer.compute_rewards(0.3)
    buffer.compute_returns_and_advantage()
    rows = rows_of(buffer)
    for episode in range(2):
        conversation = [row for row in rows if row.episode == episode]
        rewards = np.concatenate([u.task_rewards - 0.3 * (u.log_probs - u.ref_log_probs) for u in conversation])
        values = np.concatenate([u.values for u in conversation])
        mask = np.ones((1, len(values)), dtype=bool)
        advantages, returns = generalized_advantages(rewards[None], values[None], mask, np.zeros(1), 0.9, 0.8)
        np.testing.assert_allclose(np.concatenate([u.advantages for u in conversation]), advantages[0], rtol=1e-5)
        np.testing.assert_allclose(np.concatenate([u.returns for u in conversation]), returns[0], rtol=1e-5)


def test_kl_is_charged_without_the_mask_and_ratios_are_taken_with_it():
    """Under a mask, tokens are more probable than the unmasked policy has them: that is no divergence to pay for."""
    log_probs, unmasked, reference = (np.array(row, dtype=np.float32) for row in ([-0.1, -0.2], [-1, -2], [-4, -3]))
    u = utterance(
        np.random.default_rng(0), 2, 0, log_probs=log_probs, unmasked_log_probs=unmasked, ref_log_probs=reference
    )
    buffer = make_buffer()
    buffer.add(u)
    buffer.compute_rewards(0.5)
    (u,) = rows_of(buffer)
    np.testing.assert_allclose(u.rewards, u.task_rewards - 0.5 * np.array([3.0, 1.0]), rtol=1e-6)
    buffer.compute_returns_and_advantage()
    samples = next(buffer.get(None))
    np.testing.assert_array_equal(samples.old_log_prob, log_probs)
    np.testing.assert_array_equal(samples.ref_log_prob, reference)


@pytest.mark.parametrize("batch_size", [None, 1, 7, 16, 1000])
def test_minibatches_hold_every_utterance_once_and_are_about_as_large_as_wanted(batch_size):
    rng = np.random.default_rng(3)
    buffer = make_buffer()
    for i in range(20):
        buffer.add(utterance(rng, int(rng.integers(1, 6)), i))
    buffer.compute_rewards(0.0)
    buffer.compute_returns_and_advantage()
    batches = list(buffer.get(batch_size))
    seen = np.sort(np.concatenate([batch.old_log_prob.numpy() for batch in batches]))
    np.testing.assert_array_equal(seen, np.sort(np.concatenate([u.log_probs for u in rows_of(buffer)])))
    if batch_size in (7, 16):
        assert max(len(batch.old_values) for batch in batches) <= batch_size + 6


def test_nothing_collected_is_not_an_error():
    buffer = make_buffer()
    buffer.compute_rewards(0.1)
    buffer.compute_returns_and_advantage()
    assert buffer.n_tokens == 0


def filled(rng, lengths, **kwargs):
    """A buffer of conversations of one reply each."""
    buffer = make_buffer(**kwargs)
    for i, n in enumerate(lengths):
        buffer.add(utterance(rng, n, i))
    buffer.compute_rewards(0.0)
    buffer.compute_returns_and_advantage()
    return buffer


def test_emptied_buffer_is_as_new():
    buffer = filled(np.random.default_rng(0), [2, 3])
    assert buffer.full and len(buffer.values) == len(buffer.returns) == buffer.n_tokens == 5
    buffer.reset()
    assert not buffer.full and buffer.n_tokens == 0
    for array in (buffer.values, buffer.returns):
        assert array.shape == (0,) and array.dtype == np.float32


def test_values_and_returns_of_the_buffer_are_in_the_order_of_its_utterances():
    buffer = filled(np.random.default_rng(1), [2, 1, 4])
    np.testing.assert_array_equal(buffer.values, np.concatenate([u.values for u in rows_of(buffer)]))
    np.testing.assert_array_equal(buffer.returns, np.concatenate([u.returns for u in rows_of(buffer)]))


def test_all_numbers_of_tokens_stay_in_single_precision():
    buffer = filled(np.random.default_rng(2), [2, 3], normalize_rewards=True)
    for u in rows_of(buffer):
        assert {array.dtype for array in (u.rewards, u.advantages, u.returns)} == {np.dtype(np.float32)}
    samples = next(buffer.get())
    assert {getattr(samples, name).dtype for name in NUMBERS[1:]} == {torch.float32}
    assert {samples.actions.dtype, samples.observations["prompt_ids"].dtype} == {torch.int64}
    assert {samples.observations[f"{part}_mask"].dtype for part in ("prompt", "response")} == {torch.bool}


@pytest.mark.parametrize(
    ("micro_batch_size", "fixed_cost", "sizes"),
    [
        (None, None, [5]),
        (2, None, [2, 2, 1]),
        (5, None, [5]),
        (2, 1e9, [2, 2, 1]),
        (None, 1e9, [5]),
        (None, 0.0, [1] * 5),
    ],
)
def test_parts_are_as_large_as_allowed_and_padded_to_their_own_longest(micro_batch_size, fixed_cost, sizes):
    buffer = make_buffer()
    rng = np.random.default_rng(4)
    for i, (n_prompt, n) in enumerate([(0, 5), (7, 1), (3, 3), (1, 2), (0, 4)]):
        buffer.add(utterance(rng, n, i, prompt_ids=rng.integers(1, 9, size=n_prompt)))
    buffer.compute_rewards(0.0)
    buffer.compute_returns_and_advantage()
    whole = ReplySamples(buffer.replies)
    parts = list(whole.split(micro_batch_size, fixed_cost))
    assert sorted(len(part.observations["prompt_ids"]) for part in parts) == sorted(sizes)
    rows = []
    for part in parts:
        obs = part.observations
        assert obs["response_ids"].shape == obs["response_mask"].shape and obs["response_mask"].any(dim=0).all()
        assert obs["prompt_ids"].shape == obs["prompt_mask"].shape
        if len(parts) > 1:
            assert obs["prompt_ids"].shape[1] == max(int(obs["prompt_mask"].sum(dim=1).max()), 1)
        first = 0
        for row, n in enumerate(obs["response_mask"].sum(dim=1).tolist()):
            prompt = obs["prompt_ids"][row][obs["prompt_mask"][row]].tolist()
            numbers = [flat[first : first + n].tolist() for flat in (getattr(part, name) for name in NUMBERS)]
            assert numbers[0] == obs["response_ids"][row][obs["response_mask"][row]].tolist()
            rows.append((prompt, *numbers))
            first += n
    expected = [
        tuple(
            getattr(u, name).tolist()
            for name in ("prompt_ids", "response_ids", "values", "log_probs", "advantages", "returns", "ref_log_probs")
        )
        for u in rows_of(buffer)
    ]
    assert sorted(rows) == sorted(expected)


def test_minibatches_are_cut_evenly_and_drawn_anew_each_time():
    buffer = filled(np.random.default_rng(5), [2] * 12)
    np.random.seed(0)
    orders = []
    for _ in range(2):
        batches = list(buffer.get(8))
        assert [len(batch.actions) for batch in batches] == [8, 8, 8]
        orders.append(torch.cat([batch.old_log_prob for batch in batches]).tolist())
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1])
    assert [len(batch.actions) for batch in buffer.get(7)] == [8, 8, 8], "24 tokens are three minibatches of about 7"
    assert [len(batch.actions) for batch in buffer.get(1)] == [2] * 12, "a reply is never cut"


def test_minibatches_are_even_in_tokens_and_not_in_replies():
    buffer = filled(np.random.default_rng(5), [1] * 30 + [10] * 3)
    np.random.seed(0)
    for _ in range(50):
        sizes = [len(batch.actions) for batch in buffer.get(20)]
        assert len(sizes) == 3 and sum(sizes) == 60
        assert min(sizes) >= 10 and max(sizes) <= 30, "half of a long reply at either end"


def test_reply_longer_than_a_minibatch_takes_one_and_leaves_no_other_empty():
    buffer = filled(np.random.default_rng(6), [40, 1, 1, 1])
    assert sorted(len(batch.observations["prompt_ids"]) for batch in buffer.get(11)) == [1, 1, 1, 1]


def test_normalized_rewards_are_those_that_were_charged():
    """Whitened over all tokens after the KL, by the deviation of the whole (not of a sample)."""
    rng = np.random.default_rng(7)
    plain, normalized = (make_buffer(normalize_rewards=flag) for flag in (False, True))
    for i, n in enumerate([3, 5]):
        u = utterance(rng, n, i)
        plain.add(u)
        normalized.add(u)
    for buffer in (plain, normalized):
        buffer.compute_rewards(0.3)
    charged, whitened = (np.concatenate([u.rewards for u in rows_of(buffer)]) for buffer in (plain, normalized))
    np.testing.assert_allclose(whitened, (charged - charged.mean()) / charged.std(), rtol=1e-4, atol=1e-5)


def test_normalized_rewards_keep_what_they_were_added_up_from():
    buffer = make_buffer(normalize_rewards=True)
    for episode, reward in enumerate((1.0, 3.0, 8.0)):
        numbers = {name: [0.0] for name in ("log_probs", "unmasked_log_probs", "ref_log_probs", "values")}
        buffer.add(one_row([1], [2], episode=episode, task_rewards=[reward], **numbers))
    buffer.compute_rewards(0.0)
    assert not buffer.constant_rewards
    deviation = np.std([1.0, 3.0, 8.0])
    np.testing.assert_allclose(
        buffer.replies.flat("reward_scales"), (np.array([1.0, 3.0, 8.0]) + 4) / deviation, rtol=1e-5
    )


def test_constant_rewards_are_normalized_to_zero():
    buffer = make_buffer(normalize_rewards=True)
    numbers = {name: [0.0, 0.0] for name in ("log_probs", "unmasked_log_probs", "ref_log_probs", "values")}
    for episode in range(3):
        buffer.add(one_row([1], [2, 3], episode=episode, task_rewards=[0.7, 0.7], **numbers))
    buffer.compute_rewards(0.0)
    assert buffer.constant_rewards
    assert not buffer.replies.flat("rewards").any() and not buffer.replies.flat("reward_scales").any()


LENGTHS = ([3, 1, 4], [2], [1, 5])


def conversations_in(rng, **kwargs):
    """A buffer of conversations of several turns each, of which the last is cut, with a KL penalty of 0.3 per nat."""
    buffer = make_buffer(**kwargs)
    for episode, lengths in enumerate(LENGTHS):
        for turn, n in enumerate(lengths):
            is_cut = episode == 2 and turn == 1
            buffer.add(utterance(rng, n, episode, turn=turn, last_value=1.5 * is_cut))
    buffer.compute_rewards(0.3)
    buffer.compute_returns_and_advantage()
    return buffer


def episode_of(buffer, episode, name):
    return np.concatenate([getattr(row, name) for row in rows_of(buffer) if row.episode == episode])


@pytest.mark.parametrize("normalize_rewards", [False, True])
def test_credit_of_turns_is_shared_and_the_kl_is_each_tokens_own(normalize_rewards):
    kwargs = {"turn_gamma": 0.7, "turn_gae_lambda": 0.6, "normalize_rewards": normalize_rewards}
    buffer = conversations_in(np.random.default_rng(8), credit="turn", **kwargs)
    kl = {e: 0.3 * (episode_of(buffer, e, "log_probs") - episode_of(buffer, e, "ref_log_probs")) for e in range(3)}
    charged = np.concatenate([episode_of(buffer, e, "task_rewards") - kl[e] for e in range(3)])
    mean, deviation = (charged.mean(), charged.std()) if normalize_rewards else (0.0, 1.0)
    for episode, lengths in enumerate(LENGTHS):
        task = (episode_of(buffer, episode, "task_rewards") - mean) / deviation
        values, turns = episode_of(buffer, episode, "values"), np.repeat(np.arange(len(lengths)), lengths)
        starts = np.cumsum([0, *lengths[:-1]])
        v = [*values[starts], 1.5 if episode == 2 else 0.0]
        deltas = [task[turns == u].sum() + 0.7 * v[u + 1] - v[u] for u in range(len(lengths))]
        own = [sum(0.42 ** (k - u) * deltas[k] for k in range(u, len(lengths))) for u in range(len(lengths))]
        expected = np.repeat(own, lengths) - kl[episode] / deviation
        np.testing.assert_allclose(episode_of(buffer, episode, "advantages"), expected, rtol=1e-4, atol=1e-5)
        targets = np.repeat(np.add(own, v[:-1]), lengths)
        np.testing.assert_allclose(episode_of(buffer, episode, "returns"), targets, rtol=1e-4, atol=1e-5)


def test_credit_of_tokens_has_factors_of_its_own_between_turns():
    buffer = conversations_in(np.random.default_rng(9), turn_gamma=0.5, turn_gae_lambda=0.3)
    for episode, lengths in enumerate(LENGTHS):
        rewards, values = episode_of(buffer, episode, "rewards"), episode_of(buffer, episode, "values")
        ends = np.isin(np.arange(len(values)), np.cumsum(lengths) - 1)
        factors = np.where(ends, 0.5, 0.9)[None], np.where(ends, 0.3, 0.8)[None]
        last = np.array([1.5 if episode == 2 else 0.0])
        mask = np.ones((1, len(values)), dtype=bool)
        expected, _ = generalized_advantages(rewards[None], values[None], mask, last, *factors)
        np.testing.assert_array_equal(episode_of(buffer, episode, "advantages"), expected[0])


@pytest.mark.parametrize("credit", ["token", "turn"])
def test_factors_of_turns_are_by_default_those_of_tokens(credit):
    unset, given = (
        conversations_in(np.random.default_rng(10), credit=credit, **kwargs)
        for kwargs in ({}, {"turn_gamma": 0.9, "turn_gae_lambda": 0.8})
    )
    for name in ("advantages", "returns", "advantage_scales"):
        np.testing.assert_array_equal(unset.replies.flat(name), given.replies.flat(name))


@pytest.mark.parametrize("credit", ["token", "turn"])
def test_scales_of_advantages_are_the_sums_without_signs(credit):
    """Numbers whose parts all count in one direction: then nothing cancels, and the scale is the advantage itself."""
    rng = np.random.default_rng(11)
    buffer = make_buffer(credit=credit, turn_gamma=0.7, turn_gae_lambda=0.6)
    zeros, lengths = np.zeros(9), [2, 3, 4]
    for turn, n in enumerate(lengths):
        task, kl = rng.uniform(1, 2, size=(2, n))
        numbers = {"values": zeros[:n], "unmasked_log_probs": -kl, "ref_log_probs": zeros[:n], "log_probs": -kl}
        buffer.add(one_row([1], np.ones(n), turn=turn, task_rewards=task, last_value=2.0 * (turn == 2), **numbers))
    buffer.compute_rewards(0.5)
    buffer.compute_returns_and_advantage()
    np.testing.assert_allclose(buffer.replies.flat("advantage_scales"), buffer.replies.flat("advantages"), rtol=1e-5)


def test_scales_of_turns_count_each_value_once():
    buffer = conversations_in(np.random.default_rng(12), credit="turn")
    numbers = {name: episode_of(buffer, 1, name) for name in ("task_rewards", "values", "rewards", "advantage_scales")}
    kl = np.abs(numbers["task_rewards"] - numbers["rewards"])
    expected = np.abs(numbers["task_rewards"]).sum() + 2 * abs(numbers["values"][0]) + kl
    np.testing.assert_allclose(numbers["advantage_scales"], expected, rtol=1e-5)


def test_credit_of_turns_of_one_token_is_that_of_tokens_without_kl():
    rng = np.random.default_rng(13)
    rows = [utterance(rng, 1, i // 3, turn=i % 3, last_value=0.7 * (i == 5)) for i in range(6)]
    found = []
    for credit in ("token", "turn"):
        buffer = make_buffer(credit=credit, turn_gamma=0.6, turn_gae_lambda=0.5)
        for row in rows:
            buffer.add(row)
        buffer.compute_rewards(0.0)
        buffer.compute_returns_and_advantage()
        found.append([buffer.replies.flat(name) for name in ("advantages", "returns", "advantage_scales")])
    for of_tokens, of_turns in zip(*found, strict=True):
        np.testing.assert_allclose(of_tokens, of_turns, rtol=1e-6)


SPACE = spaces.Discrete(10)


def grouped_utterance(episode, group, *rewards):
    same = dict.fromkeys(("unmasked_log_probs", "ref_log_probs"), np.zeros(len(rewards)))
    return one_row([1], np.arange(len(rewards)), episode, group, task_rewards=rewards, **same)


def filled_with_groups():
    """Two groups, interleaved; one conversation has two turns. Totals: 1 and 5 of group 4, 2 and 12 of group 9."""
    buffer = GroupRolloutBuffer(1, SPACE, SPACE, "cpu", advantages_of=lambda totals, _: totals - totals.min())
    for row in (
        grouped_utterance(0, 4, 1.0),
        grouped_utterance(1, 9, 0.0, 2.0),
        grouped_utterance(2, 4, 2.0, 1.0),
        grouped_utterance(3, 9, 12.0),
        grouped_utterance(2, 4, 2.0),
    ):
        buffer.add(row)
    buffer.compute_rewards(0.0)
    buffer.compute_returns_and_advantage()
    return buffer


def test_every_token_has_the_advantage_of_its_conversation_in_its_group():
    buffer = filled_with_groups()
    assert buffer.full
    assert [u.advantages.tolist() for u in rows_of(buffer)] == [[0.0], [0.0, 0.0], [4.0, 4.0], [10.0], [4.0]]
    assert [u.returns.tolist() for u in rows_of(buffer)] == [[1.0], [2.0, 2.0], [5.0, 5.0], [12.0], [5.0]]
    assert {array.dtype for u in rows_of(buffer) for array in (u.advantages, u.returns)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("batch_size", [1, 4, None])
def test_utterances_of_a_group_share_a_minibatch(batch_size):
    batches = [sorted(batch.returns.tolist()) for batch in filled_with_groups().get(batch_size)]
    groups = [[1.0, 5.0, 5.0, 5.0], [2.0, 2.0, 12.0]]
    assert sorted(batches) == (groups if batch_size else [sorted(groups[0] + groups[1])])
