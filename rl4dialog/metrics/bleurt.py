"""BLEURT (Sellam et al. 2020, arXiv 2004.04696): a model's prediction of human ratings.

The original runs on TensorFlow. Its checkpoints are available for transformers, as BERT with one output
(``Elron/bleurt-base-128`` and five others on the hub), with the original's scores.
"""

from __future__ import annotations

from typing import Any

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import ConfigError, ModelError, nearest_hint
from rl4dialog.metrics.sentence_metric import SentenceMetric
from rl4dialog.metrics.sequence_classifier import SequenceClassifier

_CONFIGS = tuple(f"bleurt-{size}-{length}" for size in ("tiny", "base", "large") for length in (128, 512))
_DEFAULT_CONFIG = "bleurt-base-128"


class BleurtMetric(SentenceMetric):
    """BLEURT against the best reference; mostly between 0 and 1, but unbounded.

    Args:
        config_name: Checkpoint: ``bleurt-{tiny,base,large}-{128,512}``, where the number is the maximum length of a
            pair in tokens.
        model_name: Folder or hub id of another model with one output, instead of ``config_name``.
        batch_size: Pairs per forward pass.

    Raises:
        ConfigError: If the checkpoint is unknown.
        ModelError: If the model cannot be loaded, or has more than one output.
    """

    def __init__(self, config_name: str | None = None, model_name: str | None = None, batch_size: Count = 64) -> None:
        config_name = config_name or _DEFAULT_CONFIG
        if model_name is None and config_name not in _CONFIGS:
            raise ConfigError(
                f"metric 'bleurt': unknown config_name {config_name!r}{nearest_hint(config_name, _CONFIGS)} (known: "
                f"{', '.join(_CONFIGS)}); use model_name for another checkpoint, converted for transformers"
            )
        name = model_name or f"Elron/{config_name}"
        self._classifier = SequenceClassifier.from_pretrained(
            name,
            batch_size,
            None if model_name else int(config_name.rsplit("-", 1)[1]),
            what="metric 'bleurt': model",
            hint=f"Set model_name: <folder of a downloaded Elron/{_DEFAULT_CONFIG}>; TensorFlow checkpoints must be "
            f"converted first.",
        )
        n_outputs = self._classifier.model.config.num_labels
        if n_outputs != 1:
            raise ModelError(f"metric 'bleurt': model {name!r} has {n_outputs} outputs instead of one")

    def sentence_scores(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None,
    ) -> dict[str, list[float]]:
        rows = [row for row, references in enumerate(reference_texts) for _ in references]
        references = [reference for references in reference_texts for reference in references]
        ratings = self._classifier.logits(references, [generated_texts[row] for row in rows])[:, 0].tolist()
        scores = [-float("inf")] * len(generated_texts)
        for row, rating in zip(rows, ratings, strict=True):
            scores[row] = max(scores[row], rating)
        return {"semantic/bleurt": scores}
