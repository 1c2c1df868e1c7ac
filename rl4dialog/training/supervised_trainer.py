"""``alg.id: supervised``: fine-tune on the references, with the evaluation and the run folder of an RL run."""

from __future__ import annotations

import torch

from rl4dialog.core.config import SupervisedConfig
from rl4dialog.core.seeding import derive_seed
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.hashing import weights_hash
from rl4dialog.policies.lora import LoRA
from rl4dialog.runs.provenance import record_contents
from rl4dialog.runs.report.run_report import write_report_or_warn
from rl4dialog.runs.results import write_result
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training.building.examples import build_supervised_examples
from rl4dialog.training.building.inference_policy import build_inference_policy
from rl4dialog.training.building.language_model import build_language_model
from rl4dialog.training.building.lengths import run_lengths
from rl4dialog.training.building.metrics import build_metrics
from rl4dialog.training.building.rewards import build_reward_columns
from rl4dialog.training.building.tokenizer import build_run_tokenizer
from rl4dialog.training.building.toolkit import build_toolkit
from rl4dialog.training.evaluation import Evaluation, Evaluator, metrics_of
from rl4dialog.training.supervised import train_supervised


class SupervisedTrainer:
    """Runs a supervised config.

    Args:
        config: Checked.
        tracker: Receives everything that is measured and saved.
    """

    def __init__(self, config: SupervisedConfig, tracker: Tracker) -> None:
        torch.manual_seed(config.seed)
        self._config, self._tracker = config, tracker
        self.tokenizer, self.data = build_run_tokenizer(config)
        self.lengths = run_lengths(config, self.tokenizer, self.data)
        toolkit = build_toolkit(config, self.tokenizer, self.data)
        metrics, rewards = build_metrics(config, toolkit), build_reward_columns(config, toolkit)
        self.evaluator = Evaluator(config, self.data, self.lengths, metrics, tracker, rewards)
        self.model = build_language_model(config, self.tokenizer, self.data, self.lengths)
        # Before anything is evaluated, as they may be refused.
        self.examples = build_supervised_examples(config, self.tokenizer, self.data, self.lengths, self.model.config)
        record_contents(tracker.run_folder, self.data, weights_hash(self.model))
        self.lora = LoRA(self.model, config.lora) if config.lora is not None else None

    def train_and_eval(self) -> tuple[Evaluation, Evaluation]:
        """Evaluate, train, save, evaluate and print a summary; returns the test split before and after.

        Raises:
            RewardError: If the reward of evaluated replies failed; after training, when everything else is saved.
        """
        splits = ("val", "test")
        before = {split: self.evaluator.run(self._generator(), split, 0, reward_must_work=True) for split in splits}
        info = train_supervised(
            self.model,
            self.tokenizer,
            self.examples,
            training_args={"bf16": self._config.precision == "bf16", **self._config.alg.training_args},
            seed=derive_seed(self._config.seed, "supervised"),
            output_dir=self._tracker.run_folder.path("checkpoints"),
        )
        self._tracker.log_training_infos(info)
        self._tracker.save_auto_model(self.model, self.tokenizer, self.lora)
        after = {split: self.evaluator.run(self._generator(), split, 1) for split in splits}
        for evaluation in after.values():
            if evaluation.reward_error is not None:
                raise evaluation.reward_error
        write_report_or_warn(self._tracker.run_folder.root)
        write_result(self._tracker.run_folder, 1, metrics_of(before), metrics_of(after))
        self.evaluator.summarize(before["test"], after["test"], self._generator(), ("before", "after"))
        return before["test"], after["test"]

    def _generator(self) -> LMActorCriticPolicy:
        """A policy around the model as it is now, for its way of generating."""
        return build_inference_policy(self._config, self.tokenizer, self.data.turn_marker, self.model, self.lengths)
