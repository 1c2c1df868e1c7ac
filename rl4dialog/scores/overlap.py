"""Overlap of words and characters with the references: BLEU, chrF, TER and ROUGE, by sacrebleu and rouge-score."""

from __future__ import annotations

import dataclasses
import functools
import logging
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.protocols import MetricResult
from rl4dialog.scores.adapters import MetricReward
from rl4dialog.scores.base import Batch, SentenceMetric, TextMetric

RougeType = Literal["rouge1", "rouge2", "rougeL", "rougeLsum"]
ROUGE_TYPES: tuple[RougeType, ...] = get_args(RougeType)
_warn_once = functools.cache(logging.getLogger(__name__).warning)


class SacreMetric(TextMetric):
    """Corpus and sentence scores of a sacrebleu metric, divided by 100. Fields of subclasses are its arguments."""

    key: ClassVar[str]
    kind: ClassVar[tuple[str, str]]  # id, and class in sacrebleu
    needs_references = True

    def __post_init__(self) -> None:
        from sacrebleu import metrics

        id, name = self.kind
        args, build = dataclasses.asdict(self), getattr(metrics, name)  # type: ignore[call-overload]
        try:
            self._corpus = build(**args)
            self._corpus.corpus_score(["a"], [["a"]])
        except Exception as error:  # sacrebleu raises TypeError, KeyError, AssertionError, ... by the argument
            raise ConfigError(f"metric {id!r} does not accept {args}: {error}") from error
        self._sentence = build(**{**args, **self._of_sentences()})

    def _of_sentences(self) -> dict[str, Any]:
        """Other arguments for the scores of sentences, which are computed from the same statistics."""
        return {}

    def measure(self, batch: Batch) -> MetricResult:
        n_references = max(map(len, batch.ref_texts))
        streams = [[refs[i] if i < len(refs) else None for refs in batch.ref_texts] for i in range(n_references)]
        # The two steps of corpus_score, so that matches are counted only once for corpus and sentence scores.
        counts = self._corpus._extract_corpus_statistics(batch.gen_texts, streams)
        corpus = self._corpus._aggregate_and_compute(counts).score / 100
        sentences = [self._sentence._aggregate_and_compute([row]).score / 100 for row in counts]
        return {self.key: (sentences, corpus)}


@dataclass(eq=False)
class SacreBleuMetric(SacreMetric):
    """Corpus BLEU (Papineni et al. 2002) from 0 to 1; sentence scores use sacrebleu's smoothing and effective order.

    Arguments are those of ``sacrebleu.metrics.BLEU``; ``effective_order`` applies to the corpus score.
    """

    key, kind = "lexical/sacrebleu", ("sacre_bleu", "BLEU")
    tokenize: str | None = None
    lowercase: bool = False
    force: bool = False
    smooth_method: str = "exp"
    smooth_value: float | None = None
    max_ngram_order: int = 4
    effective_order: bool = False

    def _of_sentences(self) -> dict[str, Any]:
        # Without smoothing, most sentences would score 0.
        smoothing = "exp" if self.smooth_method == "none" else self.smooth_method
        return {"smooth_method": smoothing, "effective_order": True}


