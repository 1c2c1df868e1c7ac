"""Runs that train a policy with an algorithm of stable-baselines3's kind, on its own replies or on logs.

A checkpoint also holds ``model/`` (language model and tokenizer in transformers' format), ``optimizer.safetensors``
and, where the policy has them, ``critic.safetensors``, ``mask.safetensors``, ``target.safetensors``,
``reference.safetensors`` if the reference follows the policy, and ``partner.safetensors`` if copies of the policy are
its partners. The initial model is not saved: on resume it is rebuilt and its hash is verified.
"""

from __future__ import annotations

import logging
import os
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.logger import Logger
from transformers import AutoTokenizer

from rl4dialog.core.config import OnPolicyConfig, PolicyRunConfig
from rl4dialog.core.errors import CheckpointError, ConfigError, DataError, PartnerError, RewardError
from rl4dialog.core.features import features
from rl4dialog.core.files import to_plain
from rl4dialog.core.pretrained import load_pretrained
from rl4dialog.core.registry import import_object
from rl4dialog.core.run_format import config_of, why_no_values
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import Sample
from rl4dialog.envs.vectorize import load_env_states
from rl4dialog.functional.distributed import all_gather_object
from rl4dialog.policies import saving
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.sharding import whole_weights
from rl4dialog.runs.progress import Progress
from rl4dialog.runs.run_folder import CONFIG_FILE
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training.building.policy import is_guided
from rl4dialog.training.callbacks.base import FeatureCallback
from rl4dialog.training.callbacks.run import ConversationLogCallback, TrackingCallback
from rl4dialog.training.checkpoint import Checkpoint, newest_folders, read_checkpoint
from rl4dialog.training.critic_measure import MIN_ITERATIONS, N_CONTINUATIONS, CriticMeasure, value_ranks
from rl4dialog.training.evaluation import Evaluation
from rl4dialog.training.random_state import random_state, random_states_kept, set_random_state
from rl4dialog.training.trainee import TextTrainee

_logger = logging.getLogger(__name__)
PARTNER_FILE = "partner.safetensors"


def find_initial_critic(config: OnPolicyConfig) -> Checkpoint | None:
    """Find the newest checkpoint of the run whose critic a config starts with, if it names one."""
    run_folder = config.alg.policy.args.critic_from
    if run_folder is None:
        return None
    where = f"alg.policy.args.critic_from: {run_folder}"
    try:
        os.listdir(run_folder)
    except OSError as error:
        raise ConfigError(f"{where} is not a folder that can be read: {error.strerror}") from error
    newest = next(iter(newest_folders(Path(run_folder))), None)
    if newest is None:
        raise ConfigError(f"{where} has no checkpoint; name the folder of a run with an algorithm that has a critic")
    try:
        checkpoint = read_checkpoint(newest)
    except CheckpointError as error:
        raise ConfigError(f"{where}: {error}; remove it to use the checkpoint before it") from error
    if not (checkpoint.path / saving.CRITIC_FILE).is_file():
        raise ConfigError(f"{where} has no critic; name the folder of a run with an algorithm that has one")
    saved = config_of(Path(run_folder) / CONFIG_FILE)
    if why := why_no_values(saved):
        raise ConfigError(f"{where}: {why}; name another run")
    if (theirs := saved["alg"]["policy"]["args"].get("critic_reads", "history")) != config.critic_reads:
        raise ConfigError(f"{where} was trained with alg.policy.args.critic_reads: {theirs}; set the same")
    return checkpoint


def load_initial_critic(policy: LMActorCriticPolicy, checkpoint: Checkpoint, reference_hash: str) -> None:
    """Load the critic of another run's checkpoint into a new policy."""
    where = f"alg.policy.args.critic_from: {checkpoint.path}"
    saved = load_pretrained(AutoTokenizer, str(checkpoint.path / saving.MODEL_FOLDER), "tokenizer", where)
    if saved.get_vocab() != policy.end_of_turn.tokenizer.get_vocab():
        raise ConfigError(f"{where} was trained with another tokenizer; use the tokenizer block of that run")
    if policy.critic_kind == "shared" and checkpoint.state["reference_hash"] != reference_hash:
        advice = "begin with the same one, warm start and seed included, or use critic: separate in both runs"
        raise ConfigError(f"{where} began with another model. A shared critic is only a head on its model: {advice}")
    saving.load_state_beside(policy, checkpoint.path, saving.CRITIC_FILE)


