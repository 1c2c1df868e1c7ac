"""The outcome of a dialogue, by hand and against an evaluator that reads transcripts only."""

import functools
import json

import numpy as np
import pytest
from stable_baselines3 import PPO
from worlds import DATABASE, goals, play, rule_policy, tiny_world

from rl4dialog.core.errors import ConfigError
from rl4dialog.features.dialogue_acts.tasks.acts import DialogueAct
from rl4dialog.features.dialogue_acts.tasks.environment import DialogueActEnv
from rl4dialog.features.dialogue_acts.tasks.outcome import TaskReward, outcome_of
from rl4dialog.runs.reading import recorded_conversation

TELLING = ("inform", "recommend", "offerbook", "book", "offerbooked")


def judged(transcript):
    verdicts = {}
    for name, wanted in transcript["goal"]["domains"].items():
        told = {}
        intents, booking, asked = set(), None, {}
        *turns, _ = transcript["turns"]
        for turn in turns:
            about = [(intent, slot, value) for intent, domain, slot, value in turn["acts"] if domain == name]
            if turn["speaker"] == "partner":
                asked |= {slot: value for intent, slot, value in about if intent == "inform" and slot}
                continue
            intents |= {intent for intent, _, _ in about}
            told |= {slot: value for intent, slot, value in about if intent in TELLING and slot}
            booking = next((each for each in turn["bookings"][::-1] if each["domain"] == name), booking)
        info = {**wanted["info"], **({} if "nooffer" in intents else wanted["fail_info"])}
        book = {**wanted["book"], **({} if "nobook" in intents else wanted["fail_book"])}
        key = {"restaurant": "name", "train": "id", "taxi": "car"}[name]
        named = booking["entity"] if booking is not None and (book or name == "taxi") else told.get(key)
        rows = [row for row in DATABASE.entities(name) if row[key] == named]
        row = rows[0] if rows else {}
        if name == "taxi":
            described = booking["values"] if booking else {}
            right = all(described.get(slot) == asked.get(slot, info.get(slot)) for slot in ("from", "to"))
        else:
            right = all(
                value == "dontcare" or (row.get(slot, "99:99") <= value if slot == "arrive" else row.get(slot) == value)
                for slot, value in info.items()
            )
        ok = bool(row) and right
        ok = ok and (not book or (booking is not None and all(booking["values"].get(k) == v for k, v in book.items())))
        for slot in wanted["requests"]:
            truth = (booking or {}).get("reference") if slot == "ref" else row.get(slot)
            ok = ok and bool(truth) and told.get(slot) == truth
        verdicts[name] = ok
    return verdicts


def random_agent(env, observation, rng):
    return (rng.random(len(env.world.system_acts)) < 0.15).astype(np.int8)


def noisy_rule_agent(env, observation, rng):
    return random_agent(env, observation, rng) if rng.random() < 0.3 else env.rule_action()


def rule_agent(env, observation, rng):
    return env.rule_action()


@functools.cache
def trained_policy():
    return PPO("MlpPolicy", DialogueActEnv(tiny_world), seed=0, n_steps=256, batch_size=64).learn(4096)


def trained_agent(env, observation, rng):
    return trained_policy().predict(observation, deterministic=False)[0]


@pytest.mark.parametrize("n", [150, pytest.param(2500, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "agent", [random_agent, noisy_rule_agent, rule_agent, pytest.param(trained_agent, marks=pytest.mark.long)]
)
def test_transcript_alone_gives_the_same_outcome(agent, n):
    env = DialogueActEnv(tiny_world, error_rate=0.2, keeps_transcripts=True)
    rng, n_successes = np.random.default_rng(0), 0
    for seed in range(n):
        observation, is_over = env.reset(seed=seed)[0], False
        while not is_over:
            observation, _, is_over, _, info = env.step(agent(env, observation, rng))
        transcript = json.loads(json.dumps(info["transcript"]))
        verdicts = judged(transcript)
        found = {name: outcome.success for name, outcome in env.outcome().domains.items()}
        assert found == verdicts, transcript
        assert info["is_success"] == all(verdicts.values())
        n_successes += info["is_success"]
    assert n_successes > 0
    assert agent is rule_agent or n_successes < n


def test_record_is_a_conversation_with_acts_words_and_rewards():
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


def test_failures_say_what_was_wrong_and_how_it_ended():
    env = DialogueActEnv(tiny_world, max_turns=3)
    silence = np.zeros(env.action_space.shape or (), np.int8)
    env.reset(seed=0, options={"goal": goals()[0]})
    for _ in range(3):
        env.step(silence)
    failures = ["no restaurant offered", "restaurant: phone not told", "the agent repeated itself", "out of turns"]
    assert env.transcript()["failures"] == failures
    assert env.transcript()["ended_by"] == "max_turns"


def test_goals_are_reached_by_the_rule_policy_and_numbers_are_perfect():
    for goal in goals():
        user, exchanges = play(rule_policy(), goal)
        outcome = outcome_of(goal, exchanges, user.is_complete, DATABASE)
        assert outcome.success, [each.failures for each in outcome.domains.values()]
        numbers = outcome.numbers()
        assert numbers["inform_recall"] == numbers["match"] == numbers["complete"] == 1


def test_reward_that_pays_for_failure_is_refused():
    with pytest.raises(ConfigError, match=r"success \(0\) must be above failure \(1\)"):
        TaskReward(success=0, failure=1)
