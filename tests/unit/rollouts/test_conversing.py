"""Scripted players in the conversations of evaluations."""

import time
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from partners import RulesService
from tiny import make_env, make_gpt2, make_policy, make_tokenizer

from rl4dialog.core.errors import ConfigError, DataError, GenerationError, PartnerError
from rl4dialog.core.protocols import Partner, Player
from rl4dialog.core.types import AGENT, PARTNER, Sample
from rl4dialog.envs.utterance_view import FAILED_ACTION, LEAVES_ACTION, UtteranceView
from rl4dialog.partners.language_model import LanguageModelPartner
from rl4dialog.rollouts.conversing import Conversing, partner_answers
from rl4dialog.text.end_of_turn import EndOfTurn

END = 25  # <EOU>
PROMPTS = {"prompt_ids": np.array([[1, 3, END], [4, 5, END]]), "prompt_mask": np.array([[0, 1, 1], [1, 1, 1]])}


def asked(broken, timeout_s=None):
    tokenizer = make_tokenizer(marker="<EOU>")
    assert tokenizer.convert_tokens_to_ids("<EOU>") == END
    service = RulesService([{"pattern": "w1", "replies": "w2"}], "w3", None, tokenizer, 3, 4, broken)
    answers, problems = partner_answers(service, PROMPTS, timeout_s)
    return [list(answer) for answer in answers], problems


def raising(error):
    def broken(found):
        raise error

    return broken


def test_answers_are_actions_and_none_leaves():
    assert asked(None) == ([[6, END], [5, END]], {})
    assert asked(lambda found: [None, np.array([3, 4, 5, 6])]) == ([[LEAVES_ACTION], [3, 4, 5, 6]], {})


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("w1", "sequence of token ids"),
        (3, "sequence of token ids"),
        ([3.0, END], "sequence of token ids"),
        ([], "token that ends it"),
        ([-1], "ids 0 to 25"),
        ([3, 26], "ids 0 to 25"),
        ([3, 4], "ends with its end of turn, or with token 4"),
        ([3, END, 4], "ends with its end of turn, or with token 4"),
        ([3, 4, 5, 6, 7], "ends with its end of turn, or with token 4"),
        ([10**30, END], "ids 0 to 25"),
    ],
)
def test_answer_that_is_no_utterance_fails_alone(answer, message):
    actions, problems = asked(lambda found: [[3, END], answer])
    assert actions == [[3, END], [FAILED_ACTION]] and list(problems) == [1] and message in problems[1]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (raising(ZeroDivisionError("gone")), "ZeroDivisionError: gone"),
        (raising(PartnerError("no more")), "no more"),
        (lambda found: found[:1], "not a list of 2 answers"),
        (lambda found: None, "not a list of 2 answers"),
        (lambda found: "ab", "not a list of 2 answers"),
        (lambda found: time.sleep(60), "had not returned after 0.1 s; reward_fn.timeout_s"),
    ],
)
def test_call_that_fails_fails_for_all(broken, message):
    actions, problems = asked(broken, timeout_s=0.1)
    assert actions == [[FAILED_ACTION]] * 2 and sorted(problems) == [0, 1] and message in problems[0]


def test_other_errors_of_the_toolkit_are_not_the_partners():
    with pytest.raises(GenerationError, match="engine"):
        asked(raising(GenerationError("the engine is down")))


MARKER = "<EOU>"
SAMPLES = [Sample(i, "w1 <EOU>", ["w2"], {"number": i}) for i in range(3)]


class Repeats(Partner):
    """Repeats the agent, and leaves after as many turns as the sample's number, plus one."""

    def reset(self, meta_info, seed):
        self._n_left = meta_info["number"] + 1

    def reply(self, history):
        self._n_left -= 1
        return history[-1] if self._n_left else None


class Says(Player):
    """Says given texts in turn."""

    def __init__(self, *texts):
        self._texts = texts

    def reset(self, meta_info, seed):
        self.seed, self.heard = seed, []

    def say(self, history):
        self.heard.append(list(history))
        text = self._texts[(len(self.heard) - 1) % len(self._texts)]
        if isinstance(text, Exception):
            raise text
        return text


