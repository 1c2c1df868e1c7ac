"""Conversations of turn_goals as environments, without anything of ours around them."""

import json

import numpy as np
import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.evaluation import evaluate_policy

from rl4dialog.core.errors import ConfigError, DataError, PartnerError, RewardError
from rl4dialog.core.protocols import Partner
from rl4dialog.core.types import PartnerReply, Sample
from rl4dialog.features.dialogue_acts.turn_goals.estimators import BagOfWords
from rl4dialog.features.dialogue_acts.turn_goals.speakers import ScriptedSpeaker
from rl4dialog.features.dialogue_acts.turn_goals.vec_env import TurnGoalVecEnv, greedy_order
from rl4dialog.features.personas.get_acquainted import GetAcquainted
from rl4dialog.features.personas.persona_ranking import PersonaRankingReward
from rl4dialog.partners.scripted import FactsPartner
from rl4dialog.tasks.turn_goals import GOAL_SETS

SAMPLES = [sample for sample, _ in GetAcquainted.prepare("train", n_train=60)]
PERSONAS = [tuple((sample.meta_data or {})["partner_persona"]) for sample in SAMPLES]
NAMES = [goal.name for goal in GOAL_SETS["get_acquainted"]]


def ranking(**args):
    return PersonaRankingReward(personas=lambda _: PERSONAS, n_distractors=9, pays_now=True, **args)


def make(n_envs=4, **args):
    parts = {
        "goals": "get_acquainted",
        "samples": SAMPLES,
        "speaker": lambda **_: ScriptedSpeaker(),
        "partner": lambda **_: FactsPartner(),
        "estimator": lambda: BagOfWords(PERSONAS),
        "turn_reward": ranking(),
    }
    return TurnGoalVecEnv(n_envs=n_envs, **{**parts, **args})


def play(env, actions):
    return [env.step(np.array(each)) for each in actions]


def test_plain_dqn_of_stable_baselines3_trains_on_it():
    """It learns that one of two goals earns something: a partner of which all facts are about its pet."""
    samples = [Sample(i, "", [], {"history": ["hi ."], "partner_persona": [f"my pet is a {i} ."]}) for i in range(20)]
    personas = [tuple((sample.meta_data or {})["partner_persona"]) for sample in samples]
    reward = PersonaRankingReward(personas=lambda _: personas, n_distractors=4, pays_now=True)
    env = make(goals=["work", "pet"], max_turns=1, samples=samples, turn_reward=reward)
    algorithm = DQN("MlpPolicy", env, learning_rate=0.01, learning_starts=50, buffer_size=500, gradient_steps=2, seed=0)
    algorithm.learn(300)
    assert algorithm.policy.predict(env.reset(), deterministic=True)[0].tolist() == [1, 1, 1, 1]
    assert evaluate_policy(algorithm, env, 8, warn=False)[0] > 0.1


def test_rewards_are_the_changes_of_the_potential_and_only_new_facts_pay():
    env = make(max_turns=6)
    env.reset()
    talks = [*env._talks]
    topics = [[NAMES.index(name) for name in ("pet", "work", "pet", "food", "home", "work")]] * 4
    steps = play(env, np.array(topics).T.tolist())
    rewards = np.stack([step[1] for step in steps])
    assert (rewards[[2, 5]] == 0).all() and not np.isclose(rewards[[0, 1, 3, 4]], 0).all()
    dialogues = [talk.dialogue for talk in talks]
    whole = PersonaRankingReward(personas=lambda _: PERSONAS, n_distractors=9)(dialogues, [True] * 4)
    assert np.allclose(rewards.T, np.array(whole))
    assert np.allclose(rewards.sum(0), [info["episode"]["r"] for info in steps[-1][3]])


def test_shaping_of_the_end_pays_everything_at_the_end():
    paid = []
    for shaping in ("potential", "end"):
        env = make(max_turns=3, turn_reward=ranking(shaping=shaping))
        env.seed(0)
        env.reset()
        paid.append(np.stack([step[1] for step in play(env, [[0] * 4, [1] * 4, [2] * 4])]))
    assert not paid[1][:2].any() and np.allclose(paid[0].sum(0), paid[1][2], atol=1e-6)


def test_observation_is_estimate_turn_and_goals_so_far():
    env = make(max_turns=4, observes_goals=True)
    assert env.observation_space.shape == (BagOfWords(PERSONAS).size + 1 + 12,)
    assert env.reset()[:, -13:].any() == np.False_
    observed, *_ = play(env, [[3, 4, 5, 6], [3, 0, 0, 0]])[1]
    assert (observed[:, -13] == 0.5).all() and observed[0, -12:].tolist() == [0, 0, 0, 2] + [0] * 8
    assert env.fingerprint != make(max_turns=4).fingerprint != make(goals=["pet"]).fingerprint


