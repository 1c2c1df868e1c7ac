"""Task-oriented dialogue as an environment."""

import dataclasses
import functools
import json
import re
import runpy
import sys

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import EXAMPLES, ROOT
from sb3_contrib import QRDQN, TRPO, MaskablePPO
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.env_checker import check_env as check_env_of_sb3
from stable_baselines3.common.vec_env import DummyVecEnv
from worlds import goals, tiny_world

from rl4dialog.core.errors import DataError, RewardError
from rl4dialog.envs.vectorize import vectorize
from rl4dialog.features.dialogue_acts.algorithms.behaviour_cloning import warm_start_by_cloning
from rl4dialog.features.dialogue_acts.gym_wrappers import make_resumable
from rl4dialog.features.dialogue_acts.tasks.acts import GENERAL, INFORM, REQ_MORE, REQUEST, ActVocabulary, DialogueAct
from rl4dialog.features.dialogue_acts.tasks.environment import DialogueActEnv
from rl4dialog.features.dialogue_acts.tasks.outcome import TaskReward
from rl4dialog.features.dialogue_acts.tasks.town_guide import town_guide


def rule_episode(env, seed):
    env.reset(seed=seed)
    total = 0.0
    while True:
        _, reward, terminated, truncated, info = env.step(env.rule_action())
        total += reward
        if terminated or truncated:
            return total, info


@pytest.mark.filterwarnings("ignore:.*render modes.*")
@pytest.mark.parametrize("action", ["multi_binary", "composite"])
def test_environment_passes_both_checkers(action):
    env = DialogueActEnv(tiny_world, error_rate=0.3, action=action)
    check_env(env)
    check_env_of_sb3(env)


@pytest.mark.parametrize(
    ("algorithm", "action"),
    [
        (PPO, "multi_binary"),
        (A2C, "multi_binary"),
        (TRPO, "multi_binary"),
        (MaskablePPO, "multi_binary"),
        (MaskablePPO, "composite"),
        (DQN, "composite"),
        (QRDQN, "composite"),
    ],
)
def test_plain_algorithms_train_on_it(algorithm, action):
    """stable-baselines3 and sb3-contrib alone; the policy moves."""
    short = {"n_steps": 16} if algorithm not in (DQN, QRDQN) else {"learning_starts": 8}
    if algorithm in (PPO, TRPO, MaskablePPO):
        short["batch_size"] = 16
    model = algorithm("MlpPolicy", DialogueActEnv(tiny_world, error_rate=0.15, action=action), seed=0, **short)
    before = [parameter.detach().clone() for parameter in model.policy.parameters()]
    model.learn(32)
    after = [*model.policy.parameters()]
    assert any((old != new).any() for old, new in zip(before, after, strict=True))


def test_rule_policy_succeeds_and_is_paid_at_the_end():
    env = DialogueActEnv(tiny_world, turn_reward=TaskReward(success=1.0, failure=-1.0, turn=0.0))
    results = [rule_episode(env, seed) for seed in range(20)]
    assert all(total == 1.0 and info["is_success"] and info["outcome"]["success"] for total, info in results)


def test_domains_have_a_success_by_our_rules_and_by_those_of_convlab2():
    env, differ = DialogueActEnv(town_guide, {"n_dialogues": 60}, error_rate=0.4, convlab2=True), 0
    for seed in range(12):
        _, info = rule_episode(env, seed)
        ours, theirs = env.outcome().domains, env.convlab_outcome().domains
        found = {f"convlab2/{name}": outcome.success for name, outcome in theirs.items()}
        assert info["domains"] == {name: outcome.success for name, outcome in ours.items()} | found
        differ += sum(ours[name].success != outcome.success for name, outcome in theirs.items())
    assert differ
    assert not any("convlab2" in name for name in rule_episode(DialogueActEnv(tiny_world), 0)[1]["domains"])


