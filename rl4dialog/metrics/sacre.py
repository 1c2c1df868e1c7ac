"""Base class of metrics computed by sacrebleu."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.protocols import BaseMetric, MetricResult
from rl4dialog.metrics.checks import check_lengths, check_references


class SacreMetric(BaseMetric):
    """Corpus and sentence scores of a sacrebleu metric, divided by 100.

    Args:
        corpus: Computes the corpus score.
        sentence: Computes the sentence scores from the same statistics; by default ``corpus``.
    """

    key: str
    needs_references = True

    def __init__(self, corpus: Any, sentence: Any = None) -> None:
        self._corpus, self._sentence = corpus, sentence or corpus

    def compute(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None = None,
        model: Any = None,
        split_name: str | None = None,
    ) -> MetricResult:
        check_lengths(generated_texts, prompt_texts, reference_texts, meta_infos)
        check_references(reference_texts)
        n_references = max(map(len, reference_texts))
        streams = [[refs[i] if i < len(refs) else None for refs in reference_texts] for i in range(n_references)]
        # The two steps of corpus_score, so that matches are counted only once for corpus and sentence scores.
        counts = self._corpus._extract_corpus_statistics(generated_texts, streams)
        corpus = self._corpus._aggregate_and_compute(counts).score / 100
        sentences = [self._sentence._aggregate_and_compute([row]).score / 100 for row in counts]
        return {self.key: (sentences, corpus)}


def build_scorer(id: str, scorer_class: Callable[..., Any], **args: Any) -> Any:
    """Build a sacrebleu metric, and test it."""
    try:
        scorer = scorer_class(**args)
        scorer.corpus_score(["a"], [["a"]])
    except Exception as error:  # sacrebleu raises TypeError, KeyError, AssertionError, ... depending on the argument
        raise ConfigError(f"metric {id!r} does not accept {args}: {error}") from error
    return scorer
