"""Runs whose policy takes whole actions in an environment with gymnasium spaces, and evaluation by episodes.

A checkpoint also holds ``model/`` (the policy), ``optimizer.safetensors`` (all optimizers, and tensors that the
algorithm trains beside the policy) and ``experience.safetensors`` (the last observations, and the replay buffer).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable import evaluation as maskable_evaluation
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common import evaluation as plain_evaluation
from stable_baselines3.common.base_class import recursive_getattr
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecTransposeImage
from torch import Tensor

from rl4dialog.core.errors import CheckpointError
from rl4dialog.core.files import to_plain
from rl4dialog.core.seeding import derive_seed
from rl4dialog.envs.vectorize import load_env_states
from rl4dialog.features.dialogue_acts import environments, policies
from rl4dialog.features.dialogue_acts.config import TurnLevelConfig
from rl4dialog.features.dialogue_acts.turn_goals.vec_env import PLAYERS, TurnGoalVecEnv
from rl4dialog.policies import saving
from rl4dialog.runs.progress import Progress, say
from rl4dialog.runs.run_folder import MODEL_FOLDER
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training.callbacks.run import TrackingCallback
from rl4dialog.training.checkpoint import Checkpoint
from rl4dialog.training.evaluation import Evaluation
from rl4dialog.training.random_state import random_state, random_states_kept, set_random_state
from rl4dialog.training.trainee import Trainee

_EXPERIENCE_FILE = "experience.safetensors"
_OF_THIS_PROCESS = ("start_time", "stop_requested", "_num_timesteps_at_start")


def capture_state(algorithm: Any) -> dict[str, Any]:
    """All state but arrays and tensors, as JSON values, with every number that is an attribute of the algorithm."""
    buffer = getattr(algorithm, "replay_buffer", None)
    numbers = {
        name: value
        for name, value in vars(algorithm).items()
        if isinstance(value, (int, float, np.number)) and name not in _OF_THIS_PROCESS
    }
    state: dict[str, Any] = to_plain(
        {
            "iteration": algorithm.iteration,
            "numbers": numbers,
            "random": random_state(),
            "actions_random": algorithm.action_space.np_random.bit_generator.state,
            "envs": algorithm.env.env_method("state_dict"),
            "episodes": list(algorithm.ep_info_buffer),
            "successes": list(algorithm.ep_success_buffer),
            "replay": None if buffer is None else {"pos": buffer.pos, "full": buffer.full},
        }
    )
    return state


def save_state(algorithm: Any, folder: Path) -> None:
    """Write all arrays and tensors to a folder."""
    policies.save_plain_policy(algorithm.policy, folder / MODEL_FOLDER)
    save_file(_trained_beside_policy(algorithm), folder / saving.OPTIMIZER_FILE)
    arrays = dict(_named("observations", algorithm._last_obs))
    arrays["episode_starts"] = algorithm._last_episode_starts
    saved = {name: np.ascontiguousarray(array) for name, array in (arrays | _replay_rows(algorithm)).items()}
    save_arrays(saved, folder / _EXPERIENCE_FILE)


def restore_state(algorithm: Any, checkpoint: Checkpoint) -> None:
    """Restore the state of a checkpoint in an algorithm built from the same config."""
    state, arrays = checkpoint.state, load_arrays(checkpoint.path / _EXPERIENCE_FILE)
    policies.load_plain_policy(algorithm.policy, checkpoint.path / MODEL_FOLDER)
    _restore_trained(algorithm, checkpoint.path / saving.OPTIMIZER_FILE)
    for name, value in state["numbers"].items():
        setattr(algorithm, name, value)
    for name, episodes in (("ep_info_buffer", state["episodes"]), ("ep_success_buffer", state["successes"])):
        setattr(algorithm, name, deque(episodes, maxlen=algorithm._stats_window_size))
    if state["replay"] is not None:
        buffer = algorithm.replay_buffer
        buffer.pos, buffer.full = state["replay"]["pos"], state["replay"]["full"]
        for name, rows in _replay_rows(algorithm).items():
            rows[:] = arrays[name]
    observations: Any = load_env_states(algorithm.env, state["envs"])
    if isinstance(algorithm.env, VecTransposeImage):  # stable-baselines3 wraps environments with images in it
        observations = algorithm.env.transpose_observations(observations)
    for name, observation in _named("observations", observations):
        if not np.array_equal(np.asarray(observation, arrays[name].dtype), arrays[name], equal_nan=True):
            why = "they depend on more than np_random and the actions of an episode"
            cure = "Define state_dict() and load_state_dict() in the environment's class, registered with EnvRegistry"
            what = f"the environments do not return to where they were in {checkpoint.path}"
            raise CheckpointError(f"{what}: {why}. {cure}")
    is_dict = isinstance(observations, Mapping)
    algorithm._last_obs = {n: arrays[f"observations.{n}"] for n in observations} if is_dict else arrays["observations"]
    algorithm._last_episode_starts = arrays["episode_starts"]
    algorithm.action_space.np_random.bit_generator.state = state["actions_random"]
    set_random_state(state["random"])


def _trained_beside_policy(algorithm: Any) -> dict[str, Tensor]:
    """The states of all optimizers, and tensors such as SAC's entropy coefficient, by path."""
    modules, variables = algorithm._get_torch_save_params()
    found = {name: recursive_getattr(algorithm, name).detach() for name in variables}
    for name in set(modules) - {"policy"}:
        optimizer = recursive_getattr(algorithm, name)
        found |= {f"{name}/{key}": tensor for key, tensor in saving.optimizer_tensors(optimizer).items()}
    return {name: tensor.cpu().contiguous() for name, tensor in sorted(found.items())}