def test_last_turn_terminates_or_truncates_as_asked():
    silence = np.zeros(len(tiny_world().system_acts), np.int8)
    for limit, expected in (("terminates", (True, False)), ("truncates", (False, True))):
        env = DialogueActEnv(tiny_world, max_turns=3, turn_limit=limit)
        env.reset(seed=0)
        steps = [env.step(silence) for _ in range(3)]
        assert [step[2] or step[3] for step in steps] == [False, False, True]
        assert steps[-1][2:4] == expected
        assert steps[-1][4]["is_success"] is False


def test_user_hears_a_limited_number_of_acts():
    env = DialogueActEnv(tiny_world, max_system_acts=2)
    env.reset(seed=0)
    everything = np.ones(env.action_space.shape or (), np.int8)
    *_, info = env.step(everything)
    assert info["unheard_acts"] == len(everything) - 2
    turn = env.transcript()["turns"][1]
    assert len(turn["chosen"]) == len(everything)
    assert len(turn["acts"]) + info["unsayable_acts"] == 2


@pytest.mark.long
def test_agent_that_informs_of_everything_stays_below_imitation():
    env = DialogueActEnv(town_guide, {"n_dialogues": 800}, error_rate=0.15, goal_split="test")
    everything = np.array([act.intent == INFORM for act in env.world.system_acts.acts], np.int8)
    train_env = DummyVecEnv([lambda: DialogueActEnv(town_guide, {"n_dialogues": 800})])
    imitator = PPO("MlpPolicy", train_env, seed=0, device="cpu")
    warm_start_by_cloning(imitator, n_epochs=15, batch_size=64, learning_rate=3e-3)
    assert success(env, lambda _: everything) < success(env, lambda seen: imitator.predict(seen)[0]) - 0.1


def success(env, agent, n=60):
    """Share of dialogues that succeed."""
    found = 0.0
    for seed in range(n):
        observation, is_over = env.reset(seed=seed)[0], False
        while not is_over:
            observation, _, is_over, _, info = env.step(agent(observation))
        found += info["is_success"]
    return found / n


def test_evaluation_splits_have_their_own_goals():
    world = tiny_world()
    seen = {split: {repr(goal.domains) for goal in world.goals[split]} for split in world.goals}
    assert not seen["train"] & (seen["val"] | seen["test"])
    env = DialogueActEnv(tiny_world, goal_split="val")
    for seed in range(5):
        env.reset(seed=seed)
        assert repr(env.dialogue.goal.domains) in seen["val"]


def test_goals_from_statistics_are_those_of_training_only():
    env, keys = DialogueActEnv(tiny_world, goals="statistics"), set[str]()
    of_split = {split: {goal.key for goal in env.world.goals[split]} for split in env.world.goals}
    for seed in range(30):
        info = env.reset(seed=seed)[1]
        assert info["goal"] == env.dialogue.goal.id and info["redrawn"] >= 0
        keys.add(env.dialogue.goal.key)
    assert keys - of_split["train"] and not keys & (of_split["val"] | of_split["test"])
    env.reset(options={"goal_index": 1})
    assert env.dialogue.goal == env.world.goals["train"][1]
    val = DialogueActEnv(tiny_world, goals="statistics", goal_split="val")
    val.reset(seed=0)
    assert val.dialogue.goal in val.world.goals["val"]


def test_errors_change_what_the_agent_hears_and_not_the_outcome():
    env = DialogueActEnv(tiny_world, error_rate=1.0)
    env.reset(seed=3)
    env.step(env.rule_action())
    turn = env.transcript()["turns"][0]
    assert turn["acts"] != turn["understood"]
    assert turn["acts"][0][3] in {value for goal in goals() for value in _values(goal)}


def test_masks_allow_what_can_be_said():
    env = DialogueActEnv(tiny_world)
    env.reset(seed=0)
    masks = env.action_masks().reshape(-1, 2)
    assert masks[:, 0].all()
    for act, (_, may_say) in zip(env.world.system_acts.acts, masks, strict=True):
        said = env.lexicalizer.say([act], env.dialogue.belief, env.dialogue.goal)
        assert bool(may_say) == (said.n_unsayable == 0), act


