"""The measure of a critic: statistics of hand-made numbers, repeated conversations, and exact returns of a game."""

import copy
import itertools
import math
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conversing import MARKER, MAX_REPLY, conversation_env, conversation_tokenizer, ending_often
from exact_guess_what import moments, value
from partners import RulesService
from runs import make_config
from tiny import make_env, make_gpt2, make_policy, make_tokenizer

from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError, DataError, ModelError, PartnerError
from rl4dialog.core.types import AGENT, PARTNER, Sample
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.functional.replies import Replies
from rl4dialog.partners.scripted import RulesPartner
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.rollouts.conversing import Begun, Conversing
from rl4dialog.tasks.guess_what import QUESTIONS, THINGS, ConsistentPlayer
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.text.prompts import encode_reply
from rl4dialog.training import critic_measure
from rl4dialog.training.assembly import Assembly
from rl4dialog.training.building.conditions import conditions_met
from rl4dialog.training.critic_measure import AT_CHANCE, CriticMeasure, State, critic_statistics, value_ranks

SAMPLE = Sample("a", "w1 <EOU>", ["w2"], {})


def states_of(values, turns=None):
    turns = [0] * len(values) if turns is None else turns
    return [State(SAMPLE, 0, Begun(), turn, v) for v, turn in zip(values, turns, strict=True)]


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


def test_statistics_of_hand_made_numbers():
    values = np.arange(20.0)
    returns = np.stack([2 * values - 1, 2 * values + 1], axis=1)
    seen = np.array([[0, 1.0, 1.0], [0, 2.0, 3.0], [0, 3.0, 2.0], [0, 4.0, 4.0]])
    # Pairs: right, wrong, tie of the values; equal returns and two ends do not count.
    right, wrong = [(1.0, np.array([1.0, 1.0])), (2.0, np.array([5.0]))], [(2.0, np.zeros(2)), (1.0, np.ones(2))]
    tie, none = [(1.0, np.ones(2)), (1.0, np.zeros(2))], [(1.0, np.ones(2)), (2.0, np.ones(1))]
    ends, failed = [(1.0, np.ones(1)), (2.0, np.zeros(1))], [(1.0, np.full(2, math.nan)), (2.0, np.zeros(2))]
    alternatives = [*[right] * 6, *[wrong] * 2, *[tie] * 2, none, ends, failed]
    found = critic_statistics(states_of(values), returns, seen, alternatives)
    metrics = found["metrics"]
    assert metrics["value_rank"] == metrics["reliability"] == metrics["value_rank/highest"] == pytest.approx(1)
    assert metrics["slope"] == pytest.approx(2) and metrics["order"] == pytest.approx(0.7)
    # 1 - var(G - V) / var(G) = 1 - (1 + 1) / 4 / 1.25
    assert metrics["explained_variance"] == pytest.approx(0.6)
    noise = 2.0  # (1^2 + 1^2) / (2 - 1)
    between = (2 * values).var(ddof=1) - noise / 2
    assert metrics["explained_variance/highest"] == pytest.approx(between / (between + noise))
    assert [each["value"] for each in found["bins"]] == pytest.approx(np.arange(10) * 2 + 0.5)
    assert [each["mean_return"] for each in found["bins"]] == pytest.approx(np.arange(10) * 4 + 1)
    assert found["notes"] == ["10 pairs of utterances in the same state differ in their returns"]


def test_truth_ranks_highest_and_noise_at_chance():
    rng = np.random.default_rng(0)
    truth, turns = rng.normal(size=300), np.arange(300) % 3
    returns = truth[:, None] + rng.normal(size=(300, 64))
    seen = np.stack([turns, truth, returns[:, 0]], axis=1)
    found = critic_statistics(states_of(truth, turns), returns, seen)
    metrics, notes = found["metrics"], found["notes"]
    assert metrics["value_rank"] > 0.97 and metrics["value_rank_within_turns"] > 0.97
    assert metrics["value_rank/low"] < metrics["value_rank"] < metrics["value_rank/high"]
    assert metrics["slope"] == pytest.approx(1, abs=0.05)
    assert metrics["explained_variance"] == pytest.approx(0.5, abs=0.1)
    assert metrics["explained_variance/highest"] == pytest.approx(0.5, abs=0.1)
    assert {f"value_rank/turn_{turn}" for turn in (1, 2, 3)} < metrics.keys() and AT_CHANCE not in notes
    found = critic_statistics(states_of(rng.normal(size=300), turns), returns, seen)
    assert abs(found["metrics"]["value_rank"]) < 0.15 and AT_CHANCE in found["notes"]


