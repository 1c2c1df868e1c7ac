"""The measure of a critic: ranks of hand-made numbers, repeated conversations, and exact returns of a game."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from conversing import MARKER, MAX_REPLY, conversation_env, conversation_tokenizer, ending_often
from critics import SAMPLE, Consistent, asked_in, game_config, states_of
from exact_guess_what import moments, value
from partners import RulesService
from tiny import make_env, make_gpt2, make_policy, make_tokenizer

from rl4dialog.core.errors import ConfigError, DataError, ModelError, PartnerError
from rl4dialog.core.types import AGENT, PARTNER, Sample
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.functional.replies import Replies
from rl4dialog.partners.scripted import RulesPartner
from rl4dialog.rollouts.conversing import Begun, Conversing
from rl4dialog.tasks.guess_what import THINGS
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.training.assembly import Assembly
from rl4dialog.training.building.conditions import conditions_met
from rl4dialog.training.critic_measure import AT_CHANCE, CriticMeasure, value_ranks


def test_ranks_of_hand_made_numbers():
    # Turn 0: perfect. Turn 1: reversed. Over all states, the turns are in the right order.
    values, turns = [1.0, 2, 3, 11, 12, 13], [0, 0, 0, 1, 1, 1]
    returns = np.array([[1.0, 1], [2, 2], [3, 3], [7, 7], [6, 6], [5, 5]])
    ranks, _ = value_ranks(states_of(values, turns), returns)
    assert ranks["value_rank_within_turns"] == 0
    assert ranks["value_rank"] == pytest.approx(1 - 6 * (4 + 4) / (6 * 35))
    # A turn in which the critic says one thing is left out, unless there is no other.
    ranks, _ = value_ranks(states_of([5.0, 5, 5, 11, 12, 13], turns), returns)
    assert ranks["value_rank_within_turns"] == -1
    ranks, warning = value_ranks(states_of([5.0] * 6, turns), returns)
    assert ranks == {"value_rank": 0, "value_rank_within_turns": 0} and warning == AT_CHANCE
    assert value_ranks(states_of(values), returns)[0].keys() == {"value_rank"}
    assert value_ranks(states_of(values), np.ones((6, 2))) == ({}, None)


# -- repeated conversations -------------------------------------------------------------------------------------------


def leaving(**overrides):
    """A policy and its conversations with a partner that draws its answers."""
    tokenizer = conversation_tokenizer()
    env = conversation_env(tokenizer, **overrides)
    policy = make_policy(env, ending_often(make_gpt2(tokenizer)))
    return policy, Conversing(lambda policy, max_length: UtteranceView(copy.deepcopy(env)))


def test_conversation_is_repeated_up_to_a_step_and_then_goes_on_differently():
    policy, conversing = leaving()
    samples, seeds = [SAMPLE] * 12, list(range(12))
    torch.manual_seed(0)
    held = conversing(policy, samples, seeds, begun=[Begun()] * 12, values_of=policy.predict_sequence_values)
    whole = conversing(policy, samples, seeds, begun=[Begun(talk.steps) for talk in held])
    assert [talk.dialogue for talk in whole] == [talk.dialogue for talk in held]
    assert [talk.steps for talk in whole] == [talk.steps for talk in held]
    long = [i for i, talk in enumerate(held) if len(talk.steps) == 6]
    assert len(long) > 1
    begun = [Begun(held[i].steps[:3], {3: 100 + i}) for i in long]
    other = conversing(policy, [SAMPLE] * len(long), [seeds[i] for i in long], begun=begun)
    for i, talk in zip(long, other, strict=True):
        old, new = held[i].dialogue, talk.dialogue
        n_same = old.turn_bounds[3]  # the answer to the third utterance is repeated, too
        assert new.turns[:n_same] == old.turns[:n_same] and new.turns[n_same:] != old.turns[n_same:]
        assert [speaker for speaker, _ in talk.steps] == [AGENT] * len(talk.steps)
    # The same utterances, but other answers of the partner from the second step on.
    begun = [Begun(held[i].steps, {1: 100 + i}) for i in long]
    other = conversing(policy, [SAMPLE] * len(long), [seeds[i] for i in long], begun=begun)
    for i, talk in zip(long, other, strict=True):
        old, new = held[i].dialogue.turns, talk.dialogue.turns
        assert new[:3] == old[:3] and [t.text for t in new[3::2]] == [t.text for t in old[3::2]]
        assert new[4::2] != old[4::2]


def test_answers_of_a_partner_in_the_main_process_are_repeated_without_asking_it():
    tokenizer = conversation_tokenizer()
    service = RulesService([{"pattern": "w1", "replies": ["w2", "w4 w5"]}], "w3", None, tokenizer, 40, MAX_REPLY)
    env = conversation_env(tokenizer, partner=None, outside_partner=service.side, max_turns=3)
    policy = make_policy(env, ending_often(make_gpt2(tokenizer)))
    conversing = Conversing(lambda policy, max_length: UtteranceView(copy.deepcopy(env)), service)
    samples, seeds = [SAMPLE] * 6, [0] * 6
    held = conversing(policy, samples, seeds, begun=[Begun()] * 6)
    assert [[speaker for speaker, _ in talk.steps] for talk in held] == [[AGENT, PARTNER] * 3] * 6
    n_asked = len(service.seen)
    again = conversing(policy, samples, seeds, begun=[Begun(talk.steps) for talk in held])
    assert [talk.dialogue for talk in again] == [talk.dialogue for talk in held] and len(service.seen) == n_asked
    other = conversing(policy, samples, seeds, begun=[Begun(talk.steps[:4]) for talk in held])
    pairs = [
        (new.dialogue.turns, old.dialogue.turns, old.dialogue.turn_bounds[2])
        for new, old in zip(other, held, strict=True)
    ]
    assert all(new[:n] == old[:n] for new, old, n in pairs) and any(new[n:] != old[n:] for new, old, n in pairs)
    assert len(service.seen) == n_asked + 6


def test_values_are_those_of_the_states_before_each_token():
    policy, conversing = leaving()
    talks = conversing(policy, [SAMPLE] * 3, [0, 1, 2], values_of=policy.predict_sequence_values)
    tokenizer = policy.end_of_turn.tokenizer
    for talk in talks:
        reply = talk.replies[0]
        prompt = tokenizer(SAMPLE.prompt_or_input_text)["input_ids"]
        batch = Replies.from_ids([prompt], [reply.of_tokens("response_ids").tolist()])
        assert reply.of_tokens("values") == pytest.approx(policy.predict_sequence_values(batch)[0].detach(), abs=1e-5)
    assert talks[0].steps == [] and conversing(policy, [SAMPLE], [0])[0].replies[0].of_tokens("values") is None


@pytest.mark.parametrize("marker", [None, MARKER])
def test_single_reply_goes_on_after_its_first_tokens(marker):
    tokenizer = make_tokenizer(marker=marker)
    env = make_env(tokenizer, end_of_turn=EndOfTurn(tokenizer, [0], marker), max_episode_length=5)
    policy = make_policy(env, make_gpt2(tokenizer), generation_kwargs={"min_length": 3})  # of which two are given
    conversing = Conversing(lambda policy, max_length: UtteranceView(copy.deepcopy(env)))
    words = [[4, 5], [6, 7]] * 20
    talks = conversing(policy, [Sample(0, "w1 w2", [])] * 40, [0] * 40, begun=[Begun(words=each) for each in words])
    found = [talk.replies[0].of_tokens("response_ids").tolist() for talk in talks]
    assert [ids[:2] for ids in found] == words
    assert all(4 <= len(ids) <= 5 and (policy.end_of_turn.is_end(ids) or len(ids) == 5) for ids in found)
    assert len({tuple(ids[2:]) for ids in found}) > 5


def test_generators_of_a_partner_are_reseeded():
    def answers(seed=None):
        partner = RulesPartner([{"pattern": "x", "replies": "y"}], otherwise=[str(i) for i in range(50)])
        partner.reset({}, 0)
        partner.generator = generator = np.random.default_rng(0)
        if seed is not None:
            partner.reseed(seed)
        return [partner.reply(["a"]).text for _ in range(5)], generator.integers(1000, size=5).tolist()

    assert answers() == answers() != answers(1) == answers(1) != answers(2)


# -- a game with exact returns ----------------------------------------------------------------------------------------


def test_exact_returns_are_those_of_the_simulated_player():
    means = [moments(frozenset(), thing)[0] for thing in THINGS]
    assert sum(means) / len(means) == pytest.approx(0.110, abs=5e-4)


def test_continuations_agree_with_exact_returns(tmp_path):
    parts = Assembly(game_config(tmp_path))
    player = Consistent(parts)
    measure = CriticMeasure(parts, player, player, seed=0)
    k = 12
    states, returns, seen = measure.drawn(parts.data.samples("val"), 80, k)
    assert len(states) == 80 and returns.shape == (80, k) and {state.turn for state in states} == set(range(8))
    exact = [moments(asked_in(state.texts), state.sample.meta_data["thing"]) for state in states]
    means, squares = np.array(exact).T
    variances = squares - means**2
    is_open = variances > 1e-9
    assert is_open.sum() > 40 and returns[~is_open] == pytest.approx(np.repeat(means[~is_open, None], k, axis=1))
    z = (returns.mean(axis=1) - means)[is_open] / np.sqrt(variances[is_open] / k)
    assert abs(z.mean()) < 4 / math.sqrt(len(z)) and (z**2).mean() == pytest.approx(1, abs=4 * math.sqrt(2 / len(z)))
    # The critic knows the mean return over the things that are left, and each return contains that of later turns.
    assert [state.value for state in states] == pytest.approx(
        [value(asked_in(state.texts), state.sample.meta_data["thing"]) for state in states]
    )
    by_turn = [seen[seen[:, 0] == turn] for turn in range(8)]
    assert [len(rows) for rows in by_turn][:2] == [80, 80]
    assert np.mean(seen[:, 1] - seen[:, 2]) == pytest.approx(0, abs=4 * np.std(seen[:, 1] - seen[:, 2]) / math.sqrt(80))
    assert value_ranks(states, returns)[0]["value_rank_within_turns"] > 0.2
    assert measure.notes == ()


def test_partner_that_does_not_repeat_its_answers_is_refused(tmp_path, monkeypatch):
    parts, drawn = Assembly(game_config(tmp_path)), itertools.count()
    player = Consistent(parts)
    measure = CriticMeasure(parts, player, player, seed=0)
    reply = "rl4dialog.tasks.guess_what.GuessWhatPartner.reply"
    monkeypatch.setattr(reply, lambda self, history: "yes" if next(drawn) % 3 else "no")
    monkeypatch.setattr(player, "predict_sequence_values", lambda replies: torch.zeros(replies.response_ids.shape))
    with pytest.raises(PartnerError, match="did not repeat its answers about sample 'val_"):
        measure.drawn(parts.data.samples("val"), 20, 2)


def test_too_few_states_are_refused(tmp_path):
    parts = Assembly(game_config(tmp_path))
    player = Consistent(parts)
    with pytest.raises(DataError, match="at least 10 states, but only 9 go on"):
        CriticMeasure(parts, player, player, seed=0).drawn(parts.data.samples("val"), 9, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alg__id": "rloo"}, "alg.id: rloo has no critic"),
        ({"env__args__partner": {"id": "replay"}}, "partner 'replay' cannot be repeated: it says the lines of one"),
        (
            {"env__args__partner": {"id": "http", "args": {"url": "http://127.0.0.1:9/"}}},
            "partner 'http' cannot be repeated: its server may answer",
        ),
        (
            {"env__args__partner": {"id": "self_play", "args": {"snapshot_every": 2}}},
            "partner 'self_play' cannot be repeated: only with the current policy",
        ),
    ],
)
def test_critic_that_cannot_be_measured_is_refused_with_the_reason(tmp_path, changes, message):
    config = game_config(tmp_path, **changes, train_evaluation__value_rank_states=32)
    with pytest.raises(ModelError, match=message):
        CriticMeasure(Assembly(config), None, None, 0)
    met = {text for text, level in conditions_met(config).items() if level == "error"}
    assert any(
        text.startswith("train_evaluation.value_rank_states measures the critic, but") and message in text
        for text in met
    )


def test_few_states_are_refused_at_load(tmp_path):
    with pytest.raises(ConfigError, match="value_rank_states"):
        game_config(tmp_path, train_evaluation__value_rank_states=9)
