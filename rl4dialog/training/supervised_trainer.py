"""``alg.id: supervised``: fine-tune on the references, with the evaluation and the run folder of an RL run."""

from __future__ import annotations

import torch
from gymnasium import spaces

from rl4dialog.core.config import RunConfig
from rl4dialog.core.seeding import derive_seed
from rl4dialog.envs.text_generation import TextGenEnv
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.lora import LoRA
from rl4dialog.policies.models import embedding_rows
from rl4dialog.training import builders
from rl4dialog.training.evaluation import Evaluation, Evaluator
from rl4dialog.training.supervised import train_supervised
from rl4dialog.training.tracking import Tracker


class SupervisedTrainer:
    """Runs a supervised config.

    Args:
        config: Checked.
        tracker: Receives everything that is measured and saved.
    """

    def __init__(self, config: RunConfig, tracker: Tracker) -> None:
        torch.manual_seed(config.seed)
        self._config, self._tracker = config, tracker
        self.tokenizer, self.data = builders.build_run_tokenizer(config)
        self.lengths = builders.run_lengths(config)
        metrics = builders.build_metrics(config, builders.build_toolkit(config, self.tokenizer, self.data))
        self.evaluator = Evaluator(config, self.data, self.lengths, metrics, tracker)
        self.model = builders.build_language_model(config, self.tokenizer, self.data, self.lengths)
        self.lora = LoRA(self.model, config.lora) if config.lora is not None else None

    def train_and_eval(self) -> tuple[Evaluation, Evaluation]:
        """Evaluate, train, evaluate, save and print a summary; returns the test split before and after."""
        before = {split: self.evaluator.run(self._generator(), split, 0) for split in ("val", "test")}
        info = train_supervised(
            self.model,
            self.tokenizer,
            self.data.samples("train"),
            end_of_turn=self.data.turn_marker,
            max_prompt_length=self.lengths.prompt,
            max_reply_length=self.lengths.reply,
            training_args={"bf16": self._config.precision == "bf16", **(self._config.alg.training_args or {})},
            seed=derive_seed(self._config.seed, "supervised"),
            output_dir=self._tracker.run_folder.path("checkpoints"),
            loss_on=self._config.alg.loss_on,
            eval_samples=self.evaluator.samples("val"),
        )
        self._tracker.log_training_infos(info)
        after = {split: self.evaluator.run(self._generator(), split, 1) for split in ("val", "test")}
        self._tracker.save_auto_model(self.model, self.tokenizer, self.lora)
        self.evaluator.summarize(before["test"], after["test"], self._generator(), ("before", "after"))
        return before["test"], after["test"]

    def _generator(self) -> LMActorCriticPolicy:
        """A policy around the model as it is now, for its way of generating."""
        end_of_turn = builders.build_end_of_turn(self._config, self.tokenizer, self.data, self.model)
        env = TextGenEnv(
            end_of_turn,
            self.data.samples("train", 1),
            [],
            self.lengths.prompt,
            self.lengths.reply,
            embedding_rows(self.model),
        )
        assert isinstance(env.observation_space, spaces.Dict)
        return builders.policy_class(self._config)(
            env.observation_space,
            env.action_space,
            lambda _: 0.0,
            model=self.model,
            end_of_turn=end_of_turn,
            critic="none",
            generation_kwargs=self._config.alg.generation_kwargs,
            precision=self._config.precision,
        )
