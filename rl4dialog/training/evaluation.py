"""Evaluation of a policy on a split: one reply per prompt, scored by all metrics, and a summary before/after training.

The prompts are divided among the processes of a run. The main process gathers all replies and computes the metrics.
"""

from __future__ import annotations

import functools
import math
import time
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rl4dialog.core.config import TextConfig
from rl4dialog.core.errors import ConfigError, RewardError
from rl4dialog.core.protocols import BaseMetric
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import Sample
from rl4dialog.functional.distributed import all_gather_object, is_main_process, n_processes, process_index
from rl4dialog.functional.masks import padded
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.runs.progress import Progress, duration, say
from rl4dialog.runs.summary import Example, is_headline, print_summary
from rl4dialog.runs.tracking import Tracker
from rl4dialog.text.prompts import encode_prompt
from rl4dialog.training.building.generation import build_evaluation_post_processor, evaluation_kwargs
from rl4dialog.training.building.texts import Texts
from rl4dialog.training.random_state import random_states_kept
from rl4dialog.training.reward_columns import RewardColumns, mean_reward


@dataclass
class Evaluation:
    """Corpus scores by metric key, and one record per sample in RL4LMs' form.

    Attributes:
        metrics: Corpus scores by metric key.
        predictions: One record per sample.
        reward_error: Error message, if a reward failed and failures stop the run.
    """

    metrics: dict[str, float]
    predictions: list[dict[str, Any]]
    reward_error: RewardError | None = None


def metrics_of(evaluations: Mapping[str, Evaluation]) -> dict[str, dict[str, float]]:
    """Corpus scores of evaluations, by split."""
    return {split: evaluation.metrics for split, evaluation in evaluations.items()}


class Evaluator:
    """Evaluates splits with a run's settings, records the results, and prints the final summary.

    Args:
        config: The run's config.
        texts: The run's tokenizer, data and lengths.
        metrics: Metrics to compute on each split.
        tracker: Optional tracker that records the results.
        rewards: Optional reward that also scores each reply.
    """

    def __init__(
        self,
        config: TextConfig,
        texts: Texts,
        metrics: Sequence[BaseMetric],
        tracker: Tracker | None,
        rewards: RewardColumns | None = None,
    ) -> None:
        self._settings, self._seed = config.train_evaluation, config.seed
        self._texts, self._metrics, self._tracker = texts, metrics, tracker
        self._rewards = rewards
        self._kwargs = evaluation_kwargs(config)
        self._post_process = build_evaluation_post_processor(config)

    def samples(self, split: str) -> list[Sample]:
        """The samples used to evaluate a split."""
        return self._texts.data.samples(split, self._settings.max_eval_samples)

    def run(self, policy: LMActorCriticPolicy, split: str, epoch: int, reward_must_work: bool = False) -> Evaluation:
        """Evaluate a policy after ``epoch`` iterations.

        Raises:
            RewardError: If a reward fails and ``reward_must_work`` is set.
        """
        rewards = self._rewards
        started = time.perf_counter()
        result = evaluate(
            policy,
            self.samples(split),
            self._metrics,
            split,
            self._texts.lengths.prompt,
            self._settings.eval_batch_size,
            self._kwargs,
            self._texts.lengths.truncation_side,
            derive_seed(self._seed, "evaluation", split),
            self._post_process,
            None if rewards is None else functools.partial(rewards.score, must_work=reward_must_work),
            self._texts.lengths.turn_end,
        )
        result.reward_error = rewards.error if rewards is not None else None
        if self._tracker is not None:
            self._tracker.log_metrics(epoch, split, result.metrics)
            self._tracker.log_predictions(epoch, split, result.predictions)
        numbers = "".join(f"{key} {value:.3f}, " for key, value in result.metrics.items() if is_headline(key))
        say(f"evaluation of {split} after iteration {epoch}: {numbers}{duration(time.perf_counter() - started)}")
        return result

    def recall(self, split: str, epoch: int) -> Evaluation:
        """Load an evaluation that :meth:`run` recorded earlier in this run; empty in a process without a tracker.

        Raises:
            RunFolderError: If the records are missing.
        """
        return Evaluation({}, []) if self._tracker is None else Evaluation(*self._tracker.recall(epoch, split))

    def ceiling(self, policy: LMActorCriticPolicy, split: str) -> dict[str, float]:
        """Compute the metrics of a split's reference replies."""
        samples, references = self.samples(split), self._references(split)
        scores = compute_metrics(self._metrics, samples, references, split, policy.language_model)
        columns = {} if self._rewards is None else self._rewards.score(samples, references)
        return mean_reward(columns) | {key: corpus for key, (_, corpus) in scores.items()}

    def _references(self, split: str) -> list[str]:
        return [sample.references[0] if sample.references else "" for sample in self.samples(split)]

    def summarize(
        self, before: Evaluation, after: Evaluation, policy: LMActorCriticPolicy, labels: tuple[str, str]
    ) -> None:
        """Print test metrics before and after training next to those of the reference replies, and sample dialogues."""
        assert self._tracker is not None
        print_summary(
            before.metrics,
            after.metrics,
            self.ceiling(policy, "test"),
            _examples(before, after, self._references("test")),
            self._tracker.run_folder.root,
            labels=labels,
        )


