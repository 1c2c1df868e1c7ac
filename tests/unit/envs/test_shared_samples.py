from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest
from tiny import make_env, make_samples, make_tokenizer

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Sample
from rl4dialog.envs.text_generation import SharedSamples, sampling_probabilities, sampling_weights


def test_samples_come_back_as_they_were() -> None:
    samples = [*make_samples(), Sample("last", "w0", [], None)]
    shared = pickle.loads(pickle.dumps(SharedSamples(samples)))
    assert list(shared) == samples and len(shared) == 7
    assert shared[-1] == samples[-1] and shared[1:3] == samples[1:3]
    with pytest.raises(IndexError):
        shared[7]
    assert len(SharedSamples([])) == 0


def test_a_changed_sample_is_fresh_the_next_time() -> None:
    shared = SharedSamples(make_samples())
    shared[2].references.append("more")
    assert shared[2].references == make_samples()[2].references


def test_sample_that_cannot_be_pickled_is_named() -> None:
    with pytest.raises(DataError, match="sample 's7' cannot be pickled: TypeError"):
        SharedSamples([*make_samples(), Sample("s7", "w0", [], {"lock": threading.Lock()})])


def test_weights_are_kept_and_none_if_alike() -> None:
    pairs = [(sample, float(i)) for i, sample in enumerate(make_samples(3), 1)]
    np.testing.assert_array_equal(SharedSamples(pairs).weights, [1, 2, 3])
    assert SharedSamples(pairs)[2] == make_samples(3)[2]
    assert sampling_weights([(sample, 2.0) for sample in make_samples(3)]) is None
    assert sampling_weights([]) is None


@pytest.mark.parametrize(
    ("scale", "expected"), [(0, [1 / 3, 1 / 3, 1 / 3]), (1, [1 / 6, 2 / 6, 3 / 6]), (2, [1 / 14, 4 / 14, 9 / 14])]
)
def test_probabilities_are_powers_of_the_weights(scale: float, expected: list[float]) -> None:
    np.testing.assert_allclose(sampling_probabilities(np.array([1.0, 2.0, 3.0]), scale), expected)


def test_extreme_weights_and_scales_stay_probabilities() -> None:
    for weights in ([1e-300, 1e300], [5e-324, 1.0]):
        for scale in (0.5, 1.0, 1e6):
            probabilities = sampling_probabilities(np.array(weights), scale)
            assert np.isfinite(probabilities).all() and probabilities.sum() == pytest.approx(1)


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_order_is_that_of_a_list(weight: float) -> None:
    samples = [(sample, 1.0 if i else weight) for i, sample in enumerate(make_samples())]
    orders = []
    for given in (samples, SharedSamples(samples)):
        env = make_env(make_tokenizer(), samples=given)
        orders.append([env.reset(seed=3)[1]["sample_id"]] + [env.reset()[1]["sample_id"] for _ in range(13)])
    assert orders[0] == orders[1]