def talks_of(players, ends=(0,), seeds=(5, 6, 7)):
    tokenizer = make_tokenizer(marker=MARKER)
    end = EndOfTurn(tokenizer, ends, MARKER)

    def make_view(policy, max_length):
        kwargs = {"partner": Repeats(), "max_turns": 5, "max_episode_length": max_length, "max_prompt_length": 40}
        return UtteranceView(make_env(tokenizer, end_of_turn=end, **kwargs))

    policy = SimpleNamespace(device="cpu", lockstep=False, reply_limit=lambda: 4, remembering_prompts=nullcontext)
    return Conversing(make_view)(policy, SAMPLES, seeds, players)


def test_players_speak_instead_of_the_policy():
    players = [Says("w2 w3", "w4") for _ in SAMPLES]
    talks = talks_of(players)
    assert [talk.dialogue.texts(AGENT) for talk in talks] == [["w2 w3"], ["w2 w3", "w4"], ["w2 w3", "w4", "w2 w3"]]
    assert [talk.dialogue.texts(PARTNER) for talk in talks] == [[], ["w2 w3"], ["w2 w3", "w4"]]
    assert [talk.dialogue.ended_by for talk in talks] == ["partner"] * 3
    assert players[1].heard[1][-2:] == ["w2 w3", "w2 w3"]
    assert len({player.seed for player in players}) == 3
    again = [Says("w2") for _ in SAMPLES]
    talks_of(again)
    assert [player.seed for player in again] == [player.seed for player in players]


def test_players_have_the_length_limit_of_the_policy():
    for said, found in (("w1 w2 w3 w4", "w1 w2 w3 w4"), ("w1 w2 w3 w4 w5", "w1 w2 w3 w4"), ("w1 <EOU> w2", "w1")):
        talks = talks_of([Says(said) for _ in SAMPLES])
        assert talks[0].dialogue.texts(AGENT) == [found], said


def test_silent_player_says_an_empty_utterance():
    assert talks_of([Says("") for _ in SAMPLES])[1].dialogue.texts(AGENT) == ["", ""]


@pytest.mark.parametrize("wrong", [ValueError("no idea"), 3])
def test_player_that_fails_is_named(wrong):
    with pytest.raises(DataError, match=r"player Says failed on sample 0: (ValueError: no idea|TypeError)"):
        talks_of([Says(wrong) for _ in SAMPLES])


def test_players_need_an_end_of_sequence():
    with pytest.raises(ConfigError, match="scripted players need a tokenizer with an end-of-sequence token"):
        talks_of([Says("w1") for _ in SAMPLES], ends=())


def conversations_with_a_model(folder, share_prompts):
    """What both sides say, and how many tokens of each row their models read."""
    tokenizer = make_tokenizer(marker=MARKER)
    partner = LanguageModelPartner(str(folder), max_prompt_length=60, max_length=4)
    sizes = {"max_turns": 4, "max_episode_length": 4, "max_prompt_length": 60, "outside_partner": partner.side}
    env = make_env(tokenizer, end_of_turn=EndOfTurn(tokenizer, (), MARKER), **sizes)
    policy = make_policy(env, make_gpt2(tokenizer), share_prompts=share_prompts)
    partner._policy.share_prompts = share_prompts
    n_read = 0

    def count(module, inputs, output):
        nonlocal n_read
        n_read += output.shape[1]

    for each in (policy, partner._policy):
        each.language_model.transformer.wte.register_forward_hook(count)

    def make_view(policy, max_length):
        return UtteranceView(make_env(tokenizer, end_of_turn=env.end_of_turn, **sizes))

    talks = Conversing(make_view, partner)(policy, SAMPLES, (5, 6, 7), do_sample=False)
    return [[turn.text for turn in talk.dialogue.turns] for talk in talks], n_read


def test_both_sides_read_a_conversation_only_once(tmp_path):
    tokenizer = make_tokenizer(marker=MARKER)
    for saved in (tokenizer, make_gpt2(tokenizer)):
        saved.save_pretrained(tmp_path)
    (said, n_read), (expected, n_whole) = (conversations_with_a_model(tmp_path, shares) for shares in (True, False))
    assert said == expected and min(map(len, said)) > 6
    assert n_read < 0.6 * n_whole
