"""Who speaks first, what is shown, what references are for, and when a conversation ends."""

import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from tiny import make_env, make_tokenizer

from rl4dialog.core import time_limit
from rl4dialog.core.errors import DataError, PartnerError
from rl4dialog.core.protocols import ConversationReward, RewardFunction
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.core.types import AGENT, PARTNER, Sample
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.envs.conversation import ConversationRules, OutsidePartner
from rl4dialog.envs.text_generation import TextGenEnv
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.partners.scripted import ReplayPartner, RulesPartner, ScriptedPartner
from rl4dialog.text.end_of_turn import EndOfTurn

END = 25
HISTORY = ["w0", "w1", "w2"]
DATA = {
    "history": HISTORY,
    "intent": [3],
    "emotion": [1],
    "continuation": ["w4", "w5", "w6", "w7"],
    "continuation_labels": [{"intent": [1]}, {"intent": [2]}, {}, {"emotion": [0]}],
    "own": 7,
}


class SeesTurns(RewardFunction):
    def __init__(self):
        self.seen = []

    def __call__(self, previous, action, current, done, meta_info=None):
        if done:
            self.seen.append((current.context_text, current.target_or_reference_texts, meta_info))
        return 0.0


class SeesDialogues(ConversationReward):
    def __init__(self):
        self.seen = []

    def __call__(self, dialogue, over):
        self.seen.append((dialogue, over))
        return 0.0


class Talking:
    """An environment that says words for the agent."""

    def __init__(self, partner, persona="w11", meta_data=None, **overrides):
        tokenizer = make_tokenizer(marker="<EOU>")
        tokenizer.add_tokens(["<EOU>"])  # also without a space before it
        eou = DialogueFormat("eou", None, in_conversation=True)
        self.turns, self.dialogues = SeesTurns(), SeesDialogues()
        kwargs = {
            "end_of_turn": EndOfTurn(tokenizer, [0], "<EOU>"),
            "samples": [Sample("s", eou.prompt(HISTORY, persona), ["w3"], DATA if meta_data is None else meta_data)],
            "partner": partner,
            "max_turns": 3,
            "max_prompt_length": 40,
            "max_episode_length": 4,
            "reward_parts": [
                RewardPart("turns", 1.0, self.turns, each_turn=True),
                RewardPart("dialogues", 1.0, self.dialogues),
            ],
            **overrides,
        }
        self.tokenizer, self.env = tokenizer, make_env(tokenizer, **kwargs)
        self.env.reset(seed=0)

    @property
    def prompt(self):
        return str(self.tokenizer.decode(self.env.state.prompt_ids))

    def say(self, text, ends=True):
        for id in [*self.tokenizer(text)["input_ids"], *([END] if ends else [])]:
            *_, terminated, truncated, info = self.env.step(id)
        self.is_over = terminated, truncated
        return info

    @property
    def said(self):
        return [(turn.speaker, turn.text) for turn in self.env.conversation.dialogue().said]


class PaysTurns(ConversationReward):
    def __call__(self, dialogue, over):
        return float(len(dialogue.turns))


@pytest.mark.parametrize(("pays", "n_calls"), [([PaysTurns()], 3), ([], 3), ([PaysTurns(), SeesTurns()], 10)])
def test_tokens_that_no_reward_reads_are_appended_at_once(pays, n_calls, monkeypatch):
    found, counts = [], []
    for skip in (TextGenEnv.skip, lambda env, tokens: 0):
        calls, advance = [], TextGenEnv.advance
        with monkeypatch.context() as changed:
            changed.setattr(TextGenEnv, "skip", skip)
            changed.setattr(
                TextGenEnv, "advance", lambda env, id, n=calls, step=advance: (n.append(1), step(env, id))[1]
            )
            parts = [RewardPart(f"r{i}", 0.5, each) for i, each in enumerate(pays)]
            view = UtteranceView(Talking(ScriptedPartner(["w4", "w5"]), reward_parts=parts).env)
            steps = [view.reset(seed=0)]
            for ids in ([3, 4, 5, END], [3, END], [7, 8, 9, END]):
                steps.append(view.step(np.array([*ids, *[-1] * (4 - len(ids))])))
            found.append(steps)
            counts.append(len(calls))
            with pytest.raises(ValueError, match="ended after 2 tokens, but 3 were given"):
                view.reset(seed=0)
                view.step(np.array([3, END, 4, -1]))
    np.testing.assert_equal(*found)
    assert counts == [n_calls, 10]