class SacreBleuReward(MetricReward, metric=SacreBleuMetric):
    """BLEU of the reply as a corpus of one text, computed by sacrebleu (as in RL4LMs).

    A reply of fewer tokens than ``max_ngram_order`` earns 0, even if it equals its reference, unless
    ``effective_order`` is true.
    """

    def score(self, prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
        ((_, corpus),) = self.metric.compute([prompt_text], [gen_text], [ref_texts]).values()
        return corpus


class BleuMetric(SacreBleuMetric):
    """Corpus BLEU of order 4 from 0 to 1, unsmoothed; sentence scores are smoothed, because most would be 0 otherwise.

    Words are split at whitespace, as in RL4LMs. Sentence scores use exponential smoothing and effective order. Of the
    references, the one closest in length sets the brevity penalty, as in Papineni et al.; in RL4LMs, the shortest.
    """

    key = "lexical/bleu"

    def __init__(self) -> None:
        super().__init__(tokenize="none", smooth_method="none", force=True)


class BleuReward(MetricReward, metric=BleuMetric):
    """Smoothed sentence BLEU of the reply."""


@dataclass(eq=False)
class ChrfMetric(SacreMetric):
    """Character n-gram F-score (Popović 2015) from 0 to 1; with ``word_order: 2`` it is chrF++ (2017).

    Arguments are those of ``sacrebleu.metrics.CHRF``.
    """

    key, kind = "lexical/chrf", ("chrf", "CHRF")
    char_order: int = 6
    word_order: int = 0
    beta: int = 2
    lowercase: bool = False
    whitespace: bool = False
    eps_smoothing: bool = False


class ChrfReward(MetricReward, metric=ChrfMetric):
    """Character n-gram F-score of the reply."""


@dataclass(eq=False)
class TerMetric(SacreMetric):
    """Edits, including phrase shifts, per reference word: 0 is best, and a long wrong text exceeds 1.

    Arguments are those of ``sacrebleu.metrics.TER``, which computes the translation edit rate (Snover et al. 2006).
    """

    key, kind = "lexical/ter", ("ter", "TER")
    normalized: bool = False
    no_punct: bool = False
    asian_support: bool = False
    case_sensitive: bool = False


class TerReward(MetricReward, metric=TerMetric):
    """1 - translation edit rate of the reply, as in RL4LMs; at most 1, and below 0 for long wrong replies."""

    def score(self, prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
        return 1.0 - super().score(prompt_text, gen_text, ref_texts, meta_info)


@dataclass(eq=False)
class RougeMetric(SentenceMetric):
    """F-measures of ROUGE-1, -2, -L and -Lsum (for the last, each line is a sentence), after Lin 2004.

    The package only counts the letters a to z and digits, so texts in other scripts score 0. The corpus score is the
    mean; RL4LMs logs the median of a bootstrap, which is close to it.

    Args:
        use_single_ref: Compare only with the first reference, as RL4LMs does; otherwise the best reference counts.
        use_stemmer: Compare stems (Porter), as RL4LMs does. Many published results do not, such as T5's.
    """

    use_single_ref: bool = True
    use_stemmer: bool = True

    def sentence_scores(self, batch: Batch) -> dict[str, list[float]]:
        from rouge_score.rouge_scorer import RougeScorer

        warn_of_other_scripts(batch.ref_texts)
        scorer = RougeScorer(list(ROUGE_TYPES), use_stemmer=self.use_stemmer)
        references = [each[:1] if self.use_single_ref else each for each in batch.ref_texts]
        best = list(map(scorer.score_multi, references, batch.gen_texts))
        return {f"lexical/rouge_{name}": [float(each[name].fmeasure) for each in best] for name in ROUGE_TYPES}


class RougeReward(MetricReward, metric=RougeMetric):
    """ROUGE F-measure of the reply."""

    def __init__(self, rouge_type: RougeType = "rouge1", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.key = f"lexical/rouge_{rouge_type}"


class RougeCombinedReward(MetricReward, metric=RougeMetric):
    """Mean of ROUGE-1, ROUGE-2 and ROUGE-L of the reply."""

    key = {f"lexical/rouge_{name}": 1 / 3 for name in ("rouge1", "rouge2", "rougeL")}  # noqa: RUF012 (never changes)


def warn_of_other_scripts(reference_texts: list[list[str]]) -> None:
    """Warn, once per process, if a reference has letters but none that ROUGE counts."""
    texts = [text for references in reference_texts for text in references]
    if any(re.search(r"\w", text) and not re.search(r"[a-z0-9]", text.lower()) for text in texts):
        _warn_once(
            "ROUGE only counts the letters a to z and digits, so references in other scripts always score 0, even for "
            "the same text; use chrf, which counts the characters of any script"
        )
