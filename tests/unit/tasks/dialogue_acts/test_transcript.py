"""Records of dialogues: turns in words, rewards, causes of failures."""

from __future__ import annotations

import json

import numpy as np
from worlds import goals, tiny_world

from rl4dialog.envs.dialogue_acts import DialogueActEnv
from rl4dialog.runs.conversations import recorded_conversation
from rl4dialog.tasks.dialogue_acts.acts import DialogueAct


def test_record_is_a_conversation_with_acts_words_and_rewards() -> None:
    env, total, is_over = DialogueActEnv(tiny_world), 0.0, False
    env.reset(seed=0, options={"goal": goals()[0]})
    while not is_over:
        _, reward, is_over, _, _ = env.step(env.rule_action())
        total += reward
    record = json.loads(json.dumps(env.transcript()))
    assert record["goal_text"] == (
        "You are looking for a restaurant serving thai food, in the north. Ask about the phone number."
    )
    dialogue = recorded_conversation(record)
    assert dialogue is not None
    assert dialogue.ended_by == "partner"
    assert dialogue.outcome["success"] == 1
    assert [turn.speaker for turn in dialogue.turns] == [0, 1] * (len(dialogue.turns) // 2) + [0]
    assert sum(turn.reward for turn in dialogue.turns) == np.float64(total)
    assert dialogue.turns[-1].text == "Goodbye."
    assert record["failures"] == []
    templates = env.world.templates
    for before, turn in zip([None, *record["turns"]], record["turns"], strict=False):
        context = [] if before is None else [DialogueAct(*act) for act in before["acts"]]
        assert [list(act) for act in templates.parse(turn["text"], context)] == turn["acts"]


def test_failures_say_what_was_wrong_and_how_it_ended() -> None:
    env = DialogueActEnv(tiny_world, max_turns=3)
    silence = np.zeros(env.action_space.shape or (), np.int8)
    env.reset(seed=0, options={"goal": goals()[0]})
    for _ in range(3):
        env.step(silence)
    failures = ["no restaurant offered", "restaurant: phone not told", "the agent repeated itself", "out of turns"]
    assert env.transcript()["failures"] == failures
    assert env.transcript()["ended_by"] == "max_turns"


def test_user_who_gives_up_is_a_cause() -> None:
    env = DialogueActEnv(tiny_world, user={"patience": 3})
    env.reset(seed=0, options={"goal": goals()[0]})
    is_over, silence = False, np.zeros(env.action_space.shape or (), np.int8)
    while not is_over:
        *_, is_over, _, _ = env.step(silence)
    assert env.transcript()["ended_by"] == "partner"
    assert env.transcript()["failures"][-1] == "the user gave up"
