"""Runs that transformers' `Trainer` trains, with epochs as iterations: the base class, and supervised runs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.logger import Logger
from transformers import PreTrainedModel

from rl4dialog.core.config import SupervisedConfig
from rl4dialog.core.seeding import derive_seed
from rl4dialog.functional.distributed import all_gather_object, all_reduce_max
from rl4dialog.policies import saving
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.lora import LoRA
from rl4dialog.runs.run_folder import CHECKPOINTS_FOLDER
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training import supervised
from rl4dialog.training.building.language_model import build_supervised_examples
from rl4dialog.training.building.policy import build_inference_policy, policy_class
from rl4dialog.training.checkpoint import Checkpoint
from rl4dialog.training.random_state import random_state, random_states_kept, set_random_state
from rl4dialog.training.resumable_trainer import UNTRAINED, ResumableTrainer, run_trainer
from rl4dialog.training.trainee import TextTrainee, Trainee


class EpochTrainee(Trainee):
    """A model that is trained in epochs, with callbacks between them.

    It is the `model` of stable-baselines3's callbacks: `on_rollout_start` is called before an epoch, `on_step` after
    an optimizer step, and `on_rollout_end` after an epoch.

    Attributes:
        iteration: Number of finished epochs. A fraction at the end of the run counts as one.
        n_iters: Number of epochs of the run; with ``max_steps`` an upper bound until the training begins.
        num_timesteps: Number of optimizer steps.
        stop_requested: Set by callbacks to stop before the next epoch.
    """

    model: PreTrainedModel

    def begin_with(
        self, model: PreTrainedModel, args: Mapping[str, Any], seed: int, with_val: bool, by_length: bool = True
    ) -> None:
        """Set what is trained, once it is built, and how."""
        self.model = model
        folder = str(self._tracker.run_folder.path(CHECKPOINTS_FOLDER)) if self._tracker is not None else ""
        folder = all_gather_object(folder)[0]
        self._args = supervised.build_training_arguments(args, folder, seed, with_val, by_length)
        self._use_cache = getattr(model.config, "use_cache", None)
        self._n_done, self.num_timesteps = 0, 0
        self.logger = Logger(folder=None, output_formats=[])
        self.stop_requested, self._is_within = False, False
        self.checkpoint: Checkpoint | None = None
        self.first_random: dict[str, Any] | None = None
        self._state = UNTRAINED  # after the last finished epoch
        self._trainer: ResumableTrainer | None = None

    @abstractmethod
    def run_epochs(self) -> dict[str, Any]:
        """Run the trainer with this object as its loop. Returns its state after the last epoch."""

    @abstractmethod
    def training_metrics(self, state: dict[str, Any]) -> dict[str, float]:
        """Summarize the training of the whole run, for ``training_info.jsonl``."""

    @abstractmethod
    def save_weights(self, folder: Path) -> None:
        """Save model and tokenizer in a checkpoint."""

    @abstractmethod
    def load_weights(self, folder: Path) -> None:
        """Load weights saved by :meth:`save_weights`."""

    @contextmanager
    def config_restored(self) -> Iterator[None]:
        """Restore the model's cache switch, which `Trainer` turns off, while the model is saved."""
        now, self.model.config.use_cache = getattr(self.model.config, "use_cache", None), self._use_cache
        try:
            yield
        finally:
            self.model.config.use_cache = now

    @property
    def iteration(self) -> int:
        return self._n_done

    @property
    def is_within_iteration(self) -> bool:
        return self._is_within

    @property
    def stops_within_iteration(self) -> bool:
        return True

    def get_env(self) -> None:
        """Return no environment; stable-baselines3's callbacks ask for one."""

    def learn(self, callbacks: Sequence[BaseCallback]) -> None:
        self._callbacks = CallbackList(list(callbacks))
        self._callbacks.init_callback(self)  # type: ignore[arg-type]
        self._callbacks.on_training_start({}, {})
        if self.iteration < self.n_iters:
            self._begin()
            if not self._is_stopped():
                self._state = self.run_epochs()
        self._callbacks.on_training_end()
        if self._tracker is not None:
            self._tracker.log_training_infos({"iteration": self.iteration, **self.training_metrics(self._state)})

    def _begin(self) -> None:
        """Act before the first epoch, and keep the random state with which it starts."""
        with random_states_kept():
            if self.checkpoint is not None and self.checkpoint.is_unfinished:
                self.first_random = self._state["epoch_random"]
                return
            if self.checkpoint is not None:
                set_random_state(self.checkpoint.of_process("random"))
            self._callbacks.on_rollout_start()
            self.first_random = random_state()

    def after_step(self, trainer: ResumableTrainer) -> None:
        """Act after a step that does not finish an epoch."""
        self._trainer, self.num_timesteps, self._is_within = trainer, trainer.state.global_step, True
        if not self._callbacks.on_step():
            self.stop()

    def after_epoch(self, trainer: ResumableTrainer) -> None:
        self._trainer, self.num_timesteps, self._is_within = trainer, trainer.state.global_step, False
        self._state, self._n_iters = trainer.last_state, trainer.state.num_train_epochs
        self._n_done += 1
        supervised.finite_loss(self._state, self._args)
        self._callbacks.on_rollout_end()
        if self.iteration < self.n_iters and not self._is_stopped():
            self._callbacks.on_rollout_start()
        if self._is_stopped():
            trainer.control.should_training_stop = True

    def stop(self) -> None:
        self.stop_requested = True

    def _is_stopped(self) -> bool:
        """Whether a callback has stopped the run, in any process."""
        self.stop_requested = bool(all_reduce_max(int(self.stop_requested)))
        return self.stop_requested

    def capture_state(self) -> dict[str, Any]:
        state = self._state if self._trainer is None or not self._is_within else self._trainer.capture_state()
        own = {"iteration": self._n_done, "is_unfinished": self._is_within, "reference_hash": self._reference_hash}
        return {**state, **own}

    def save_state(self, folder: Path | None) -> None:
        if folder is None:
            return
        with self.config_restored():
            self.save_weights(folder / saving.MODEL_FOLDER)
        if self._trainer is not None:
            assert self._trainer.optimizer is not None
            save_file(saving.optimizer_tensors(self._trainer.optimizer), folder / saving.OPTIMIZER_FILE)

    def restore(self, checkpoint: Checkpoint) -> None:
        self.load_weights(checkpoint.path / saving.MODEL_FOLDER)
        self._state, self._n_done, self._is_within = checkpoint.state, checkpoint.iteration, checkpoint.is_unfinished
        if checkpoint.state["step"]:
            self.checkpoint, self.num_timesteps = checkpoint, checkpoint.state["step"]
            self._n_iters = checkpoint.state["trainer"]["num_train_epochs"]


