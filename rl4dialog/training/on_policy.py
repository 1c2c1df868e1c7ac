"""One on-policy run from start to end: evaluate, learn with stable-baselines3 callbacks, evaluate, save, tell."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import safe_mean
from tqdm import tqdm

from rl4dialog.core.config import RunConfig
from rl4dialog.core.seeding import derive_seed
from rl4dialog.training import builders
from rl4dialog.training.evaluation import Evaluation, compute_metrics, evaluate
from rl4dialog.training.plots import plot_reward_curve
from rl4dialog.training.summary import Example, print_summary
from rl4dialog.training.tracking import Tracker


class TrackingCallback(BaseCallback):
    """Writes what the algorithm logs, an iteration at a time, and moves the progress bar."""

    def __init__(self, tracker: Tracker, n_iters: int) -> None:
        super().__init__()
        self._tracker = tracker
        self._bar = tqdm(total=n_iters, desc="Training", unit="iteration")
        self.iteration = 0
        self._started = time.perf_counter()

    def _on_rollout_start(self) -> None:
        self._flush_training_infos()
        self._started = time.perf_counter()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.iteration += 1
        logged = {k: v for k, v in self.logger.name_to_value.items() if k.startswith(("rollout/", "time/"))}
        logged["rollout/ep_rew_mean"] = safe_mean([episode["r"] for episode in self.model.ep_info_buffer or []])
        self._tracker.log_rollout_infos({"iteration": self.iteration, **logged})
        self._rollout = logged

    def _on_training_end(self) -> None:
        self._flush_training_infos()
        self._bar.close()

    def _flush_training_infos(self) -> None:
        """What ``train()`` logged after the last rollout; stable-baselines3 would only dump it after the next."""
        logged = {k: v for k, v in self.logger.name_to_value.items() if k.startswith("train/") or k == "time/update_s"}
        if not logged:
            return
        self._tracker.log_training_infos({"iteration": self.iteration, **logged})
        seconds = time.perf_counter() - self._started
        self._bar.set_postfix(
            {
                "reward": f"{self._rollout['rollout/task_reward']:.3f}",
                "KL": f"{self._rollout['rollout/kl']:.3f}",
                "tokens/s": f"{self._rollout['rollout/tokens'] / seconds:.0f}",
            },
            refresh=False,
        )
        self._bar.update(1)


class EvaluationCallback(BaseCallback):
    """Calls back after every ``every`` iterations, once their training is done (but not after the last)."""

    def __init__(self, on_iteration: Callable[[int], Any], every: int) -> None:
        super().__init__()
        self._on_iteration, self._every = on_iteration, every
        self._n_done = 0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self._n_done and self._n_done % self._every == 0:
            self._on_iteration(self._n_done)
        self._n_done += 1


class OnPolicyTrainer:
    """Runs a config.

    Args:
        config: Checked.
        tracker: Receives everything that is measured and saved.
    """

    def __init__(self, config: RunConfig, tracker: Tracker) -> None:
        torch.manual_seed(config.seed)
        self._config, self._tracker = config, tracker
        self.tokenizer, self.data = builders.build_run_tokenizer(config)
        self.lengths = builders.run_lengths(config)
        tracker.log_info(
            "datapool: " + ", ".join(f"{len(pool)} {split} samples" for split, pool in self.data.pools.items())
        )
        toolkit = builders.build_toolkit(config, self.tokenizer, self.data)
        self.metrics = builders.build_metrics(config, toolkit)
        self.reward_parts = builders.build_reward_parts(config, toolkit)
        model = builders.build_language_model(config, self.tokenizer, self.data, self.lengths)
        end_of_turn = builders.build_end_of_turn(config, self.tokenizer, self.data, model)
        self.algorithm = builders.build_algorithm(
            config, self.data, model, end_of_turn, self.lengths, self.reward_parts
        )
        # Nothing goes to the console but the progress bar; the tracker writes the files.
        self.algorithm.set_logger(Logger(folder=None, output_formats=[]))

    def train_and_eval(self) -> tuple[Evaluation, Evaluation]:
        """Evaluate, train, evaluate, save and print a summary.

        Returns:
            The test split's evaluations before and after.
        """
        n_iters = self._config.train_evaluation.n_iters or 0
        try:
            before = {split: self._evaluate(split, 0) for split in ("val", "test")}
            n_timesteps = self.algorithm.n_steps * self.algorithm.env.num_envs
            if n_iters:
                self.algorithm.learn(
                    n_iters * n_timesteps,
                    callback=CallbackList(
                        [
                            TrackingCallback(self._tracker, n_iters),
                            EvaluationCallback(
                                lambda iteration: self._evaluate("val", iteration),
                                self._config.train_evaluation.eval_every,
                            ),
                        ]
                    ),
                )
            after = {split: self._evaluate(split, n_iters) for split in ("val", "test")}
        finally:
            self.algorithm.env.close()
        self._tracker.save_auto_model(self.algorithm.policy.language_model, self.tokenizer)
        run_path = self._tracker.run_folder.root
        if n_iters:
            plot_reward_curve(run_path, run_path / "reward_curve.png")
        print_summary(
            before["test"].metrics,
            after["test"].metrics,
            self._gold("test"),
            _examples(before["test"], after["test"]),
            run_path,
        )
        return before["test"], after["test"]

    def _evaluate(self, split: str, epoch: int) -> Evaluation:
        settings = self._config.train_evaluation
        result = evaluate(
            self.algorithm.policy,
            self.data.samples(split, settings.max_eval_samples),
            self.metrics,
            split,
            self.lengths.prompt,
            settings.eval_batch_size,
            settings.generation_kwargs,
            self.lengths.truncation_side,
            derive_seed(self._config.seed, "evaluation", split),
        )
        self._tracker.log_metrics(epoch, split, result.metrics)
        self._tracker.log_predictions(epoch, split, result.predictions)
        return result

    def _gold(self, split: str) -> dict[str, float]:
        """Metrics of the reference replies themselves: the ceiling."""
        samples = self.data.samples(split, self._config.train_evaluation.max_eval_samples)
        gold = [sample.references[0] for sample in samples]
        scores = compute_metrics(self.metrics, samples, gold, split, self.algorithm.policy.language_model)
        return {key: corpus for key, (_, corpus) in scores.items()}


def _examples(before: Evaluation, after: Evaluation, n: int = 3) -> list[Example]:
    """Evenly spaced dialogues whose reply has changed."""
    pairs = [
        (old, new)
        for old, new in zip(before.predictions, after.predictions, strict=True)
        if old["generated_text"] != new["generated_text"]
    ]
    step = max(1, len(pairs) // n)
    return [
        Example(
            prompt=old["prompt_text"],
            before=old["generated_text"],
            after=new["generated_text"],
            gold=old["ref_text"].removeprefix("<START-1>").split("<END-1>")[0],
        )
        for old, new in pairs[::step][:n]
    ]
