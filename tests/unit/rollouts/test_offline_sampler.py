from __future__ import annotations

import numpy as np

from rl4dialog.rollouts.conversation_log import OfflineSampler

N_TOKENS = np.random.default_rng(0).integers(1, 30, size=200)


def epoch_of(sampler: OfflineSampler, n: int = len(N_TOKENS)) -> list[np.ndarray]:
    batches: list[np.ndarray] = []
    while sum(map(len, batches)) < n:
        batches.append(sampler.next())
    return batches


def test_epoch_has_every_conversation_once_and_batches_of_about_the_size() -> None:
    sampler = OfflineSampler(N_TOKENS, 100, seed=0)
    for _ in range(3):
        batches = epoch_of(sampler)
        assert sorted(np.concatenate(batches)) == list(range(200))
        sizes = [int(N_TOKENS[batch].sum()) for batch in batches]
        assert len(sizes) == round(int(N_TOKENS.sum()) / 100) and all(70 <= size <= 130 for size in sizes)
    assert sampler.epoch == 3 - 1 + 1


def test_orders_differ_between_epochs_and_seeds_and_are_repeatable() -> None:
    first, again, other = (OfflineSampler(N_TOKENS, 100, seed=seed) for seed in (0, 0, 1))
    orders = [np.concatenate(epoch_of(sampler)) for sampler in (first, first, again, other)]
    assert (orders[0] == orders[2]).all()
    assert (orders[0] != orders[1]).any() and (orders[0] != orders[3]).any()


def test_state_continues_in_the_middle_of_an_epoch() -> None:
    sampler = OfflineSampler(N_TOKENS, 100, seed=0)
    for _ in range(40):
        sampler.next()
    other = OfflineSampler(N_TOKENS, 100, seed=0)
    other.load_state_dict(sampler.state_dict())
    for _ in range(60):
        assert (sampler.next() == other.next()).all()


def test_batch_size_above_the_log_is_one_batch() -> None:
    assert len(OfflineSampler(np.array([3, 4]), 1000, seed=0).next()) == 2


def test_first_minibatches_are_those_of_the_first_epoch_whenever_they_are_asked_for() -> None:
    sampler = OfflineSampler(np.random.default_rng(0).integers(1, 30, 50), 100, 3)
    expected, number = np.full(50, -1), 0
    while sampler.epoch < 1:
        expected[sampler.next()] = number
        number += 1
    sampler.next()
    assert number > 3 and sampler.first_minibatches().tolist() == expected.tolist()