def test_agent_speaks_first_after_its_persona_alone_and_has_no_reference():
    talk = Talking(ScriptedPartner(["w4"]), first_speaker="agent")
    assert talk.prompt == "w11 <EOU>"
    talk.say("w3")
    assert talk.prompt == "w11 <EOU> w3 <EOU> w4 <EOU>"
    (text, references, meta_info), *_ = talk.turns.seen
    assert (text, references, meta_info["history"], meta_info["own"]) == ("w3", [], [], 7)
    assert meta_info.keys().isdisjoint(("intent", "emotion")), "labels of the sample are of another reply"
    assert talk.said == [(AGENT, "w3"), (PARTNER, "w4")]


def test_partner_speaks_first_after_the_agents_persona():
    partner = RulesPartner([{"pattern": "w3", "replies": "w4"}], opening="w9")
    talk = Talking(partner, first_speaker="partner")
    assert talk.prompt == "w11 <EOU> w9 <EOU>"
    talk.say("w3")
    assert talk.prompt == "w11 <EOU> w9 <EOU> w3 <EOU> w4 <EOU>"
    (_, references, meta_info), *_ = talk.turns.seen
    assert (references, meta_info["history"], "intent" in meta_info) == ([], ["w9"], False)
    assert talk.said == [(PARTNER, "w9"), (AGENT, "w3"), (PARTNER, "w4")]


def test_references_history_and_labels_follow_the_turn():
    talk = Talking(ReplayPartner(), max_turns=5)
    infos = [talk.say(text) for text in ("w8", "w9", "w10")]
    assert [info.get("ended_by") for info in infos] == [None, None, "partner"]
    (*first, info), (*second, later), (*third, last) = talk.turns.seen
    assert [first, second, third] == [["w8", ["w3"]], ["w9", ["w5"]], ["w10", ["w7"]]]
    assert [info["history"], later["history"]] == [HISTORY, [*HISTORY, "w8", "w4"]]
    assert last["history"] == [*HISTORY, "w8", "w4", "w9", "w6"], "what was really said, not what the data has"
    assert [info.get("intent"), later.get("intent"), last.get("intent")] == [[3], [2], None]
    assert [info.get("emotion"), later.get("emotion"), last.get("emotion")] == [[1], None, [0]]
    assert later["own"] == 7 and DATA["history"] == HISTORY, "the sample is as it was"


@pytest.mark.parametrize(
    ("settings", "said", "ended_by"),
    [
        ({}, ["w3", "w3", "w3"], "max_turns"),
        ({}, ["w3", "w3", "w3 w3 w3 w3"], "length"),
        ({}, ["w3 w3 w3 w3", "w3", "w3"], "max_turns"),
        ({"partner": ScriptedPartner(["w4"])}, ["w3", "w3"], "partner"),
        ({"partner": ScriptedPartner(["w4", "w5"])}, ["w3", "w3", "w3"], "max_turns"),
        ({"end_when": {"agent": ["^w9"]}}, ["w3 w9", "w9"], "agent"),
        ({"end_when": {"agent": ["(?i)W9", "w(8)"]}}, ["w3", "w8"], "agent"),
        ({"end_when": {"agent": ["^$"]}}, [""], "agent"),
        ({"end_when": {"partner": ["w5", r"(x)\1"]}}, ["w3", "w3"], "partner"),
        ({"end_when": {"partner": ["w6"]}}, ["w3", "w3", "w3"], "partner"),
        ({"end_when": {"agent": ["w9"], "partner": ["w4"]}}, ["w9"], "partner"),
        ({"end_when": {"agent": ["w9"]}}, ["w9 w9 w9 w9"], "agent"),
        ({"partner": RulesPartner([{"pattern": "w8", "replies": "w1", "leaves": True}])}, ["w3", "w8"], "partner"),
    ],
)
def test_end_and_its_cause(settings, said, ended_by):
    settings = {"partner": ScriptedPartner(["w4", "w5", "w6"]), **settings}
    talk = Talking(**settings)
    causes = [talk.say(text, ends=len(text.split()) < 4).get("ended_by") for text in said]
    assert causes == [None] * (len(said) - 1) + [ended_by]
    assert talk.is_over == (ended_by != "length", ended_by == "length")
    overs = [over for _, over in talk.dialogues.seen]
    assert overs == [False] * (len(said) - 1) + [True], "partner's last word included"
    dialogue = talk.dialogues.seen[-1][0]
    assert dialogue.ended_by == ended_by and dialogue.texts(AGENT) == said