def test_last_observation_is_in_the_info_and_the_next_conversation_begins():
    env = make(max_turns=2, is_numbered=True, keeps_transcripts=True)
    env.reset()
    observed, _, dones, infos = play(env, [[1] * 4, [2] * 4])[1]
    assert dones.all() and (observed[:, -1] == 0).all()
    for i, info in enumerate(infos):
        assert info["terminal_observation"][-1] == 1 and info["episode_number"] == i
        assert info["outcome"] == {"goals_followed": 1.0, "different_goals": 2.0}
        turns = info["transcript"]["turns"]
        assert [turn["speaker"] for turn in turns] == ["partner", "agent", "partner", "agent", "partner"]
        assert [turn.get("goal") for turn in turns] == [None, "pet", None, "food", None]
        assert ["reward" in turn for turn in turns] == [False, True, False, True, False]
        assert turns[0]["given"] and json.dumps(info["transcript"])


def test_numbered_episodes_are_about_each_sample_once_and_repeat():
    seen = []
    for _ in range(2):
        env = make(n_envs=20, max_turns=1, is_numbered=True, keeps_transcripts=True)
        env.env_method("restart", 7)
        env.reset()
        infos = [info for _, _, _, each in play(env, [[0] * 20] * 3) for info in each]
        seen.append([(info["episode_number"], info["transcript"]) for info in infos])
    assert seen[0] == seen[1] and [number for number, _ in seen[0]] == [*range(60)]
    assert {tuple(record["partner_persona"]) for _, record in seen[0]} == set(PERSONAS)


class Moody(Partner):
    """Answers with the number of its answers, and leaves after the third one."""

    def reset(self, meta_info, seed):
        self._n = 0

    def reply(self, history):
        self._n += 1
        return PartnerReply(f"{self._n} pet .", leaves=self._n == 3)


def test_state_in_the_middle_of_conversations_is_restored():
    one, other = (make(max_turns=5, partner=lambda **_: Moody()) for _ in range(2))
    one.seed(3)
    one.reset()
    actions = np.random.default_rng(0).integers(12, size=(12, 4)).tolist()
    observed = play(one, actions[:5])[-1][0]
    states = json.loads(json.dumps(one.env_method("state_dict")))
    restored = [other.env_method("load_state_dict", state, indices=[i])[0] for i, state in enumerate(states)]
    assert np.array_equal(np.stack(restored), observed)
    for a, b in zip(play(one, actions[5:]), play(other, actions[5:]), strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a[:3], b[:3], strict=True))
        assert [info.get("episode") for info in a[3]] == [info.get("episode") for info in b[3]]


def test_partner_that_leaves_ends_the_conversation():
    env = make(max_turns=9, partner=lambda **_: Moody(), is_numbered=True, keeps_transcripts=True)
    env.reset()
    steps = play(env, [[0] * 4] * 3)
    assert [step[2].tolist() for step in steps] == [[False] * 4, [False] * 4, [True] * 4]
    assert steps[-1][3][0]["transcript"]["ended_by"] == "partner"


def test_players_and_the_search_for_the_best_order():
    env = make(n_envs=12, goals=["pet", "work", "food", "home"], max_turns=2, is_numbered=True, samples=SAMPLES[:12])
    order = greedy_order(env)
    assert len(set(order)) == 2
    env.reset()
    chosen = [env.env_method(f"{name}_action") for name in ("random", "round_robin")]
    assert all(0 <= action < 4 for actions in chosen for action in actions) and len(set(chosen[0])) > 1
    env.step(np.array(chosen[1]))
    assert env.env_method("round_robin_action") == [(action + 1) % 4 for action in chosen[1]]
    with pytest.raises(ConfigError, match="best_order has no meaning here"):
        env.env_method("best_order_action")


class Broken(Partner):
    def reset(self, meta_info, seed):
        pass

    def reply(self, history):
        raise ZeroDivisionError("oh")


class Mute(ScriptedSpeaker):
    def speak(self, turns):
        return [""] * len(turns)


def test_utterances_that_miss_their_goal_are_counted():
    env = make(max_turns=1, speaker=lambda **_: Mute())
    env.reset()
    assert play(env, [[0] * 4])[0][3][0]["outcome"]["goals_followed"] == 0.0


def test_errors_name_the_sample_and_the_part():
    without = [Sample("s1", "", [], {"history": ["hi ."], "partner_persona": []})]
    with pytest.raises(DataError, match=r"facts about the partner in meta_data\['partner_persona'\].* sample 's1'"):
        make(samples=without)
    env = make(partner=lambda **_: Broken())
    env.reset()
    with pytest.raises(PartnerError, match=r"partner 'Broken' failed on sample 'train_.*ZeroDivisionError: oh"):
        play(env, [[0] * 4])
    for reward, message in ((lambda *_: [float("nan")] * 4, "a finite number, not nan"), (lambda *_: 1 / 0, "Zero")):
        env = make(turn_reward=reward)
        env.reset()
        with pytest.raises(RewardError, match=message):
            play(env, [[0] * 4])
