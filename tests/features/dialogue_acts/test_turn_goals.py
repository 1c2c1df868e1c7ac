"""Runs that choose turn-level goals: what is refused, and their environments."""

import pytest
from runs import changed

from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.features.dialogue_acts.environments import build_evaluation_envs, build_turn_level_algorithm
from rl4dialog.training.building.components import check_components

CONFIG = {
    "datapool": {"id": "get_acquainted", "args": {"n_train": 60, "n_val": 10, "n_test": 10}},
    "speaker": {"id": "scripted"},
    "partner": {"id": "facts"},
    "env": {"id": "turn_goals", "n_envs": 4, "args": {"goals": "get_acquainted", "max_turns": 2}},
    "reward_fn": {"id": "persona_ranking", "args": {"n_distractors": 9}},
    "alg": {"id": "double_dqn", "args": {"buffer_size": 100}},
    "train_evaluation": {"n_iters": 1, "n_eval_episodes": 10},
}


def goals_config(**overrides):
    """The config; overrides are dotted keys with ``__`` for the dot, and ``None`` removes a key."""
    return parse_config(changed(CONFIG, overrides, without=None), "x.yml")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"env__args__goals": None}, "env.args.goals: environment 'turn_goals' needs the argument 'goals'"),
        ({"env__args__goals": []}, "env.args.goals: .*at least 1 item"),
        ({"env__args__goals": ["pets"]}, "env.args.goals\\[0\\]: unknown goal 'pets'; did you mean 'pet'"),
        ({"env__args__goals": [{"name": "a"}]}, "speaker 'scripted' says the questions of a goal, and 'a' has none"),
        ({"env__args__goals": 3}, "env.args.goals"),
        ({"env__args__samples": []}, "env.args.samples is set by other parts of the config; remove it"),
        ({"env__vec_env": "blocks"}, "env.vec_env: blocks cannot be combined with env.id: turn_goals"),
        ({"speaker": None}, "the key 'speaker' is missing, which env.id: turn_goals needs \\(such as id: scripted\\)"),
        ({"datapool": None}, "the key 'datapool' is missing"),
        ({"partner": None}, "the key 'partner' is missing"),
        ({"reward_fn": None}, "the key 'reward_fn' is missing, .*such as id: persona_ranking"),
        ({"speaker__id": "lmm"}, "unknown speaker 'lmm'; did you mean 'lm'"),
        ({"speaker__id": "lm"}, "speaker.args.model_name: speaker 'lm' needs the argument 'model_name'"),
        ({"estimator": {"id": "bag"}}, "unknown estimator 'bag'"),
        ({"partner__id": "agenda_user"}, "partner.id: agenda_user cannot be combined .*: it needs a task"),
        ({"partner__id": "self_play"}, "partner.id: self_play cannot be .* speaks with the model that a run trains"),
        ({"partner__args": {"goals": ["a"]}}, None),
        ({"reward_fn": {"id": "task_reward"}}, "unknown reward function 'task_reward'"),
        ({"reward_fn": {"id": "rouge"}}, "reward_fn.id: rouge cannot be combined with env.id: turn_goals"),
        ({"datapool__args__split": "val"}, "datapool.args.split: every run reads all three splits"),
        ({"task": {"id": "town_guide"}}, "task cannot be combined with env.id: turn_goals, which has none"),
        ({"nlu": {"id": "templates"}}, "nlu cannot be combined with env.id: turn_goals, which has no dialogue acts"),
        (
            {"alg__policy": {"id": "causal_lm_actor_critic_policy"}},
            "combined with env.id: turn_goals; use .*mlp_policy",
        ),
        ({"env": {"id": "CartPole-v1"}, "reward_fn": None}, "datapool cannot be combined with env.id: CartPole-v1"),
    ],
)
def test_what_is_refused_before_anything_is_loaded(overrides, message):
    config = goals_config(**overrides)
    if message is None:
        check_components(config)
        return
    with pytest.raises(ConfigError, match=message):
        check_components(config)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"partner__args": {"goals": ["a"]}}, "partner 'facts': goals\\[0\\]: unknown goal 'a'"),
        ({"reward_fn__args__n_distractors": 60}, "needs at least 61 different personas"),
        ({"alg": {"id": "bc"}}, "needs an environment with a method demonstrations"),
        ({"alg": {"id": "sac"}}, "alg.id: sac cannot be combined with env.id: turn_goals"),
    ],
)
def test_what_is_refused_when_it_is_built(overrides, message):
    with pytest.raises(ConfigError, match=message):
        build_turn_level_algorithm(goals_config(**overrides))


def test_environments_share_models_and_have_their_own_samples():
    config = goals_config(estimator={"id": "ranking_loss", "args": {"size": 4, "n_steps": 2}})
    check_components(config)
    trained = build_turn_level_algorithm(config).env
    val, test = (build_evaluation_envs(config, split, trained) for split in ("val", "test"))
    assert trained.parts is val.parts is test.parts and val.fingerprint == trained.fingerprint
    assert trained.observation_space.shape == (5,)
    samples = [{sample.id for sample in env._samples} for env in (trained, val, test)]
    assert [len(ids) for ids in samples] == [60, 10, 10] and not samples[1] & samples[2]
