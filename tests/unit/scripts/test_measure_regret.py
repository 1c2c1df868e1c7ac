"""Regrets in guess_what: the best player's value, the sum over a game, and the exact return of a last turn."""

import math
from types import SimpleNamespace

import measure_regret as module
import numpy as np
import pytest
from exact_guess_what import value
from measure_regret import ALL, best_value, last_turn_values, left_after, mask, regrets, utterance_value

from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Sample, Turn
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.tasks.guess_what import GUESSES, MAX_TURNS, OPENING, ConsistentPlayer, GuessWhatPartner
from rl4dialog.tasks.playing import play


def test_best_values_are_those_of_small_games():
    assert best_value(1, 1) == best_value(1, 8) == pytest.approx(0.95)
    # Two things: the second guess is right if the first one is not.
    assert best_value(0b11, 2) == pytest.approx(0.5 * 0.95 + 0.5 * 0.9)
    assert best_value(0b11, 1) == pytest.approx(0.5 - 0.05)
    assert best_value(ALL, MAX_TURNS) == pytest.approx(0.70875)
    assert best_value(ALL, MAX_TURNS) > value(frozenset(), "dog") and best_value(ALL, 5) < best_value(ALL, MAX_TURNS)


def test_an_utterance_that_is_not_understood_or_that_tells_nothing_new_costs_a_turn():
    for said in ("what ?", "is it a " * 2, GUESSES["dog"].text):
        left = ALL if "dog" not in said else mask(["mouse", "shark"])
        assert utterance_value(left, said, 3) == pytest.approx(best_value(left, 2) - 0.05)


def test_regrets_of_a_game_are_on_average_what_the_best_player_has_more():
    lost = []
    for seed in range(200):
        thing = list(GUESSES)[seed % len(GUESSES)]
        sample = Sample(seed, "", [], {"history": [OPENING], "thing": thing})
        game = play(ConsistentPlayer(), GuessWhatPartner(), sample, MAX_TURNS, seed)
        found = regrets(game)
        assert len(found) == len(game.agent_turns) and min(found) > -1e-9
        lost.append(sum(found))
    mean = np.mean([value(frozenset(), thing) for thing in GUESSES])
    assert np.mean(lost) == pytest.approx(0.70875 - mean, abs=3 * np.std(lost) / math.sqrt(200))


def test_last_turn_of_a_policy_with_equal_probabilities():
    said = [OPENING, "is it alive ?", "yes", "is it a dog ?", "no"]
    left = left_after(said)
    assert left and not left & mask(["dog"])
    policy = SimpleNamespace(
        dialogue_format=DialogueFormat("eou", None),
        log_probs=lambda prompts, replies: [[math.log(0.5 / len(replies))]] * len(replies),
    )
    exact, others = last_turn_values(policy, said)
    n_said = len(module.QUESTIONS) + len(GUESSES)
    assert exact == pytest.approx(0.5 / n_said - 0.05) and others == pytest.approx(0.5)


def test_numbers_of_a_run():
    turns = [Turn(OPENING, PARTNER)]
    for _ in range(MAX_TURNS):
        turns += [Turn("is it alive ?", AGENT), Turn("yes", PARTNER)]
    game = Dialogue("a", tuple(turns), n_given=1)
    policy = SimpleNamespace(
        dialogue_format=DialogueFormat("eou", None),
        log_probs=lambda prompts, replies: [[-10.0]] * len(replies),
        values=lambda prompts, replies: [[0.25]] * len(replies),
    )
    found = module.measure(policy, [game, game], 2)
    # The first question is good, and each later one loses a turn; the last one loses the right guess.
    assert found["games"] == found["last turns"] == 2 and found["mean value"] == 0.25
    assert found["regret"] == pytest.approx(sum(found["regret by turn"])) and found["regret by turn"][0] < 0.1
    assert found["best return"] == pytest.approx(1 / left_after([OPENING, "is it alive ?", "yes"]).bit_count() - 0.05)
