"""Rows of this feature in tables of tests about all components."""

import functools

import pytest
from multiwoz_files import write_multiwoz
from stand_in_data import write_original

from rl4dialog.core.config import is_text
from rl4dialog.core.registry import import_object


def later(name, **kwargs):
    """Call an object of the feature, imported when it is called: many tests read these tables."""
    return lambda *args: import_object(f"rl4dialog.features.dialogue_acts.{name}")(*args, **kwargs)


def task_page(file):
    from cafe_agent import Cafe

    return later("task_chat:TaskPage")(Cafe)


def talk_about_a_goal(tab):
    tab.wait_until_ready()
    tab.send("<b>is</b> there tea ?")
    tab.wait_until_usable()
    tab.write("#text textarea", "bye\n")
    tab.wait_for(lambda: "Success: the goal is reached." in tab.one("#chat-0").text, "success")


SYSTEMS = ["convlab2"]
METRIC_KEYS = {"goal_followed": {"goal_followed"}}
HARMLESS_ARGUMENTS = ["algorithm", "blocks", "ent_coef", "net_arch", "target_entropy"]
USED_PAGES = [(task_page, talk_about_a_goal)]
LABELLED_PAGES = [(task_page, 3)]
POOLS_WITHOUT_FILES = {"task_dialogues": {}}
OFFERED_TO_POOLS = {"world": later("tasks.town_guide:town_guide", n_dialogues=20)}
TASK_FILES = [
    pytest.param(
        functools.partial(write_original, "camrest"),
        later("tasks.camrest:camrest", min_count=1),
        ("db/CamRestDB", "val"),
        id="camrest",
    ),
    pytest.param(
        write_multiwoz,
        later("tasks.multiwoz:multiwoz", splits={"train": "val"}, min_count=1),
        ("db/hotel_db", "db/taxi_db", "val"),
        id="multiwoz",
    ),
]


def make_smaller(config, folder):
    """Make a shipped config smaller: few samples, turns and episodes, and tiny models in a folder."""
    if "path" in config.get("task", {}).get("args", {}):
        is_multiwoz = config["task"]["id"] == "multiwoz"
        write = write_multiwoz if is_multiwoz else functools.partial(write_original, "camrest")
        config["task"]["args"]["path"] = str(write(folder))
    if is_text(config):
        return
    config["train_evaluation"].update(n_iters=1, n_eval_episodes=2)
    # Less than the one iteration.
    starts = {"learning_starts": 0, "target_update_interval": 64, "estimator_warmup_iters": 0}
    args = config["alg"].get("args", {})
    args.update({name: value for name, value in starts.items() if name in args})
    if config["env"]["id"] == "turn_goals":
        config["datapool"]["args"] = {"n_train": 24, "n_val": 6, "n_test": 6}
        config["env"]["args"]["goals"] = ["pet", "work"]
        for side in ("speaker", "partner"):
            if "model_name" in config[side].get("args", {}):
                config[side]["args"]["model_name"] = tiny_model(folder)
    if config.get("warm_start", {}).get("id") == "replay":
        config["warm_start"]["args"]["n_turns"] = 32


def tiny_model(folder):
    from tiny import make_gpt2, make_tokenizer

    tokenizer = make_tokenizer(marker="<EOU>")
    tokenizer.save_pretrained(folder)
    make_gpt2(tokenizer, n_positions=256).save_pretrained(folder)
    return str(folder)


FEW_SAMPLES = {"task_dialogues": {"n_test": 4}}
SMALLER_CONFIGS = [make_smaller]
CART_POLE = {
    "env": {"id": "CartPole-v1", "n_envs": 4},
    "alg": {"id": "dqn", "args": {"learning_starts": 16, "train_freq": 8, "target_update_interval": 8}},
    "train_evaluation": {"n_iters": 2, "eval_every": 1, "n_eval_episodes": 1},
}
GOALS = {
    "env": {"id": "turn_goals", "n_envs": 4, "args": {"goals": ["pet", "work", "small_talk"], "max_turns": 2}},
    "datapool": {"id": "get_acquainted"},
    "speaker": {"id": "scripted"},
    "partner": {"id": "facts"},
    "reward_fn": {"id": "persona_ranking"},
    "alg": {"id": "dqn", "args": {"learning_starts": 0, "train_freq": 8, "target_update_interval": 8}},
    "train_evaluation": {"n_iters": 2},
}
REPLAY = {
    "env": {"id": "dialogue_acts", "args": {"action": "composite", "n_composites": 9}},
    "task": {"id": "town_guide"},
    "reward_fn": {"id": "task_reward"},
    "warm_start": {"id": "replay", "args": {"n_turns": 20}},
    "alg": {"id": "dqn", "args": {"learning_starts": 0, "buffer_size": 50, "target_update_interval": 8}},
    "train_evaluation": {"n_iters": 9},
}


