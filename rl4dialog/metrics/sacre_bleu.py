"""BLEU (Papineni et al. 2002), computed by sacrebleu."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.protocols import BaseMetric, MetricResult
from rl4dialog.metrics.checks import check_lengths, check_references


class SacreBleuMetric(BaseMetric):
    """Corpus BLEU from 0 to 1; sentence scores use sacrebleu's smoothing and effective order.

    Arguments are those of ``sacrebleu.metrics.BLEU``; ``effective_order`` is that of the corpus score.

    Raises:
        ConfigError: If sacrebleu does not accept an argument.
    """

    key = "lexical/sacrebleu"

    def __init__(
        self,
        tokenize: str | None = None,
        lowercase: bool = False,
        force: bool = False,
        smooth_method: str = "exp",
        smooth_value: float | None = None,
        max_ngram_order: int = 4,
        effective_order: bool = False,
    ) -> None:
        from sacrebleu.metrics import BLEU

        args: dict[str, Any] = {
            "tokenize": tokenize,
            "lowercase": lowercase,
            "force": force,
            "smooth_value": smooth_value,
            "max_ngram_order": max_ngram_order,
        }
        try:
            self._corpus = BLEU(**args, smooth_method=smooth_method, effective_order=effective_order)
            # Without smoothing most sentences would score 0.
            sentence_smoothing = "exp" if smooth_method == "none" else smooth_method
            self._sentence = BLEU(**args, smooth_method=sentence_smoothing, effective_order=True)
            self._corpus.corpus_score(["a"], [["a"]])
        except Exception as error:  # sacrebleu raises TypeError, KeyError, AssertionError, ... by argument
            raise ConfigError(f"metric 'sacre_bleu' does not accept {args}: {error}") from error

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
        corpus = self._corpus.corpus_score(generated_texts, streams).score / 100  # type: ignore[arg-type]
        sentences = [
            self._sentence.sentence_score(text, references).score / 100
            for text, references in zip(generated_texts, reference_texts, strict=True)
        ]
        return {self.key: (sentences, corpus)}