class SupervisedTrainee(EpochTrainee, TextTrainee):
    """A language model and its training examples."""

    labels = ("before", "after")

    def __init__(self, config: SupervisedConfig, tracker: Tracker | None, checkpoint: Checkpoint | None = None) -> None:
        TextTrainee.__init__(self, config, tracker, checkpoint)
        self._config = config
        model = self.build_model(checkpoint)
        # Before the first evaluation, because invalid examples raise an error.
        self.examples = build_supervised_examples(config, self.texts, model.config)
        self.lora = LoRA(model, config.lora) if config.lora is not None else None
        seed, with_val = derive_seed(config.seed, "supervised"), self.examples.val is not None
        self.begin_with(model, config.training_args, seed, with_val, not self.examples.of_dialogues)

    def generator(self) -> LMActorCriticPolicy:
        return build_inference_policy(self.parts, self.model)

    def run_epochs(self) -> dict[str, Any]:
        chosen = supervised.SupervisedTrainer, self.model, self._args, *self.examples.sets
        return run_trainer(*chosen, loop=self, description="Supervised")

    def training_metrics(self, state: dict[str, Any]) -> dict[str, float]:
        return supervised.supervised_metrics(self.model, self.examples, self._args, state)

    def save_weights(self, folder: Path) -> None:
        saving.save_language_model(self.model, folder, self.lora)
        self.texts.tokenizer.save_pretrained(folder)

    def load_weights(self, folder: Path) -> None:
        saving.load_language_model_weights(self.model, folder, policy_class(self._config).auto_class, self.lora)

    def save_model(self, folder_name: str) -> Path | None:
        if self._tracker is None:
            return None
        with self.config_restored():
            return self._tracker.save_auto_model(self.model, self.texts.tokenizer, self.lora, folder_name=folder_name)