def goal(name, **changes):
    return {"name": name, "questions": [f"what about {name} ?"], "words": [name], **changes}


def args(**given):
    return {f"alg__args__{name}": value for name, value in given.items()}


def env(**given):
    return {f"env__args__{name}": value for name, value in given.items()}


PENDULUM = {"env__id": "Pendulum-v1", "alg": {"id": "sac", "args": {"tau": 0.0}}, "train_evaluation__n_iters": 999}
SMALL_TALK = {"name": "you", "questions": ["and you ?"]}
EXPLORING = {"alg__args__exploration_final_eps": 1.0, "alg__args__exploration_initial_eps": 0.1}
CONDITIONS_MET = [
    (CART_POLE, "refuse", args(learning_starts=64), "learning_starts is 64, but the run has only 64 timesteps"),
    (CART_POLE, "refuse", args(gradient_steps=0), "gradient_steps is 0, so nothing is ever trained"),
    (CART_POLE, "refuse", args(buffer_size=31), "buffer_size is 31, less than alg.args.batch_size = 32"),
    (CART_POLE, "refuse", args(target_update_interval=68), "target_update_interval is 68, but .* 64 timesteps"),
    (CART_POLE, "refuse", args(tau=0.0), "tau is 0, so the target network never moves"),
    (CART_POLE, "refuse", PENDULUM, "tau is 0"),
    (CART_POLE, "warn", {"alg__args": {"learning_starts": 16, "train_freq": 8}}, "target_update_interval is 10,000"),
    (GOALS, "refuse", env(goals=["pet"]), "goals has only the goal 'pet'"),
    (GOALS, "refuse", env(goals=[goal("cars"), goal("Cars ")]), "'cars' and 'Cars ' have the same"),
    (GOALS, "refuse", env(goals=["pet", goal("animals", words=["pet"])]), "'pet' and 'animals' have the same"),
    (GOALS, "refuse", env(goals=["pet", goal("a", words=["the", "of"])]), "'a' has words, but none is a"),
    (GOALS, "refuse", env(goals=["small_talk", SMALL_TALK]), "'small_talk' and 'you' have no words"),
    (REPLAY, "warn", {"warm_start__args__n_turns": 51}, "n_turns is 51, but alg.args.buffer_size is 50"),
    (REPLAY, "note", env(action="multi_binary"), "n_composites has no effect"),
    (REPLAY, "note", env(max_turns=1), "env.args.max_turns is 1: every dialogue ends"),
    (REPLAY, "warn", EXPLORING, "explores more and more"),
]
CONDITIONS_NOT_MET = [
    *((base, {}) for base in (CART_POLE, GOALS, REPLAY)),
    (CART_POLE, {"train_evaluation__n_iters": 0, "alg__args__learning_starts": 100}),  # only evaluates
    *((GOALS, {"env__args__goals": name}) for name in ("get_acquainted", "convogym")),
]
MEANINGLESS_NUMBERS = [
    (CART_POLE, args(learning_rate=1e6), "learning_rate: input should be less than or equal to 10"),
    (CART_POLE, args(buffer_size=10**10), "buffer_size: input should be less than or equal to 1000000000"),
]
CONFIGS = [CART_POLE]
SWITCHED = [(["alg.id=dqn"], "dqn cannot be combined with env.id: text_generation; .* start from .*town_guide/dqn.yml")]
CAN_TALK = [
    *(("town_guide/ppo", True), ("town_guide/gpt2_ppo", True)),
    *(("get_acquainted/turn_goals_dqn", False), ("cart_pole/dqn", False)),
]
