"""Texts about tables: BLEU and PARENT as in ToTTo's evaluation (Parikh et al. 2020, arXiv 2004.14373).

Scores are computed over all samples, and separately for tables whose headers occur in the training data ("overlap") and
for the others. Without this information in the samples, there is only the overall score.

PARENT (Dhingra et al. 2019, arXiv 1906.01081) compares a text with its references and with the table itself. A word of
the text is correct if it occurs in a reference or in the table; a word of a reference is required in the text only if
it also occurs in the table. This is the variant of ToTTo's evaluation: words entail each other if they are equal, and
precision and recall use different parts of the table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from rl4dialog.core.errors import DataError
from rl4dialog.core.protocols import MetricResult
from rl4dialog.scores.adapters import MetricReward
from rl4dialog.scores.base import Batch, TextMetric, meta_values
from rl4dialog.scores.diversity import ngrams
from rl4dialog.scores.overlap import SacreBleuMetric

_N_REFERENCES = 3
_MISSING = "<null>"


def raw_tables(batch: Batch, who: str) -> list[dict[str, Any]]:
    needs = f"{who} needs samples with a record of ToTTo in meta_data['raw_table'], which the datapool totto provides"
    return meta_values(batch.meta_infos, "raw_table", _is_record, needs)


def _is_record(table: Any) -> bool:
    return isinstance(table, dict) and {"table", "highlighted_cells"} <= table.keys()


def subsets(tables: Sequence[dict[str, Any]]) -> dict[str, list[int]]:
    """Rows of ``overall``, ``overlap`` and ``non_overlap``, without empty subsets."""
    # Some copies of the dataset contain strings, and "none" in the train split.
    flags = [str(table.get("overlap_subset")).lower() for table in tables]
    found = {"overall": list(range(len(tables)))}
    for name, wanted in (("overlap", "true"), ("non_overlap", "false")):
        found[name] = [row for row, flag in enumerate(flags) if flag == wanted]
    return {name: rows for name, rows in found.items() if rows}


def prepare_text(text: str) -> str:
    """Lowercase a text and join its lines; ``<null>`` if it is blank."""
    return " ".join(text.lower().split()) or _MISSING


def prepare_references(references: Sequence[str]) -> list[str]:
    """Prepare references likewise, with ``<null>`` for each one missing from three."""
    return [prepare_text(reference) for reference in references] + [_MISSING] * (_N_REFERENCES - len(references))


def table_values(table: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Values of all cells, titles and the section text; and those of the highlighted cells and the titles."""
    name, problem = f"the table {table.get('example_id')!r}", "has a cell without 'value'"
    try:
        cells = [[str(cell["value"]) for cell in row] for row in table["table"]]
        problem = f"highlights cells that do not exist: {table['highlighted_cells']!r}"
        highlighted = [cells[row][column] for row, column in table["highlighted_cells"]]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DataError(f"{name} {problem}") from error
    *titles, text = (str(table.get(f"table_{part}") or "") for part in ("page_title", "section_title", "section_text"))
    found = ([value for row in cells for value in row] + [*titles, text], highlighted + titles)
    whole, some = ([v.strip().replace("|", "-").lower() for v in values if v.strip()] for values in found)
    return whole, some


_MAX_ORDER = 4
_SMOOTHING = 1e-5


class ParentScore(NamedTuple):
    """Precision, recall and F-score, each between 0 and 1."""

    precision: float
    recall: float
    f_score: float


def parent_score(
    words: Sequence[str],
    references: Sequence[Sequence[str]],
    table: Sequence[Sequence[str]],
    highlighted: Sequence[Sequence[str]],
) -> ParentScore:
    """PARENT against the reference with the best F-score.

    The lists are words: of the text, each reference, each value (for precision), each highlighted value (for recall).
    """
    vocabulary = {word for value in table for word in value}
    mentioned = _mention(highlighted, words)
    scores = []
    for reference in references:
        precision, reference_recall = _ngram_scores(words, reference, vocabulary)
        # The less of the table a reference mentions, the more its recall counts compared to the table's.
        table_weight = 1 - _mention(highlighted, reference)
        recall = reference_recall ** (1 - table_weight) * (mentioned or _SMOOTHING) ** table_weight
        scores.append(ParentScore(precision, recall, 2 * precision * recall / (precision + recall + 1e-8)))
    return max(scores, key=lambda score: score.f_score)