def test_combination_of_acts_is_what_is_said():
    env = DialogueActEnv(tiny_world, action="composite")
    for seed in range(5):
        env.reset(seed=seed)
        action = env.rule_action()
        assert env.action_masks()[action]
        env.step(action)
        chosen = env.transcript()["turns"][1]["chosen"]
        assert chosen == [list(act) for act in env.world.system_acts.decode(env._composites[action])]


def test_what_no_action_has_is_said(caplog):
    env = DialogueActEnv(tiny_world, action="composite", n_composites=1)
    n_learned = len(env.demonstrations()[0])
    whole, bits, ends = DialogueActEnv(tiny_world).demonstrations()
    is_learned = (bits[:, None] == env._composites).all(axis=2).any(axis=1)
    kept, _, kept_ends = env.demonstrations()
    np.testing.assert_array_equal(kept, whole[is_learned])
    is_followed = np.append(is_learned[1:], False) & (ends == 0)
    np.testing.assert_array_equal(kept_ends == 0, is_followed[is_learned])
    n_turns = sum(len(dialogue.turns) for dialogue in env.world.dialogues["train"])
    assert 0 < n_learned < n_turns
    assert f"tiny: {n_turns - n_learned} of the {n_turns} turns of the corpus are not imitated" in caplog.text
    caplog.clear()
    rare = dataclasses.replace(env.world, system_acts=ActVocabulary(env.world.system_acts.acts[:3]))
    DialogueActEnv(lambda: rare).demonstrations()
    assert "acts of the corpus are not imitated, because no action has this act; lower min_count" in caplog.text


def test_rule_policy_never_does_what_it_did_not_choose():
    world = tiny_world()
    trains = ActVocabulary(act for act in world.system_acts.acts if act.domain == "train")
    env = DialogueActEnv(lambda: dataclasses.replace(world, system_acts=trains), action="composite")
    env.reset(seed=0, options={"goal": goals()[0]})
    with pytest.raises(DataError, match=r"no action has the rule policy's .*inform\(name=1\)"):
        env.rule_action()


def test_demonstrations_are_those_of_the_tracker_in_simulation():
    env = DialogueActEnv(tiny_world)
    observations, actions, ends = env.demonstrations()
    assert len(observations) == len(actions) == len(ends)
    assert ends.sum() == len(env.world.dialogues["train"])
    goal = env.world.dialogues["train"][0].goal
    observed = env.reset(seed=0, options={"goal": goal})[0]
    assert observed.shape == observations[0].shape
    np.testing.assert_array_equal(observed, observations[0])  # rate 0: the same utterance of the same user


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 2**16 - 1), min_size=9, max_size=9),
    st.integers(0, 20),
    st.sampled_from(["corpus", "statistics"]),
)
def test_state_survives_json_at_every_turn_whatever_the_agent_says(choices, seed, goals):
    make = functools.partial(DialogueActEnv, tiny_world, error_rate=0.3, max_turns=9, goals=goals)
    env, other = make_resumable(make), make_resumable(make)
    env.reset(seed=seed)
    n_acts, n_turns, is_over = len(env.unwrapped.world.system_acts), 0, False
    other.reset(seed=0)
    while not is_over:
        other.load_state_dict(json.loads(json.dumps(env.state_dict())))
        bits = [choices[n_turns] >> i & 1 for i in range(n_acts)]
        (observation, *result, _), (restored, *same, _) = (each.step(np.array(bits, np.int8)) for each in (env, other))
        np.testing.assert_array_equal(observation, restored)
        assert result == same
        _, terminated, truncated = result
        n_turns, is_over = n_turns + 1, terminated or truncated
    assert n_turns <= 9


@pytest.mark.parametrize("goals", ["corpus", "statistics"])
def test_worker_processes_give_what_one_process_gives(goals):
    make = functools.partial(make_resumable, functools.partial(DialogueActEnv, tiny_world, error_rate=0.3, goals=goals))
    found = []
    for kind in ("dummy", "blocks"):
        envs = vectorize([make] * 3, kind, 2 if kind == "blocks" else None)
        try:
            envs.seed(1)
            observations = [envs.reset()]
            rewards = []
            rng = np.random.default_rng(0)
            for _ in range(12):
                actions = (rng.random((3, *envs.action_space.shape)) < 0.2).astype(np.int8)
                observation, reward, _, _ = envs.step(actions)
                observations.append(observation)
                rewards.append(np.float32(reward))
        finally:
            envs.close()
        found.append((np.stack(observations), np.stack(rewards)))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


