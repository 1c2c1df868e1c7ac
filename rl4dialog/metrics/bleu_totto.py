"""BLEU as in ToTTo's evaluation."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.protocols import BaseMetric, MetricResult
from rl4dialog.metrics.checks import check_lengths, check_references
from rl4dialog.metrics.sacre_bleu import SacreBleuMetric
from rl4dialog.metrics.totto import prepare_references, prepare_text, raw_tables, subsets


class BleuTottoMetric(BaseMetric):
    """Lowercase BLEU by sacrebleu, over all samples and over ToTTo's subsets overlap and non_overlap."""

    needs_references = True

    def __init__(self) -> None:
        self._bleu = SacreBleuMetric()

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
        texts = [prepare_text(text) for text in generated_texts]
        references = [prepare_references(each) for each in reference_texts]
        found: MetricResult = {}
        for name, rows in subsets(raw_tables(meta_infos, "metric 'bleu_totto'")).items():
            prompts, chosen = [""] * len(rows), [references[row] for row in rows]
            _, corpus = self._bleu.compute(prompts, [texts[row] for row in rows], chosen)[self._bleu.key]
            found[f"table_to_text/bleu_{name}"] = (None, corpus)
        return found