class PolicyTrainee(TextTrainee):
    """An algorithm that trains a policy in iterations, and its callbacks."""

    def __init__(self, config: PolicyRunConfig, tracker: Tracker | None, checkpoint: Checkpoint | None = None) -> None:
        super().__init__(config, tracker, checkpoint)
        self._is_resumed, self._is_guided = checkpoint is not None, is_guided(config)
        self.build_model(checkpoint)
        self.algorithm: Any = self.parts.algorithm
        self.evaluator.begin_run(self.algorithm.policy)
        # Only the progress bar writes to the console; the tracker writes the files.
        self.algorithm.set_logger(Logger(folder=None, output_formats=[]))
        self._of_features = list[FeatureCallback]()
        if tracker is not None:
            named = [name for feature in features().values() for name in feature.callbacks]
            self._of_features = [import_object(name)(self, tracker.run_folder) for name in named]

    @property
    def iteration(self) -> int:
        return int(self.algorithm.iteration)

    def generator(self) -> LMActorCriticPolicy:
        return self.algorithm.policy  # type: ignore[no-any-return]

    def evaluate(self, split: str, iteration: int, reward_must_work: bool = False) -> Evaluation:
        found = super().evaluate(split, iteration, reward_must_work)
        if iteration == 0 and split == "val":
            for callback in self._of_features:
                callback.check_start(found.predictions)
        return found

    def learn(self, callbacks: Sequence[BaseCallback]) -> None:
        n_left = self.n_iters - self.iteration
        with Progress("", "iteration", self.n_iters, initial=self.iteration) as progress:
            first, last = list[BaseCallback](), list[BaseCallback]()
            if isinstance(self.parts.config, OnPolicyConfig) and self.parts.config.logging.conversations:
                first = [ConversationLogCallback(self._tracker)]
            if self._tracker is not None:
                tracking = TrackingCallback(self._tracker, progress, rates_and_shown)
                first, last = [*first, tracking, *self._of_features], [tracking.last]
            self.algorithm.learn(
                n_left * self.algorithm.timesteps_per_iteration,
                CallbackList([*first, *callbacks, *last]),
                log_interval=1,  # clear the logger after each iteration; A2C's default is every hundred
                reset_num_timesteps=not self._is_resumed,
            )

    def stop(self) -> None:
        self.algorithm.stop_requested = True

    @abstractmethod
    def own_state(self) -> dict[str, Any]:
        """State besides that of every policy, equal in all processes."""

    @abstractmethod
    def restore_own(self, checkpoint: Checkpoint, of_process: Mapping[str, Any]) -> None:
        """Restore what :meth:`own_state` and :meth:`state_of_process` captured."""

    def state_of_process(self) -> dict[str, Any]:
        """State of this process, besides its random state."""
        return {}

    def capture_state(self) -> dict[str, Any]:
        algorithm = self.algorithm
        state: dict[str, Any] = {
            "iteration": algorithm.iteration,
            "num_timesteps": algorithm.num_timesteps,
            "n_updates": algorithm._n_updates,
            "skipped_in_a_row": algorithm.step_guard.n_in_a_row,
            **self.own_state(),
            "processes": all_gather_object({"random": random_state(), **self.state_of_process()}),
            "reference_hash": self._reference_hash,
        }
        return to_plain(state)  # type: ignore[no-any-return]

    def restore(self, checkpoint: Checkpoint) -> None:
        algorithm, state, path = self.algorithm, checkpoint.state, checkpoint.path
        of_process = checkpoint.of_process("processes")
        saving.load_policy_weights(algorithm.policy, path)
        saving.load_optimizer(algorithm.policy.optimizer, path)
        algorithm.num_timesteps, algorithm._n_updates = state["num_timesteps"], state["n_updates"]
        algorithm.step_guard.n_in_a_row = state["skipped_in_a_row"]
        self.restore_own(checkpoint, of_process)
        set_random_state(of_process["random"])

    def save_state(self, folder: Path | None) -> None:
        saving.save_policy(self.algorithm.policy, folder)

    def save_model(self, folder_name: str) -> Path | None:
        policy = self.algorithm.policy
        weights = whole_weights(policy)
        if self._tracker is None:
            return None
        parts = (policy.language_model, self.texts.tokenizer, policy.lora, weights)
        values = policy.save_values if self._is_guided else None
        return self._tracker.save_auto_model(*parts, folder_name, values)

    def summarize(self, before: Evaluation, after: Evaluation) -> None:
        super().summarize(before, after)
        for callback in self._of_features:
            if callback.summary is not None:
                print(callback.summary)

    def close(self) -> None:
        self.algorithm.env.close()