def _ngram_scores(words: Sequence[str], reference: Sequence[str], vocabulary: set[str]) -> tuple[float, float]:
    """Entailed precision and recall: geometric means over the orders of n-grams."""
    precisions, recalls = [], []
    for n in range(1, _MAX_ORDER + 1):
        counts, reference_counts = ngrams([words], n), ngrams([reference], n)
        precision = 0.0
        for gram, count in counts.items():
            in_reference = min(1.0, reference_counts[gram] / count)
            precision += count * (in_reference + (1 - in_reference) * _entailed(gram, vocabulary))
        precisions.append(precision / counts.total() if counts else 0.0)
        possible = {gram: count * _entailed(gram, vocabulary) for gram, count in reference_counts.items()}
        found = sum(weight * min(1.0, counts[g] / reference_counts[g]) for g, weight in possible.items())
        recalls.append(found / sum(possible.values()) if any(possible.values()) else 1.0)
    precision = _geometric_mean(precisions)
    return precision, _geometric_mean(recalls) or _SMOOTHING


def _geometric_mean(values: list[float]) -> float:
    """Geometric mean; 0 if no single word matches, with smoothing for longer n-grams without a match."""
    if values[0] == 0:
        return 0.0
    return math.exp(math.fsum(math.log(value or _SMOOTHING) for value in values) / len(values))


def _entailed(gram: tuple[str, ...], vocabulary: set[str]) -> float:
    return sum(word in vocabulary for word in gram) / len(gram)


def _mention(values: Sequence[Sequence[str]], words: Sequence[str]) -> float:
    """Mean share of each value's words that occur in the text in order; 1 without values."""
    from rouge_score.rouge_scorer import _lcs_table  # lengths of longest common subsequences

    if not values:
        return 1.0
    return sum(_lcs_table(value, words)[-1][-1] / len(value) for value in values) / len(values)


class BleuTottoMetric(TextMetric):
    """Lowercase BLEU by sacrebleu, over all samples and over ToTTo's subsets overlap and non_overlap."""

    needs_references = True

    def __init__(self) -> None:
        self._bleu = SacreBleuMetric()

    def measure(self, batch: Batch) -> MetricResult:
        references = [prepare_references(each) for each in batch.ref_texts]
        prepared = Batch(batch.prompt_texts, [prepare_text(text) for text in batch.gen_texts], references)
        found: MetricResult = {}
        for name, rows in subsets(raw_tables(batch, "metric 'bleu_totto'")).items():
            _, corpus = self._bleu.measure(prepared.chosen(rows))[self._bleu.key]
            found[f"table_to_text/bleu_{name}"] = (None, corpus)
        return found


class ParentTottoMetric(TextMetric):
    """Precision, recall and F-score of PARENT, over all samples and over ToTTo's subsets overlap and non_overlap."""

    needs_references = True

    def measure(self, batch: Batch) -> MetricResult:
        from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

        tokenize = Tokenizer13a()

        def split(texts: list[str]) -> list[list[str]]:
            return [words for text in texts if (words := tokenize(text).split())]

        tables = raw_tables(batch, "metric 'parent_totto'")
        scores = []
        for text, references, table in zip(batch.gen_texts, batch.ref_texts, tables, strict=True):
            values = map(split, table_values(table))
            words = tokenize(prepare_text(text)).split()
            scores.append(parent_score(words, split(prepare_references(references)), *values))
        found: MetricResult = {}
        for name, rows in subsets(tables).items():
            columns = zip(*[scores[row] for row in rows], strict=True)
            precision, recall, f_score = (sum(each) / len(rows) for each in columns)
            key = f"table_to_text/parent_{name}"
            found[f"{key}/precision"], found[f"{key}/recall"] = (None, precision), (None, recall)
            all_f = [score.f_score for score in scores] if name == "overall" else None
            found[f"{key}_f_score"] = (all_f, f_score)
        return found


class ParentReward(MetricReward, metric=ParentTottoMetric):
    """PARENT F-score of the reply against its references and its table (ToTTo samples)."""

    key = "table_to_text/parent_overall_f_score"