@pytest.mark.parametrize("side", ["agent", "partner"])
@pytest.mark.parametrize("pattern", [r"(w|ww)+\d$", r"(\w|\w\w)+\d$"])
def test_pattern_that_takes_for_ever_is_named(monkeypatch, side, pattern):
    monkeypatch.setattr(time_limit, "PATTERN_S", 0.05)
    rules = ConversationRules(end_when={side: [pattern]})
    with pytest.raises(PartnerError, match=rf"env\.args\.end_when: the pattern {re.escape(repr(pattern))} takes more"):
        rules.ends(side, "w" * 99 + "!")
    assert rules.ends(side, "w1")


def test_sign_of_the_end_is_not_shown_and_text_beside_it_is():
    talk = Talking(ScriptedPartner(["w4 w5 w6", "w5"]), end_when={"partner": ["w5", ""]})
    assert talk.say("w3")["ended_by"] == "partner"
    assert talk.said == [(AGENT, "w3"), (PARTNER, "w4   w6")]
    talk = Talking(ScriptedPartner(["w5"]), end_when={"partner": ["w5"]})
    assert talk.say("w3")["ended_by"] == "partner" and talk.said == [(AGENT, "w3")], "it said nothing else"


def test_long_answers_are_cut_in_the_transcript_and_the_prompt():
    talk = Talking(ScriptedPartner(["w4 w5 w6"]), max_partner_length=2)
    talk.say("w3")
    assert talk.said[-1] == (PARTNER, "w4 w5") and talk.prompt.endswith("w3 <EOU> w4 w5 <EOU>")


def test_context_turns_counts_utterances_and_keeps_the_persona():
    talk = Talking(ScriptedPartner(["w4", "w5"]), context_turns=3)
    assert talk.prompt == "w11 <EOU> w0 <EOU> w1 <EOU> w2 <EOU>"
    talk.say("w3")
    assert talk.prompt == "w11 <EOU> w2 <EOU> w3 <EOU> w4 <EOU>"
    assert not talk.say("w3")["context_dropped"]  # on purpose
    assert talk.prompt == "w11 <EOU> w4 <EOU> w3 <EOU> w5 <EOU>"
    assert [turn.text for turn in talk.env.conversation.dialogue().turns] == [*HISTORY, "w3", "w4", "w3", "w5"]


def test_context_is_dropped_if_the_length_limit_hides_what_context_turns_shows():
    talk = Talking(ScriptedPartner(["w4", "w5"]), context_turns=3, max_prompt_length=6)
    assert talk.prompt == "w11 <EOU> w1 <EOU> w2 <EOU>"
    assert talk.say("w3")["context_dropped"]
    assert talk.prompt == "w11 <EOU> w3 <EOU> w4 <EOU>"
    assert talk.say("w3")["context_dropped"]


