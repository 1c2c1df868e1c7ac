"""The record of a conversation: payments of both sides, and what is written to logs."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import make_tokenizer

from rl4dialog.core.types import AGENT, PARTNER, SYSTEM_KEY, Dialogue, Sample, Turn
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.functional.replies import Replies
from rl4dialog.rollouts.conversing import Driver
from rl4dialog.rollouts.talk import Payment, Reply, Talk, replies_in, talk_of_one_reply, with_tokens
from rl4dialog.text.end_of_turn import EndOfTurn


def said(n_tokens):
    return Reply(n_tokens=n_tokens, rewards=np.zeros(n_tokens, np.float32))


def earned(replies):
    return [reply.rewards.tolist() for reply in replies]


@pytest.mark.parametrize("partner_opens", [False, True])
def test_both_sides_get_the_payments_of_a_turn(partner_opens):
    talk = Talk(answers=[said(3)] if partner_opens else [])
    for turn, earlier in enumerate([[], [], [10.0, 20.0, 30.0]]):
        talk.replies.append(said(3))
        talk.answers.append(said(2))
        talk.earn(Payment(np.array([1.0, 0.0, 2.0 + turn]), np.array(earlier), {}), np.float32)
    assert earned(talk.replies) == [[1.0, 0.0, 12.0], [1.0, 0.0, 23.0], [1.0, 0.0, 34.0]]
    opening = [[0.0, 0.0, 0.0]] if partner_opens else []
    assert earned(talk.answers) == [*opening, [0.0, 13.0], [0.0, 24.0], [0.0, 35.0]], "nothing for the opening"


def test_one_side_gets_the_payments_of_its_turns():
    talk = Talk()
    for turn in range(2):
        talk.replies.append(said(2))
        earlier = np.array([10.0, 20.0] if turn else [])
        talk.earn(Payment(np.array([0.5, 1.0 + turn]), earlier, {"a": 1.0, "b": float("nan")}), np.float32)
    assert earned(talk.replies) == [[0.5, 11.0], [0.5, 22.0]]
    assert talk.rewards == pytest.approx({"a": 2.0, "b": float("nan")}, nan_ok=True)
    talk.fail("it failed", partner_failed=False)
    assert talk.rewards == {}


def test_partner_is_cut_where_no_end_of_an_utterance_was_said():
    partner = SimpleNamespace(side=SimpleNamespace(end_of_turn=EndOfTurn(make_tokenizer(), [0])))
    driver = Driver(SimpleNamespace(lockstep=False), SimpleNamespace(num_envs=2), {}, partner=partner)
    driver._note(None, [], Replies.from_ids([[5]] * 2, [[6, 0], [6, 6]]), np.arange(2))
    assert [talk.answers[0].is_cut for talk in driver.talks] == [False, True]


DIALOGUE = Dialogue(
    "x",
    (Turn("given", AGENT), Turn("u", PARTNER), Turn("a", AGENT, reward=9.0), Turn("u", PARTNER), Turn("b", AGENT)),
    n_given=2,
    meta_data={"word": "crane"},
)


def reply(ids, log_probs=None, rewards=None, prompt="plain"):
    batch = Replies.from_ids([[0]], [ids])
    batch.log_probs = None if log_probs is None else torch.tensor([log_probs])
    (found,) = replies_in(batch)
    found.prompt, found.rewards = prompt, None if rewards is None else np.float32(rewards)
    return found


def test_tokens_are_on_the_turns_that_the_agent_said():
    sparse, dense = reply([4, 0], [-0.1, -2.5], [0.0, 0.3]), reply([5, 6, 7], None, [0.1, 0.0, -0.7])
    found = with_tokens(DIALOGUE, [sparse, dense], "9f2c", is_cut=True)
    given, _, first, _, second = found.turns
    assert given == DIALOGUE.turns[0] and not found.terminated and found.tokenizer == "9f2c"
    assert first == Turn("a", AGENT, reward=0.3, ids=(4, 0), log_probs=(-0.1, -2.5)), "all is paid on the last token"
    assert second == Turn("b", AGENT, ids=(5, 6, 7), token_rewards=(0.1, 0.0, -0.7))
    assert np.float32(found.turns[2].log_probs)[0] == np.float32(-0.1), "the shortest number is still the same"


def test_single_reply_is_a_talk_of_one_turn():
    sample = Sample(7, "how are you ?", ["fine", "well"], {"word": "crane"})
    talk = talk_of_one_reply(sample, "good")
    (only,) = talk.replies
    assert (only.prompt, only.text, only.references, only.meta_info) == (
        "how are you ?",
        "good",
        ["fine", "well"],
        {"word": "crane"},
    )
    assert talk.is_single_reply and talk.dialogue.id == 7 and talk.dialogue.turns[-1] == Turn("good", AGENT)
    assert talk_of_one_reply(Sample(8, "hi", []), "yes").replies[0].meta_info == {}


def test_unscored_utterances_keep_their_reward():
    found = with_tokens(DIALOGUE, [reply([1]), reply([2])], "9f2c")
    assert [turn.reward for turn in found.turns] == [turn.reward for turn in DIALOGUE.turns] and found.terminated


def test_persona_of_the_prompt_is_kept():
    prompt = DialogueFormat("eou", None).prompt(["u"], "I like tea.")
    found = with_tokens(DIALOGUE, [reply([1], prompt=prompt), reply([2])], "9f2c")
    assert found.meta_data == {"word": "crane", SYSTEM_KEY: "I like tea."}
