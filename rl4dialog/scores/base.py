"""The batch that all scores of replies read, and the base classes of metrics and rewards."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl4dialog.core.errors import DataError, shown
from rl4dialog.core.protocols import BaseMetric, BatchedRewardFunction, DialogueMetric, MetricResult
from rl4dialog.core.reward_parts import FinishedReplies
from rl4dialog.core.types import Dialogue


@dataclass
class Batch(FinishedReplies):
    """Replies with all that their scores can depend on. RL4LMs' lists become a batch in the base classes below."""

    model: Any = None  # for metrics: the evaluated language model
    split_name: str | None = None  # for metrics: ``train``, ``val`` or ``test``

    def chosen(self, rows: Sequence[int]) -> Batch:
        lists: tuple[list[Any], ...] = (self.prompt_texts, self.gen_texts, self.ref_texts, self.meta_infos)
        prompts, texts, references, infos = ([each[row] for row in rows] for each in lists)
        return Batch(prompts, texts, references, infos)

    def of_last(self, scores: Callable[[Batch], list[float]]) -> list[float]:
        """Scores of the last replies of their episodes, which are scored together; 0 for the others."""
        rows = [row for row, done in enumerate(self.dones) if done]
        found = dict(zip(rows, scores(self.chosen(rows)) if rows else (), strict=True))
        return [found.get(row, 0.0) for row in range(len(self))]


class TextMetric(BaseMetric):
    """A metric of a batch of replies, whose lists are checked."""

    @abstractmethod
    def measure(self, batch: Batch) -> MetricResult:
        """Measure one or more replies; if ``needs_references`` is set, each has a reference."""

    def compute(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None = None,
        model: Any = None,
        split_name: str | None = None,
    ) -> MetricResult:
        n = len(generated_texts)
        if not n:
            raise ValueError("a metric needs at least one text")
        for other in (prompt_texts, reference_texts, meta_infos):
            if other is not None and len(other) != n:
                raise ValueError(f"got {n} generated texts, but another input has length {len(other)}")
        for row, references in enumerate(reference_texts if self.needs_references else ()):
            if isinstance(references, str) or not len(references):
                raise DataError(f"text {row} needs a list of at least one reference, not {references!r}")
        batch = Batch(prompt_texts, generated_texts, reference_texts, meta_infos or [])
        batch.model, batch.split_name = model, split_name
        return self.measure(batch)


class SentenceMetric(TextMetric):
    """A metric that scores each reply; the corpus score is the mean."""

    needs_references = True

    @abstractmethod
    def sentence_scores(self, batch: Batch) -> dict[str, list[float]]:
        """Score each reply; returns a list of scores per key."""

    def measure(self, batch: Batch) -> MetricResult:
        return {key: (scores, sum(scores) / len(scores)) for key, scores in self.sentence_scores(batch).items()}


class ReplyMetric(SentenceMetric):
    """A metric that scores each reply, and needs no references."""

    needs_references = False


class PerDialogueMetric(DialogueMetric):
    """A metric that scores each conversation; the score of all is the mean of those that have one."""

    @abstractmethod
    def dialogue_scores(self, dialogues: list[Dialogue]) -> dict[str, list[float]]:
        """Score each of one or more conversations; returns a list of scores per key, NaN where none is defined."""

    def compute(self, dialogues: list[Dialogue], model: Any = None, split_name: str | None = None) -> MetricResult:
        if not dialogues:
            raise ValueError("a metric needs at least one text")
        return {key: (scores, mean_of_known(scores)) for key, scores in self.dialogue_scores(dialogues).items()}


class BatchReward(BatchedRewardFunction):
    """A reward of a batch of replies, computed in the main process."""

    @abstractmethod
    def rewards(self, batch: Batch) -> list[float]:
        """Score each reply; those before the end of an episode earn 0."""

    def __call__(
        self,
        prompt_texts: list[str],
        gen_texts: list[str],
        ref_texts: list[list[str]],
        dones: list[bool],
        meta_infos: list[dict[str, Any]] | None = None,
    ) -> list[float]:
        return self.rewards(Batch(prompt_texts, gen_texts, ref_texts, meta_infos or [], dones=dones))


def mean_of_known(scores: Sequence[float]) -> float:
    """Mean of the scores that are not NaN; NaN if there are none."""
    known = [score for score in scores if not math.isnan(score)]
    return sum(known) / len(known) if known else math.nan


def meta_values(infos: Sequence[Mapping[str, Any]], key: str, is_valid: Callable[[Any], bool], needs: str) -> list[Any]:
    """What the meta data of each text has under a key; a `DataError` that says who `needs` it if one is not valid."""
    for row, info in enumerate(infos):
        if not is_valid(info.get(key)):
            raise DataError(f"{needs}; text {row} has {meta_data_there(info, key)}")
    return [info[key] for info in infos]


def meta_data_there(info: Mapping[str, Any] | None, key: str) -> str:
    """Describe, for an error message, the value of a meta data key, or the existing keys if it is missing."""
    if info is not None and key in info:
        return shown(info[key])
    return f"only {', '.join(map(str, info))}" if info else "no meta data"
