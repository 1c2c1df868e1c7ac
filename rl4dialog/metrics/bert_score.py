"""BERTScore (Zhang et al. 2020, arXiv 1904.09675), computed by the bert-score package."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.errors import ModelError
from rl4dialog.core.protocols import BaseMetric, MetricResult
from rl4dialog.metrics.checks import check_lengths


class BertScoreMetric(BaseMetric):
    """F1 of BERTScore, the best over the references.

    Args:
        language: Chooses the package's default model.
        model_type: Folder or hub id of another model.
        num_layers: Which layer's states are compared; needed for a model that the package does not know.
        batch_size: Texts per forward pass.

    Raises:
        ModelError: If the model cannot be loaded.
    """

    def __init__(
        self, language: str = "en", model_type: str | None = None, num_layers: int | None = None, batch_size: int = 64
    ) -> None:
        from bert_score import BERTScorer

        try:
            self._scorer = BERTScorer(
                model_type=model_type, num_layers=num_layers, lang=language, batch_size=batch_size
            )
        except Exception as error:  # OSError, KeyError, ... by what is missing
            raise ModelError(
                f"metric 'bert_score' cannot load {model_type or f'the model for language {language!r}'}; without a "
                f"network, give model_type: <folder of the model> and num_layers: <layer>"
            ) from error

    def compute(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None = None,
        model: Any = None,
        split_name: str | None = None,
    ) -> MetricResult:
        check_lengths(generated_texts, reference_texts)
        scores = self._scorer.score(generated_texts, reference_texts)[2].tolist()
        return {"semantic/bert_score": (scores, sum(scores) / len(scores))}