@random_states_kept()
def evaluate(
    policy: LMActorCriticPolicy,
    samples: Sequence[Sample],
    metrics: Sequence[BaseMetric],
    split_name: str,
    max_prompt_length: int,
    batch_size: int,
    generation_kwargs: dict[str, Any] | None,
    prompt_truncation_side: str,
    seed: int,
    post_process: Callable[[str], str] | None = None,
    score: Callable[[Sequence[Sample], list[str]], dict[str, list[float]]] | None = None,
    turn_end: str | None = None,
) -> Evaluation:
    """Generate and score a reply to each sample's prompt. All processes must call this together.

    All random states are restored afterwards, so the number of evaluations does not affect training.

    Args:
        policy: The policy that generates the replies.
        samples: Samples of one split.
        metrics: Metrics to compute over the whole split.
        split_name: Name passed to the metrics and shown in the progress bar.
        max_prompt_length: Maximum prompt length in tokens.
        batch_size: Prompts per generation batch.
        generation_kwargs: Generation settings; ``None`` uses those of the rollouts.
        prompt_truncation_side: Side from which long prompts are truncated.
        seed: Sampling seed. It is the same for every evaluation, so that differences come from the policy.
        post_process: Optional function applied to each reply before it is scored and recorded.
        score: Optional function that returns further columns of the predictions, one number per reply. The mean of
            ``reward`` becomes a metric.
        turn_end: Text after every turn, if long prompts are truncated by whole turns.

    Returns:
        The evaluation; empty in all processes but the main one.

    Raises:
        ConfigError: If ``post_process`` raises, or does not return a string.
    """
    tokenizer = policy.end_of_turn.tokenizer
    prompts = [
        encode_prompt(tokenizer, s.prompt_or_input_text, max_prompt_length, prompt_truncation_side, turn_end)
        for s in samples
    ]
    # Batch prompts of similar length to reduce padding.
    order = sorted(range(len(samples)), key=lambda i: len(prompts[i]))
    batch_size = min(batch_size, math.ceil(len(order) / n_processes()) or 1)
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    own: dict[int, str] = {}
    # The caller logs the final line, which has more details.
    progress = Progress(
        f"Evaluating {split_name}", "prompt", len(samples), line_every_s=60.0, line_at_end=False, stays=False
    )
    with progress:
        torch.manual_seed(derive_seed(seed, "process", process_index()) if process_index() else seed)
        for first in range(0, len(batches), n_processes()):
            # With sharded weights all processes must generate equally often, so the last batch is repeated if needed.
            rows = batches[min(first + process_index(), len(batches) - 1)]
            own |= zip(rows, generate_texts(policy, [prompts[i] for i in rows], generation_kwargs), strict=True)
            progress.advance(sum(map(len, batches[first : first + n_processes()])))
    found = all_gather_object(own)
    if not is_main_process():
        return Evaluation({}, [])
    by_row = dict(ChainMap(*found))
    replies = [by_row[row] for row in range(len(samples))]
    if post_process is not None:
        replies = [_post_processed(reply, sample, post_process) for reply, sample in zip(replies, samples, strict=True)]
    columns = {} if score is None else score(samples, replies)
    scores = compute_metrics(metrics, samples, replies, split_name, policy.language_model)
    predictions = []
    for i, sample in enumerate(samples):
        references = "".join(f"<START-{n}>{text}<END-{n}>" for n, text in enumerate(sample.references, start=1))
        predictions.append(
            {
                "split_name": split_name,
                "sample_id": sample.id,
                "prompt_text": sample.prompt_or_input_text,
                "generated_text": replies[i],
                "ref_text": references,
                **{key: values[i] for key, values in columns.items()},
                **{key: "n/a" if each is None else each[i] for key, (each, _) in scores.items()},
            }
        )
    metric_values = {key: corpus for key, (_, corpus) in scores.items()}
    return Evaluation({**mean_reward(columns), **metric_values}, predictions)


def compute_metrics(
    metrics: Sequence[BaseMetric], samples: Sequence[Sample], replies: list[str], split_name: str, model: Any
) -> dict[str, tuple[list[float] | None, float]]:
    """Compute all metrics of the given replies, by metric key."""
    results: dict[str, tuple[list[float] | None, float]] = {}
    for metric in metrics:
        results.update(
            metric.compute(
                [sample.prompt_or_input_text for sample in samples],
                replies,
                [sample.references for sample in samples],
                [sample.meta_data or {} for sample in samples],
                model,
                split_name,
            )
        )
    return results


def generate_texts(
    policy: LMActorCriticPolicy, prompts: list[list[int]], generation_kwargs: dict[str, Any] | None
) -> list[str]:
    """Generate one batch of replies, as text.

    Args:
        policy: The policy that generates the replies.
        prompts: Token ids of each prompt.
        generation_kwargs: Generation settings; ``None`` uses the policy's own.
    """
    ids, mask = padded(prompts, left=True)
    obs = {"prompt_ids": ids.to(policy.device), "prompt_mask": mask.to(policy.device)}
    replies = policy.generate(obs, **(generation_kwargs or {}))
    return [policy.end_of_turn.reply_text(ids.tolist()) for ids in replies.per_row("response_ids")]


def _post_processed(reply: str, sample: Sample, post_process: Callable[[str], str]) -> str:
    try:
        text = post_process(reply)
    except Exception as error:
        raise ConfigError(
            f"post_processing_fn failed on sample {sample.id!r} (reply {reply[:80]!r}): {type(error).__name__}: {error}"
        ) from error
    if not isinstance(text, str):
        raise ConfigError(f"post_processing_fn must return a string, not {text!r} (sample {sample.id!r})")
    return text


def _examples(before: Evaluation, after: Evaluation, references: Sequence[str], n: int = 3) -> list[Example]:
    """Select evenly spaced dialogues whose reply has changed."""
    changed = [
        Example(old["prompt_text"], old["generated_text"], new["generated_text"], reference)
        for old, new, reference in zip(before.predictions, after.predictions, references, strict=True)
        if old["generated_text"] != new["generated_text"]
    ]
    return changed[:: max(1, len(changed) // n)][:n]
