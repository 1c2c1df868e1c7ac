"""The run under examination, whose parts are built as in a real run."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from stable_baselines3.common.logger import Logger
from transformers import PreTrainedModel

from rl4dialog.core.cache import find_cached
from rl4dialog.core.config import OnPolicyConfig, RunConfig, TextConfig
from rl4dialog.functional.replies import Replies
from rl4dialog.training.assembly import Assembly, part
from rl4dialog.training.building import language_model
from rl4dialog.training.building.algorithm import build_algorithm
from rl4dialog.training.building.policy import all_arguments
from rl4dialog.training.findings import NotApplicable
from rl4dialog.training.memory import MemoryPlan, predict_memory

N_REPLIES = 32


class Rollout(NamedTuple):
    """Replies, logged values and episode rewards of one iteration."""

    replies: Replies
    logged: dict[str, float]
    rewards: list[float]


class Subject(Assembly):
    """A run of any kind that has not started."""

    def __init__(self, config: RunConfig, results_path: Path, quick: bool = False) -> None:
        self.run_config, self.results_path, self._is_quick = config, results_path, quick
        self._trains_classifier = not quick
        torch.manual_seed(config.seed)

    @property
    def config(self) -> TextConfig:
        if not isinstance(self.run_config, TextConfig):
            raise NotApplicable("the run trains no language model")
        return self.run_config

    @property
    def _rl_config(self) -> OnPolicyConfig:
        if not isinstance(self.config, OnPolicyConfig):
            raise NotApplicable(f"alg.id: {self.config.alg.id} has no rollouts")
        return self.config

    def close(self) -> None:
        if "algorithm" in self.__dict__:
            self.algorithm.env.close()

    @part
    def memory_plan(self) -> MemoryPlan:
        config = self._rl_config
        return predict_memory(config, self.texts, all_arguments(config))

    @part
    def _model_and_state(self) -> tuple[PreTrainedModel, str, list[float]]:
        config = self.config
        if self._is_quick:
            raise NotApplicable("it needs the model, which --quick leaves out")
        model = language_model.build_language_model(config.model_copy(update={"warm_start": None}), self.texts)
        if config.warm_start is None:
            return model, "as loaded", []
        if cached := find_cached(language_model.WARM_START, language_model.warm_start_key(config, model, self.texts)):
            losses = language_model.warm_start_facts(cached)["held_out_losses"]
            warmed = language_model.build_language_model(config, self.texts)
            return warmed, "after its warm start, which is cached", losses
        return model, "before its warm start, which is not cached", []

    @part
    def initial_model(self) -> PreTrainedModel:
        return self._model_and_state[0]

    @property
    def model_state(self) -> str:
        return self._model_and_state[1]

    @property
    def warm_start_losses(self) -> list[float]:
        """Losses of val replies before and after each epoch of a cached warm start, if they are known."""
        return self._model_and_state[2]

    @property
    def is_cold(self) -> bool:
        """Whether the run has a warm start that is not applied to this model."""
        return self.model_state.startswith("before")

    @part
    def algorithm(self) -> Any:
        """The run's algorithm with one reply in each of :data:`N_REPLIES` environments and a learning rate of 0."""
        config = self._rl_config.model_copy(deep=True)
        defaults = all_arguments(config)
        group_size = defaults.get("n_generations", 1)
        config.env.n_envs = math.ceil(N_REPLIES / group_size) * group_size
        config.alg.args |= {"n_steps": 1, "learning_rate": 0.0}
        if "n_epochs" in defaults:
            config.alg.args |= {"n_epochs": 1, "batch_size": max(2, N_REPLIES * self.lengths.reply // 4)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about batch sizes that do not fit this small rollout
            algorithm = build_algorithm(self, config)
        algorithm.set_logger(Logger(folder=None, output_formats=[]))
        return algorithm

    @part
    def replies(self) -> Replies:
        """Sampled replies to some prompts of the train split, without rewards."""
        policy = self.algorithm.policy
        self.algorithm.set_random_seed(self.config.seed)
        observations = self.algorithm.env.reset()
        obs = {name: torch.as_tensor(array, device=policy.device) for name, array in observations.items()}
        return policy.generate(obs)  # type: ignore[no-any-return]

    @part
    def rollout(self) -> Rollout:
        return self.collect()

    def collect(self) -> Rollout:
        """Collect an iteration, starting from the run's seed. It stays in the algorithm's buffer."""
        algorithm = self.algorithm
        algorithm.set_random_seed(self.config.seed)
        _, callback = algorithm._setup_learn(algorithm.n_steps * algorithm.env.num_envs)
        algorithm.collect_rollouts(algorithm.env, callback, algorithm.rollout_buffer, algorithm.n_steps)
        rewards = [episode["r"] for episode in algorithm.ep_info_buffer]
        return Rollout(algorithm.rollout_buffer.replies, dict(algorithm.logger.name_to_value), rewards)