def _restore_trained(algorithm: Any, path: Path) -> None:
    saved = load_file(path)
    modules, variables = algorithm._get_torch_save_params()
    for name in variables:
        recursive_getattr(algorithm, name).data.copy_(saved[name])
    for name in set(modules) - {"policy"}:
        own = {key.removeprefix(f"{name}/"): value for key, value in saved.items() if key.startswith(f"{name}/")}
        saving.restore_optimizer(recursive_getattr(algorithm, name), own, path)


def _replay_rows(algorithm: Any) -> dict[str, np.ndarray]:
    """The filled rows of the replay buffer's arrays, as views, by name."""
    buffer = getattr(algorithm, "replay_buffer", None)
    if buffer is None:
        return {}
    n_rows = buffer.buffer_size if buffer.full else buffer.pos
    named = (pair for name, value in vars(buffer).items() for pair in _named(f"replay.{name}", value))
    return {name: array[:n_rows] for name, array in named}


def _named(name: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    """An array, or each of a mapping of arrays, with its name; nothing for other values."""
    if isinstance(value, np.ndarray):
        yield name, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _named(f"{name}.{key}", each)


RULE = "rule"


class RulePlayer:
    """A policy of the environments themselves, in place of an algorithm."""

    def __init__(self, envs: VecEnv, name: str = RULE) -> None:
        self._envs, self._method, self.action_space = envs, f"{name}_action", envs.action_space

    def predict(self, observation: Any, state: Any = None, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Choose the player's action in each environment, whatever is observed."""
        del observation, args, kwargs
        return np.array(self._envs.env_method(self._method)), state


def player_names(envs: VecEnv) -> tuple[str, ...]:
    """Policies that environments have themselves."""
    if isinstance(envs, TurnGoalVecEnv):
        return PLAYERS if envs.is_rated else tuple(name for name in PLAYERS if name != "best_order")
    assert isinstance(envs, DummyVecEnv)
    return (RULE,) if envs.envs[0].has_wrapper_attr("rule_action") else ()


RETURN, LENGTH, SUCCESS = "episode/return", "episode/length", "episode/success"
TASK, DOMAIN = "task/", "success_in_domain/"


@random_states_kept()
def evaluate_episodes(
    algorithm: Any, env: VecEnv, n_episodes: int, deterministic: bool, seed: int
) -> list[dict[str, Any]]:
    """Run episodes with stable-baselines3's ``evaluate_policy``, by an algorithm, its policy alone or a `RulePlayer`.

    All random states are restored afterwards, so the number of evaluations does not affect training. The same seed
    gives the same episodes, if the policy does. Records have return and length, the success if the last info has
    ``is_success``, the other numbers of its ``outcome`` as ``task/...``, ``domains`` as ``success_in_domain/...``, and
    a ``transcript``.
    """
    episodes: list[dict[str, Any]] = []

    def on_step(step: dict[str, Any], _: dict[str, Any]) -> None:
        if not step["done"]:
            return
        info, i = step["info"], step["i"]
        episode = {"sample_id": info["episode_number"]}
        episode |= {RETURN: float(step["current_rewards"][i]), LENGTH: int(step["current_lengths"][i])}
        if not getattr(env, "is_rated", True):
            del episode[RETURN]
        if "is_success" in info:
            episode[SUCCESS] = float(info["is_success"])
        episode |= {f"{TASK}{key}": value for key, value in info.get("outcome", {}).items() if key != "success"}
        episode |= {f"{DOMAIN}{name}": float(success) for name, success in info.get("domains", {}).items()}
        episodes.append(episode | info.get("transcript", {}))

    of_actions = algorithm.action_space.np_random.bit_generator
    state_before = of_actions.state
    env.env_method("restart", seed)
    set_random_seed(seed)
    algorithm.action_space.seed(seed)
    is_masked = isinstance(algorithm, (MaskablePPO, MaskableActorCriticPolicy))
    module: Any = maskable_evaluation if is_masked else plain_evaluation
    try:
        module.evaluate_policy(algorithm, env, n_episodes, deterministic, callback=on_step, warn=False)
    finally:
        algorithm.action_space.np_random.bit_generator.state = state_before
    return sorted(episodes, key=lambda episode: episode["sample_id"])


def episodes_of_split(
    config: TurnLevelConfig, player: Any, envs: VecEnv, split: str, deterministic: bool | None = None
) -> list[dict[str, Any]]:
    """Episodes of a player in an evaluation of a split; by default, its actions are as deterministic as configured."""
    settings, seed = config.train_evaluation, derive_seed(config.seed, "evaluation", split)
    is_greedy = settings.deterministic if deterministic is None else deterministic
    return evaluate_episodes(player, envs, settings.n_eval_episodes, is_greedy, seed)


def player_scores(config: TurnLevelConfig, envs: VecEnv, split: str) -> dict[str, dict[str, float]]:
    """Mean scores of the environments' own policies on a split."""
    players = {name: RulePlayer(envs, name) for name in player_names(envs)}
    return {name: mean_scores(episodes_of_split(config, player, envs, split)) for name, player in players.items()}


def mean_scores(episodes: list[dict[str, Any]]) -> dict[str, float]:
    """Mean of each score: the success if all episodes have one, and the numbers of task and domains where they exist.

    With numbers of a task and successes, ``task/turns_of_success`` is the mean length of successful episodes; NaN if
    there are none.
    """
    keys = [key for key in (RETURN, LENGTH, SUCCESS) if all(key in episode for episode in episodes)]
    of_task = list(dict.fromkeys(key for episode in episodes for key in episode if key.startswith((TASK, DOMAIN))))
    means = {key: float(np.mean([e[key] for e in episodes if key in e])) for key in [*keys, *of_task]}
    if of_task and SUCCESS in means:
        lengths = [episode[LENGTH] for episode in episodes if episode[SUCCESS]]
        means[f"{TASK}turns_of_success"] = float(np.mean(lengths)) if lengths else math.nan
    return means


_LINE_EVERY_S = 10.0  # iterations can be as short as a few steps


class TurnLevelTrainee(Trainee):
    """An algorithm and its environments. It stops between iterations only, as a replay buffer has every single step."""

    _tracker: Tracker

    def __init__(self, config: TurnLevelConfig, tracker: Tracker, checkpoint: Checkpoint | None = None) -> None:
        self._config, self._tracker, self._is_resumed = config, tracker, checkpoint is not None
        self._n_iters = config.n_iters
        self.algorithm = environments.build_turn_level_algorithm(config)
        # Only the progress bar writes to the console; the tracker writes the files.
        self.algorithm.set_logger(Logger(folder=None, output_formats=[]))
        if checkpoint is None:
            environments.warm_start(config, self.algorithm)
        trained = self.algorithm.env
        val = test = environments.build_evaluation_envs(config, "val", trained)
        if environments.has_goal_splits(config):
            test = environments.build_evaluation_envs(config, "test", trained)
        self._evaluation_envs = {"val": val, "test": test}

    @property
    def iteration(self) -> int:
        return int(self.algorithm.iteration)

    def learn(self, callbacks: Sequence[BaseCallback]) -> None:
        n_left = self.n_iters - self.iteration
        with Progress("", "iteration", self.n_iters, initial=self.iteration, line_every_s=_LINE_EVERY_S) as progress:
            tracking = TrackingCallback(self._tracker, progress, rates_and_shown)
            self.algorithm.learn(
                n_left * self.algorithm.timesteps_per_iteration,
                CallbackList([tracking, *callbacks, tracking.last]),
                log_interval=None,  # the logger is cleared after each rollout
                reset_num_timesteps=not self._is_resumed,
            )

    def stop(self) -> None:
        self.algorithm.stop_requested = True

    def evaluate(self, split: str, iteration: int, reward_must_work: bool = False) -> Evaluation:
        config, envs = self._config, self._evaluation_envs[split]
        episodes = episodes_of_split(config, self.algorithm, envs, split)
        metrics = mean_scores(episodes)
        if config.train_evaluation.also_sampled:
            sampled = mean_scores(episodes_of_split(config, self.algorithm, envs, split, deterministic=False))
            metrics |= {f"sampled/{key}": value for key, value in sampled.items()}
        evaluation = Evaluation(metrics, [{"split_name": split, **episode} for episode in episodes])
        self._tracker.log_metrics(iteration, split, evaluation.metrics)
        self._tracker.log_predictions(iteration, split, evaluation.predictions)
        if iteration == 0 and split == "test" and player_names(envs):
            self._tracker.log_players(player_scores(config, envs, split))
        return evaluation

    def capture_state(self) -> dict[str, Any]:
        return capture_state(self.algorithm)

    def save_state(self, folder: Path | None) -> None:
        assert folder is not None  # there is one process
        save_state(self.algorithm, folder)

    def restore(self, checkpoint: Checkpoint) -> None:
        restore_state(self.algorithm, checkpoint)
        planned, now = self.algorithm._total_timesteps, self._config.n_iters * self.algorithm.timesteps_per_iteration
        if planned != now and hasattr(self.algorithm, "exploration_schedule"):
            what = f"exploration falls over {now} timesteps from now on, and fell over {planned} before"
            say(f"note: {what}, because train_evaluation.n_iters was changed", on_terminals=True)

    def save_model(self, folder_name: str) -> Path:
        with self._tracker.run_folder.replacing_folder(folder_name) as folder:
            policies.save_plain_policy(self.algorithm.policy, folder)
        return self._tracker.run_folder.path(folder_name)

    def close(self) -> None:
        self.algorithm.env.close()
        for envs in set(self._evaluation_envs.values()):
            envs.close()


def rates_and_shown(rollout: Mapping[str, Any], seconds: float) -> tuple[dict[str, float], dict[str, str]]:
    """Throughput of an iteration, and the values to display in the progress bar."""
    steps_per_s, mean_return = rollout["rollout/timesteps"] / seconds, rollout["rollout/ep_rew_mean"]
    shown = {} if math.isnan(mean_return) else {"return": f"{mean_return:.1f}"}
    return {"time/steps_per_s": steps_per_s}, {**shown, "steps/s": f"{steps_per_s:.0f}"}
