"""Weighted and clipped terms of a reward."""

import math

import pytest

from rl4dialog.core.reward_parts import RewardPart, clip_bounds
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn, is_whole_number


def test_term_is_clipped_then_weighted():
    part = RewardPart("a", lambda iteration: 10.0 * iteration, None, clip=(-1.0, 2.0))
    assert [part.term(value, 2) for value in (-5, 0.5, 7)] == [-20.0, 10.0, 40.0]
    assert RewardPart("b", 0.5, None).term(7.0) == 3.5
    assert math.isnan(part.term(math.nan))


@pytest.mark.parametrize(("value", "bounds"), [(2, (-2.0, 2.0)), (0.5, (-0.5, 0.5)), ([0, 1], (0.0, 1.0))])
def test_clip_is_one_number_or_two(value, bounds):
    assert clip_bounds(value) == bounds


@pytest.mark.parametrize("value", [0, -1, True, "1", None, [1], [1, 0], [1, 1], [0, 1, 2], [None, 1]])
def test_other_clips_are_refused(value):
    with pytest.raises(ValueError, match="a positive number or"):
        clip_bounds(value)


@pytest.mark.parametrize(
    ("value", "fits"), [(2, True), (3, True), (1, False), (True, False), (2.0, False), ("2", False)]
)
def test_whole_numbers_are_integers_and_no_truth_values(value, fits):
    assert is_whole_number(value, at_least=2) == fits


@pytest.mark.parametrize(
    ("speakers", "n_given", "bounds"),
    [
        ("PAPAP", 1, [1, 3, 5]),
        ("PAPAPA", 3, [3, 5, 6]),  # the last utterance was not answered
        ("APAAP", 0, [0, 2, 3, 5]),  # the partner said nothing to the second one
        ("PAP", 0, [1, 3]),  # the partner begins
        ("P", 1, [1]),
    ],
)
def test_turn_ends_where_the_agent_speaks_again(speakers, n_given, bounds):
    turns = tuple(Turn("", {"A": AGENT, "P": PARTNER}[speaker]) for speaker in speakers)
    assert Dialogue(0, turns, n_given=n_given).turn_bounds == bounds
