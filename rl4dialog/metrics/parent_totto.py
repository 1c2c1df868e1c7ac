"""PARENT as in ToTTo's evaluation."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.protocols import BaseMetric, MetricResult
from rl4dialog.metrics.checks import check_lengths, check_references
from rl4dialog.metrics.parent import parent_score
from rl4dialog.metrics.totto import (
    highlighted_values,
    prepare_references,
    prepare_text,
    raw_tables,
    subsets,
    table_values,
)


class ParentTottoMetric(BaseMetric):
    """Precision, recall and F-score of PARENT, over all samples and over ToTTo's subsets overlap and non_overlap."""

    needs_references = True

    def compute(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None = None,
        model: Any = None,
        split_name: str | None = None,
    ) -> MetricResult:
        from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

        check_lengths(generated_texts, prompt_texts, reference_texts, meta_infos)
        check_references(reference_texts)
        tokenize = Tokenizer13a()

        def split(texts: list[str]) -> list[list[str]]:
            return [words for text in texts if (words := tokenize(text).split())]

        tables = raw_tables(meta_infos, "metric 'parent_totto'")
        scores = [
            parent_score(
                tokenize(prepare_text(text)).split(),
                split(prepare_references(references)),
                split(table_values(table)),
                split(highlighted_values(table)),
            )
            for text, references, table in zip(generated_texts, reference_texts, tables, strict=True)
        ]
        found: MetricResult = {}
        for name, rows in subsets(tables).items():
            precision, recall, f_score = (
                sum(each) / len(rows) for each in zip(*[scores[row] for row in rows], strict=True)
            )
            key = f"table_to_text/parent_{name}"
            found[f"{key}/precision"], found[f"{key}/recall"] = (None, precision), (None, recall)
            all_f = [score.f_score for score in scores] if name == "overall" else None
            found[f"{key}_f_score"] = (all_f, f_score)
        return found
