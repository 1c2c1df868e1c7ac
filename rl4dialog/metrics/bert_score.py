"""BERTScore (Zhang et al. 2020, arXiv 1904.09675), computed by the bert-score package."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.arguments import Count
from rl4dialog.core.downloads import cache_only_without_network
from rl4dialog.core.errors import ModelError
from rl4dialog.core.pretrained import load_pretrained
from rl4dialog.metrics.sentence_metric import SentenceMetric
from rl4dialog.metrics.sequence_classifier import max_tokens


class BertScoreMetric(SentenceMetric):
    """BERTScore F1 against the best reference; 0 for a blank text.

    Args:
        language: Language code that selects the package's default model.
        model_type: Folder or hub id of another model.
        num_layers: Layer whose hidden states are compared; required for models unknown to the package.
        batch_size: Texts per forward pass.

    Raises:
        ModelError: If the model cannot be loaded.
    """

    def __init__(
        self,
        language: str = "en",
        model_type: str | None = None,
        num_layers: Count | None = None,
        batch_size: Count = 64,
    ) -> None:
        from bert_score import BERTScorer
        from bert_score.utils import lang2model, model2layers
        from transformers import AutoConfig

        default = lang2model[language]
        hint = (
            f"Without a network, set model_type: <folder of a downloaded {default}> and num_layers: "
            f"{model2layers[default]}"
        )
        # The package itself would prompt for permission to run a model's code.
        load_pretrained(AutoConfig, model_type or default, "metric 'bert_score': model", hint)
        try:
            with cache_only_without_network():
                self._scorer = BERTScorer(
                    model_type=model_type, num_layers=num_layers, lang=language, batch_size=batch_size
                )
        except Exception as error:  # OSError, KeyError, ... depending on the cause
            raise ModelError(
                f"metric 'bert_score': model {model_type or default!r} cannot be loaded ({error}). {hint}"
            ) from error
        # A tokenizer without a maximum length reports 1e30, at which fast tokenizers fail.
        tokenizer = self._scorer._tokenizer
        tokenizer.model_max_length = min(max_tokens(tokenizer, self._scorer._model.config), 1_000_000)

    def sentence_scores(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None,
    ) -> dict[str, list[float]]:
        # The package cannot encode blank texts with transformers 5; a blank text has no overlap with any other.
        kept = [[reference for reference in references if reference.strip()] for references in reference_texts]
        rows = [row for row, text in enumerate(generated_texts) if text.strip() and kept[row]]
        scores = [0.0] * len(generated_texts)
        if rows:
            found = self._scorer.score([generated_texts[row] for row in rows], [kept[row] for row in rows])[2]
            for row, score in zip(rows, found.tolist(), strict=True):
                scores[row] = score
        return {"semantic/bert_score": scores}