def test_turns_without_a_rank_correlation_are_named():
    values = [*range(12), *([7.0] * 12), *range(3)]
    turns = [0] * 12 + [1] * 12 + [2] * 3
    returns = np.random.default_rng(0).normal(size=(27, 4))
    seen = np.stack([turns, values, returns[:, 0]], axis=1)
    found = critic_statistics(states_of(values, turns), returns, seen)
    assert "value_rank/turn_1" in found["metrics"] and "value_rank/turn_2" not in found["metrics"]
    assert any(note.startswith("turn 2, 3 without a rank correlation: fewer than 10 states") for note in found["notes"])


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

TINY_GAME = {
    "tokenizer__vocab_size": 400,
    "datapool": {"id": "guess_what", "args": {"n_train": 32, "n_val": 40, "n_test": 4}},
    "reward_fn": {"id": "outcome", "args": {"weights": {"success": 1.0}, "per_turn": -0.05}},
    "env__args": {"max_prompt_length": 160, "max_episode_length": 16, "max_turns": 8, "partner": {"id": "guess_what"}},
    "alg__args": {"n_steps": 16, "batch_size": 16, "gamma": 1.0, "credit": "turn"},
    "train_evaluation__eval_batch_size": 200,
}


def game_config(tmp_path, **changes):
    config = make_config(tmp_path, **copy.deepcopy({**TINY_GAME, **changes}))
    return parse_config(config, "test")


class Consistent:
    """In the place of a policy: `ConsistentPlayer`, who reads prompts, with a critic that knows its mean returns."""

    device, joins_turns, lockstep, settings = torch.device("cpu"), True, False, GenerationSettings()
    remembering_prompts = staticmethod(nullcontext)

    def __init__(self, parts):
        self.tokenizer = parts.tokenizer
        self.end_of_turn = EndOfTurn(parts.tokenizer, [parts.tokenizer.eos_token_id], parts.turn_marker)
        rows = SimpleNamespace(weight=torch.zeros(len(parts.tokenizer), 1))
        self.language_model = SimpleNamespace(get_input_embeddings=lambda: rows)

    def reply_limit(self):
        return 16

    def histories(self, ids, mask):
        texts = [self.tokenizer.decode(row[is_real.bool()]) for row, is_real in zip(ids, mask, strict=True)]
        return [[said.strip() for said in text.split(self.end_of_turn.marker)[:-1]] for text in texts]

    def generate(self, obs):
        found = []
        for history in self.histories(obs["prompt_ids"], obs["prompt_mask"]):
            player = ConsistentPlayer()
            player.reset({}, int(torch.randint(2**31, ())))
            found.append(encode_reply(self.tokenizer, player.say(history), None, 16))
        return Replies(obs["prompt_ids"], obs["prompt_mask"].bool(), *columns_of(found))

    def predict_sequence_values(self, replies):
        histories = self.histories(replies.prompt_ids, replies.prompt_mask)
        values = [value(asked_in(history), thing_after(history)) for history in histories]
        return torch.tensor(values)[:, None].expand(replies.response_ids.shape)


def columns_of(rows):
    batch = Replies.from_ids([[0]] * len(rows), rows)
    return batch.response_ids, batch.response_mask


def asked_in(history):
    texts = [question.text for question in QUESTIONS]
    return frozenset(texts.index(said) for said in history[1::2])


def thing_after(history):
    """Any thing that agrees with the answers."""
    answers = list(zip(history[1::2], history[2::2], strict=True))
    known = {question.text: question.things for question in QUESTIONS}
    return next(t for t in THINGS if all((t in known[said]) == (answer == "yes") for said, answer in answers))


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


def test_alternatives_are_distinct_and_their_returns_contain_their_own_reward(tmp_path):
    parts = Assembly(game_config(tmp_path))
    player = Consistent(parts)
    measure = CriticMeasure(parts, player, player, seed=0)
    states, *_ = measure.drawn(parts.data.samples("val"), 30, 2)
    found = measure.alternatives(states, 6)
    assert len(found) == 30
    for state, utterances in zip(states, found, strict=True):
        assert 1 <= len(utterances) <= critic_measure.N_ALTERNATIVES
        for estimate, returns in utterances:
            if len(returns) == 1:  # the last turn, or a right guess
                assert estimate == pytest.approx(returns[0]) and returns[0] in (
                    pytest.approx(-0.05),
                    pytest.approx(0.95),
                )
            else:
                assert len(returns) == 6 and state.turn < 7
                assert all((each * 20) == pytest.approx(round(each * 20)) for each in returns)
    open_ = list(itertools.chain(*found))
    errors = np.array([estimate - returns.mean() for estimate, returns in open_ if len(returns) > 1])
    assert len(errors) > 40 and abs(errors.mean()) < 4 * errors.std() / math.sqrt(len(errors))


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