class OnPolicyTrainee(PolicyTrainee):
    """A stable-baselines3 algorithm over whole replies."""

    labels = ("before RL", "after RL")

    def __init__(self, config: OnPolicyConfig, tracker: Tracker | None, checkpoint: Checkpoint | None = None) -> None:
        self._config = config
        # First, because a warm start can take hours.
        critic_from = find_initial_critic(config) if checkpoint is None else None
        super().__init__(config, tracker, checkpoint)
        if config.train_evaluation.value_rank_states is not None:
            self.evaluator.value_ranks = self._value_ranks
        # Evaluations show no secrets.
        self.evaluator.has_critic = self.algorithm.needs_critic and not self.parts.lengths.secret
        if critic_from is not None:
            load_initial_critic(self.algorithm.policy, critic_from, self._reference_hash)

    def _value_ranks(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Rank correlations of the critic's values with returns of a few states; none if they cannot be computed."""
        policy, n = self.algorithm.policy, self._config.train_evaluation.value_rank_states
        seed, partner = derive_seed(self._config.seed, "critic"), self.algorithm.collector.partner
        assert n is not None
        try:
            with random_states_kept():  # so that training stays the same
                measure = CriticMeasure(self.parts, policy, policy, seed, partner)
                ranks, warning = value_ranks(*measure.drawn(samples, n, N_CONTINUATIONS)[:2])
        except (DataError, PartnerError, RewardError) as error:
            _logger.warning("this evaluation does not measure the critic: %s", error)
            return {}
        if warning and self.iteration >= MIN_ITERATIONS:
            _logger.warning(warning)
        return ranks

    @property
    def stops_within_iteration(self) -> bool:
        return True  # weights do not change during a rollout, so it can be repeated

    def own_state(self) -> dict[str, Any]:
        algorithm, collector = self.algorithm, self.algorithm.collector
        return {
            "kl_controller": algorithm.kl_controller.state_dict(),
            "normalizer": collector.normalizer.state_dict() if collector.normalizer is not None else None,
            "partner": collector.partner.state_dict() if collector.partner is not None else {},
            "baseline": algorithm.rollout_buffer.state_dict(),
        }

    def state_of_process(self) -> dict[str, Any]:
        return {
            "envs": self.algorithm.env.env_method("state_dict"),
            "episodes": list(self.algorithm.ep_info_buffer or []),
        }

    def save_state(self, folder: Path | None) -> None:
        super().save_state(folder)
        partner = self.algorithm.collector.partner
        tensors = saving.gathered(partner.tensors()) if partner is not None else {}  # from all processes
        if folder is not None and tensors:
            save_file(tensors, folder / PARTNER_FILE)

    def restore_own(self, checkpoint: Checkpoint, of_process: Mapping[str, Any]) -> None:
        algorithm, state, envs = self.algorithm, checkpoint.state, of_process["envs"]
        if len(envs) != (n_envs := algorithm.env.num_envs):
            raise CheckpointError(f"{checkpoint.path} has {len(envs)} environments per process, not {n_envs}")
        algorithm.kl_controller.load_state_dict(state["kl_controller"])
        algorithm.rollout_buffer.load_state_dict(state["baseline"])
        normalizer, partner = algorithm.collector.normalizer, algorithm.collector.partner
        if normalizer is not None:
            normalizer.load_state_dict(state["normalizer"])
        if partner is not None and (saved := state["partner"]):
            path = checkpoint.path / PARTNER_FILE
            partner.load_state(saved, load_file(path) if path.is_file() else {})
        algorithm.ep_info_buffer = deque(of_process["episodes"], maxlen=algorithm._stats_window_size)
        algorithm.ep_success_buffer = deque(maxlen=algorithm._stats_window_size)
        algorithm._last_obs = load_env_states(algorithm.env, envs)


def rates_and_shown(rollout: Mapping[str, Any], seconds: float) -> tuple[dict[str, float], dict[str, str]]:
    """Throughput of an iteration, and the values to display in the progress bar."""
    tokens_per_s = rollout["rollout/tokens"] / seconds
    if "rollout/epoch" in rollout:
        shown = {"epoch": f"{rollout['rollout/epoch']:.2f}"}  # of a log
    else:
        shown = {"reward": f"{rollout['rollout/task_reward']:.3f}", "KL": f"{rollout['rollout/kl']:.3f}"}
    return {"time/tokens_per_s": tokens_per_s}, {**shown, "tokens/s": f"{tokens_per_s:.0f}"}
