"""Understanding, tracking and words of the agent as parts that can be replaced."""

import numpy as np
import pytest
from worlds import ONTOLOGY, tiny_world

from rl4dialog.core.errors import ConfigError
from rl4dialog.features.dialogue_acts.tasks.acts import DialogueAct
from rl4dialog.features.dialogue_acts.tasks.environment import DialogueActEnv
from rl4dialog.features.dialogue_acts.tasks.pipeline import TemplateNlg, TemplateNlu, TrackedBelief, as_acts


def rule_dialogues(n=40, **parts):
    env, found = DialogueActEnv(tiny_world, **parts), []
    for seed in range(n):
        env.reset(seed=seed)
        is_over = False
        while not is_over:
            *_, is_over, _, _ = env.step(env.rule_action())
        found.append(env.transcript())
    return found


def test_words_of_templates_change_nothing():
    in_words, in_acts = rule_dialogues(nlu=TemplateNlu, nlg=TemplateNlg), rule_dialogues()
    assert [each["outcome"] for each in in_words] == [each["outcome"] for each in in_acts]
    assert [turn["text"] for turn in in_words[3]["turns"]] == [turn["text"] for turn in in_acts[3]["turns"]]


class Deaf:
    def __init__(self, world):
        self.heard = []

    def predict(self, utterance, context):
        self.heard.append((utterance, context))
        return [["request", "restaurant", "area", ""]]


class Mumbling:
    def __init__(self, world):
        pass

    def generate(self, action):
        return "Mhm."


def test_agent_sees_what_its_nlu_understands_and_the_user_what_the_nlg_says():
    env = DialogueActEnv(tiny_world, nlu=Deaf, nlg=Mumbling)
    env.reset(seed=0)
    assert env.dialogue.heard == [DialogueAct("request", "restaurant", "area")]
    env.step(env.rule_action())
    first, second, *_ = env.transcript()["turns"]
    assert first["understood"] == [["request", "restaurant", "area", ""]] != first["acts"]
    assert (second["text"], second["acts"]) == ("Mhm.", []) and second["chosen"]
    assert [context for _, context in env._nlu.heard] == [[], ["Mhm."]]


class ConvLabTracker:
    def __init__(self, world):
        self.n_sessions = 0

    def init_session(self):
        self.n_sessions += 1
        self.state = {"belief_state": {"restaurant": {"semi": {"food": ""}, "book": {"day": ""}}}}

    def update(self, user_act):
        for intent, domain, slot, value in user_act:
            if domain == "restaurant" and intent == "inform":
                self.state["belief_state"]["restaurant"]["semi" if slot in ("food", "area") else "book"][slot] = value
        return self.state


def test_constraints_and_bookings_come_from_the_tracker():
    tracker = ConvLabTracker(None)
    belief = TrackedBelief(ONTOLOGY, tracker)
    belief.hear(
        [
            DialogueAct("inform", "restaurant", "area", "center"),
            DialogueAct("inform", "restaurant", "day", "monday"),
            DialogueAct("request", "restaurant", "phone"),
        ]
    )
    about = belief.domains["restaurant"]
    assert about.constraints == {"area": "centre"} and about.booking == {"day": "monday"}
    assert about.requested == ["phone"] and belief.domains["train"].constraints == {}
    for unknown in ("", "not mentioned", None):
        belief.hear([DialogueAct("inform", "restaurant", slot, unknown) for slot in ("area", "day")])
        assert about.constraints == about.booking == {}
    assert TrackedBelief(ONTOLOGY, tracker).domains["restaurant"].constraints == {} and tracker.n_sessions == 2


@pytest.mark.parametrize("state", [None, {}, {"belief_state": []}, {"belief_state": {"restaurant": {"semi": 3}}}])
def test_tracker_of_another_shape_is_refused(state):
    tracker = ConvLabTracker(None)
    belief = TrackedBelief(ONTOLOGY, tracker)
    tracker.update = lambda user_act: state
    with pytest.raises(ConfigError, match=r"tracker: update\(\) must return \{'belief_state'"):
        belief.hear([])


@pytest.mark.parametrize("found", [None, ["inform"], [["inform"]], [[1, 2, 3, 4, 5]], 7])
def test_acts_of_another_shape_are_refused(found):
    with pytest.raises(ConfigError, match=r"nlu must return acts as \[intent, domain, slot, value\]"):
        as_acts(found, "nlu")


def test_acts_are_read_with_two_to_four_texts():
    assert as_acts([["bye", "general"], ("inform", "restaurant", "food", "thai")], "nlu") == [
        DialogueAct("bye", "general"),
        DialogueAct("inform", "restaurant", "food", "thai"),
    ]
    assert np.array_equal(as_acts([], "nlu"), [])
