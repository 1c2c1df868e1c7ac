"""Compares two language models on the test prompts of a config, and on corrected replies, as a run folder.

The folder has the files of a run whose evaluation 0 is the first model and 1 the second, so `rl4dialog report` reads
it. Both models are evaluated with the same prompts, seeds and settings.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rl4dialog.core.config import TextConfig
from rl4dialog.core.files import read_or_nothing
from rl4dialog.core.run_format import numbered
from rl4dialog.data.pool import Data
from rl4dialog.features.feedback.judged_texts import FeedbackPool
from rl4dialog.features.feedback.report import CORRECTED, KL, LOSS
from rl4dialog.functional.log_probs import kl_estimates
from rl4dialog.inference.loading import LoadedPolicy
from rl4dialog.rollouts.talk import Talk
from rl4dialog.runs.provenance import recorded_start
from rl4dialog.runs.reading import read_run
from rl4dialog.runs.run_folder import (
    CONFIG_FILE,
    REFERENCES_FILE,
    RunFolder,
    is_complete,
    read_references,
    write_result,
)
from rl4dialog.runs.summary import print_summary
from rl4dialog.text.chat_template import ChatTemplate
from rl4dialog.training.evaluation import Evaluation, Evaluator

MODELS_FILE = "models.json"


def compare_models(
    config: TextConfig, before: Path, after: Path, corrections: dict[str, Any] | None, folder: Path
) -> None:
    """Evaluate two models; an evaluation that an interrupted comparison finished is not repeated.

    Besides the config's metrics there are, for each sample, ``loss/reference``: the mean negative log-likelihood of the
    tokens of its reference in nats, and ``kl/per_token``: the KL divergence from the first model, estimated on the
    tokens of the replies (k3).
    """
    resolved, models = numbered(config.model_dump(mode="json")), {"before": str(before), "after": str(after)}
    is_same = read_or_nothing(folder / MODELS_FILE) == models and read_or_nothing(folder / CONFIG_FILE) == resolved
    if is_same and is_complete(folder):
        return
    run_folder = RunFolder(folder.parent.parent, folder.parent.name, folder.name, is_same)
    run_folder.discard_replaced()
    run_folder.write_json(MODELS_FILE, models)
    run_folder.write_json(CONFIG_FILE, resolved)
    comparison = _Comparison(config, run_folder, corrections)
    found = [comparison.evaluated(epoch, (before, after)) for epoch in (0, 1)]
    write_result(run_folder, 1, *found)
    print_summary(found[0]["test"], found[1]["test"], read_references(folder), [], folder, labels=("before", "after"))


class _Comparison:
    """Evaluations of models, recorded in a run folder."""

    def __init__(self, config: TextConfig, run_folder: RunFolder, corrections: dict[str, Any] | None) -> None:
        self._config, self._run_folder, self._corrections = config, run_folder, corrections
        self._load = functools.cache(lambda model: LoadedPolicy(config, model))

    def evaluated(self, epoch: int, models: Sequence[Path]) -> dict[str, dict[str, float]]:
        """Evaluate a model, by its index, on all splits. Returns the metrics by split."""
        run, found = read_run(self._run_folder.root), {}
        for split in ("test", *([] if self._corrections is None else [CORRECTED])):
            known = run.metrics.get(split, {}).get(epoch)
            found[split] = self._evaluate(split, epoch, models) if known is None else known
        return found

    def _evaluate(self, split: str, epoch: int, models: Sequence[Path]) -> dict[str, float]:
        loaded = self._load(models[epoch])
        evaluator = self._evaluator(loaded, split)
        result = evaluator.run(loaded.policy, split, epoch, reward_must_work=True)
        self._add(result, LOSS, _losses(loaded, result.talks))
        if split == "test":
            self._run_folder.write_json(REFERENCES_FILE, evaluator.ceiling(loaded.policy, split))
            self._add(result, KL, _divergences(loaded, self._load(models[0]), result.talks))
        # Predictions come first: the line of metrics marks the evaluation as complete.
        self._run_folder.write_json(f"epoch_{epoch}_{split}_split_predictions.json", result.predictions)
        self._run_folder.append_jsonl(f"{split}_split_metrics.jsonl", {"epoch": epoch, "metrics": result.metrics})
        return result.metrics

    def _evaluator(self, loaded: LoadedPolicy, split: str) -> Evaluator:
        if split == CORRECTED:
            assert self._corrections is not None
            chat_template = ChatTemplate(loaded.tokenizer, recorded_start(loaded.run))
            pool = FeedbackPool.prepare("train", **self._corrections, render_chat=chat_template)
            texts = replace(loaded.texts, data=Data({split: pool}, pool.end_of_turn))
            return Evaluator(self._config, texts, [], None)
        return loaded.evaluator()

    def _add(self, result: Evaluation, key: str, values: Sequence[float]) -> None:
        """Add a score of each sample, NaN for none, and their mean."""
        for prediction, value in zip(result.predictions, values, strict=True):
            prediction[key] = value
        known = [value for value in values if not math.isnan(value)]
        if known:
            result.metrics[key] = sum(known) / len(known)


def _losses(loaded: LoadedPolicy, talks: Sequence[Talk]) -> list[float]:
    """Mean loss per token of the first reference of each sample, in nats; NaN if it has none."""
    firsts = {i: reply for i, talk in enumerate(talks) for reply in talk.replies[:1] if reply.references}
    pairs = [(reply.prompt, reply.references[0]) for reply in firsts.values()]
    found = dict(zip(firsts, _log_probs(loaded, pairs), strict=True))
    return [-sum(found[i]) / len(found[i]) if found.get(i) else math.nan for i in range(len(talks))]


def _divergences(loaded: LoadedPolicy, other: LoadedPolicy, talks: Sequence[Talk]) -> list[float]:
    """KL divergence of a model from another one per token of the model's replies, mean over each talk."""
    said = [(reply.prompt, reply.text) for talk in talks for reply in talk.replies]
    own = _log_probs(loaded, said)
    theirs = own if other is loaded else _log_probs(other, said)
    pairs, found = iter(zip(own, theirs, strict=True)), []
    for talk in talks:
        of_talk = [next(pairs) for _ in talk.replies]
        if not of_talk:
            found.append(math.nan)
            continue
        ours, others = (torch.tensor([number for row in side for number in row]) for side in zip(*of_talk, strict=True))
        found.append(float(kl_estimates(ours, others, "k3").mean()))
    return found


def _log_probs(loaded: LoadedPolicy, said: Sequence[tuple[str, str]]) -> list[list[float]]:
    """Log-probabilities of the tokens of replies, given pairs of a prompt and its reply."""
    with torch.no_grad():
        return loaded.log_probs([prompt for prompt, _ in said], [reply for _, reply in said])