def raises(turn):
    raise ValueError("boom")


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (raises, r"\(raises\) raised ValueError: boom"),
        (lambda turn: "lots", r"must be a finite number, not 'lots'"),
        (lambda turn: float("nan"), r"must be a finite number, not nan"),
        (lambda turn: None, r"must be a finite number, not None"),
    ],
    ids=["raises", "text", "nan", "none"],
)
def test_reward_that_is_no_number_names_the_turn(reward, message):
    env = DialogueActEnv(tiny_world, turn_reward=reward)
    env.reset(seed=0)
    with pytest.raises(RewardError, match=f"the reward of turn 1 of a dialogue about goal '.*' .*{message}"):
        env.step(env.rule_action())


def test_reward_sees_every_turn_and_the_outcome():
    turns = []

    def counted(turn):
        turns.append(turn)
        return 0.0

    env = DialogueActEnv(tiny_world, turn_reward=counted)
    rule_episode(env, 0)
    assert [turn.outcome is None for turn in turns] == [True] * (len(turns) - 1) + [False]
    assert all(turn.exchange.said for turn in turns)


def _values(goal):
    return {
        value
        for wanted in goal.domains.values()
        for values in (wanted.info, wanted.fail_info, wanted.book, wanted.fail_book)
        for value in values.values()
    }


def test_rule_policy_without_reqmore_asks_or_repeats_its_offer():
    world = tiny_world()
    asking = ActVocabulary([*world.system_acts.acts, DialogueAct(REQUEST, "restaurant", "area")])
    assert DialogueAct(REQ_MORE, GENERAL) not in asking
    env = DialogueActEnv(lambda: dataclasses.replace(world, system_acts=asking))
    env.reset(seed=0)
    env.begin(goals()[0], (), [])
    assert asking.decode(env.rule_action()) == [DialogueAct(REQUEST, "restaurant", "area")]
    env.listen([DialogueAct(INFORM, "restaurant", "food", "thai")])
    env.dialogue.belief.domains["restaurant"].offered = "thai north 0"
    assert asking.decode(env.rule_action()) == [DialogueAct(INFORM, "restaurant", "name", "1")]


def test_rule_policy_that_cannot_ask_for_a_value_lets_the_user_repeat_it():
    world = tiny_world()
    assert DialogueAct(REQUEST, "restaurant", "people") not in world.system_acts
    acts = ActVocabulary([*world.system_acts.acts, DialogueAct(REQ_MORE, GENERAL)])
    env = DialogueActEnv(lambda: dataclasses.replace(world, system_acts=acts))
    env.reset(seed=0)
    env.begin(goals()[0], (), [])
    told = {"food": "thai", "area": "north", "day": "monday"}
    env.listen([DialogueAct(INFORM, "restaurant", slot, value) for slot, value in told.items()])
    env.dialogue.belief.domains["restaurant"].offered = "thai north 0"
    assert acts.decode(env.rule_action()) == [DialogueAct(REQ_MORE, GENERAL)]


def test_loop_of_convlab2_trains_a_policy_and_prints_its_metrics(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["own_dialogue_policy.py", "150", "1", "64"])
    found = runpy.run_path(str(EXAMPLES / "own_dialogue_policy.py"))
    printed = capsys.readouterr().out
    assert re.search(r"^epoch 0: mean return -?\d", printed, re.MULTILINE)
    for name in ("inform_f1", "book", "complete", "success"):
        assert f"{name}: {found['scores'][f'task/convlab2/{name}']:.3f}\n" in printed
    assert 0.1 < found["scores"]["task/convlab2/inform_f1"] < 1, "it has imitated dialogues, for a short time"
    assert re.search(r"^turns: \d", printed, re.MULTILINE)
    s, a, r = found["policy"].sample(40)
    assert len(s) == len(a) == len(r) >= 40 and set(a.unique().tolist()) == {0, 1}