def test_spaces_without_an_outside_partner_have_the_keys_and_bounds_they_had():
    talk = Talking(ScriptedPartner(["w4"]))
    assert isinstance(talk.env, TextGenEnv) and talk.env.action_space.n == len(talk.tokenizer) + 3
    found = {
        name: (space.shape, space.low.min(), space.high.max()) for name, space in talk.env.observation_space.items()
    }
    highest = len(talk.tokenizer) + 2
    assert found == {
        "prompt_ids": ((40,), 0, highest),
        "prompt_mask": ((40,), 0, 1),
        "context_ids": ((4,), 0, highest),
        "context_mask": ((4,), 0, 1),
    }


def test_last_state_of_a_conversation_is_the_agents_wherever_its_partner_is():
    """A truncated conversation is bootstrapped from it."""
    tokenizer = make_tokenizer(marker="<EOU>")
    end, eou = EndOfTurn(tokenizer, [0], "<EOU>"), DialogueFormat("eou", None, in_conversation=True)
    kwargs = {"end_of_turn": end, "samples": [Sample("s", eou.prompt(["w0"]), [])], "max_turns": 1}
    kwargs |= {"max_prompt_length": 20, "max_episode_length": 3}
    inside = UtteranceView(make_env(tokenizer, **kwargs, partner=ScriptedPartner(["w4"])))
    outside = UtteranceView(make_env(tokenizer, **kwargs, outside_partner=OutsidePartner(eou, end, 26, 20, 3)))
    for view in (inside, outside):
        view.reset(seed=0)
    said, answer = np.array([5, 6, 7]), np.array([7, END, -1])
    last, _, *ended, _ = inside.step(said)
    outside.step(said)
    same, _, *ended_too, _ = outside.step(answer)
    assert ended == ended_too == [False, True]
    assert {name: same[name].tolist() for name in last} == {name: array.tolist() for name, array in last.items()}
    assert same["speaker"] == AGENT


def test_persona_that_fills_the_prompt_of_an_outside_partner_is_said_to_be_the_partners():
    tokenizer = make_tokenizer(marker="<EOU>")
    tokenizer.add_tokens(["<EOU>"])  # also without a space before it
    end, eou = EndOfTurn(tokenizer, [0], "<EOU>"), DialogueFormat("eou", None, in_conversation=True)
    sample = Sample("s", eou.prompt(["w0"]), [], {"partner_persona": ["w1 w2", "w3 w4"]})
    kwargs = {"end_of_turn": end, "samples": [sample], "max_turns": 2, "max_episode_length": 3}
    env = make_env(tokenizer, **kwargs, max_prompt_length=20, outside_partner=OutsidePartner(eou, end, 26, 5, 3))
    env.reset(seed=0)
    with pytest.raises(DataError, match=r"in the prompt of the partner, .*persona.*max_prompt_length: 5"):
        env.step(END)


def test_tensors_are_rl4lms_in_name_shape_and_padding():
    tokenizer = make_tokenizer()
    env = make_env(tokenizer, samples=[Sample(0, "w0 w1", ["w2"])], max_prompt_length=4, max_episode_length=3)
    env.reset(seed=0)
    for token in (5, 6):
        env.step(token)
    state, pad = env.state, tokenizer.pad_token_id
    expected = {
        "prompt_or_input_encoded_pt": [[pad, pad, 3, 4]],
        "prompt_or_input_attention_mask_pt": [[0, 0, 1, 1]],
        "context_encoded_pt": [[pad, 5, 6]],
        "context_attention_mask_pt": [[0, 1, 1]],
        "input_encoded_pt": [[pad, pad, pad, 3, 4, 5, 6]],
        "input_attention_mask_pt": [[0, 0, 0, 1, 1, 1, 1]],
    }
    for name, values in expected.items():
        tensor = getattr(state, name)
        assert tensor.dtype == torch.int64 and tensor.tolist() == values, name
    assert state.action_history == ["w2", "w3"] and state.context_text == "w2 w3"
    assert (state.prompt_or_input_text, state.target_or_reference_texts) == ("w0 w1", ["w2"])


def test_observations_do_without_torch_until_a_tensor_is_asked_for():
    code = "import sys, rl4dialog.envs.conversation; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
