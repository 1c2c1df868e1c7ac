"""Any metric of Hugging Face's evaluate library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl4dialog.core.cache import cache_root
from rl4dialog.core.downloads import cache_only_without_network
from rl4dialog.core.errors import ConfigError, DataError, ModelError
from rl4dialog.core.protocols import MetricResult
from rl4dialog.scores.base import Batch, TextMetric


class HfEvaluateMetric(TextMetric):
    """A metric of the evaluate library; each number that it returns has the key ``hf_evaluate/<metric>/<number>``.

    The metric receives the inputs that it declares: texts as ``predictions``, references as ``references`` (only the
    first one per text if it accepts a single one), and prompts as ``sources``.

    Args:
        name: Name of a metric on the hub, or the path of its script.
        config_name: Configuration of the metric.
        compute_args: Additional arguments of its ``compute``.
    """

    def __init__(
        self, name: str, config_name: str | None = None, compute_args: Mapping[str, Any] | None = None
    ) -> None:
        import evaluate

        self._who = f"metric 'hf_evaluate' ({name})"
        try:
            with cache_only_without_network():
                self._metric = evaluate.load(name, config_name, cache_dir=str(cache_root() / "evaluate"))
        except Exception as error:  # OSError, ImportError, ValueError, ... depending on the cause
            cure = "Set name: <path of the metric's script>, or its name on the hub, and install what it imports."
            raise ModelError(f"{self._who} cannot be loaded ({error}). {cure}") from error
        features = self._metric.features
        self._features: list[Any] = features if isinstance(features, list) else [features]
        self._inputs = set(self._features[0])
        self.needs_references = "references" in self._inputs
        unknown = self._inputs - {"predictions", "references", "sources"}
        if unknown or "predictions" not in self._inputs:
            known = "only metrics of predictions, and optionally references and sources, are supported"
            raise ConfigError(f"{self._who} needs the inputs {', '.join(sorted(self._inputs))}; {known}")
        self._compute_args = dict(compute_args or {})

    def measure(self, batch: Batch) -> MetricResult:
        inputs: dict[str, Any] = {"predictions": batch.gen_texts}
        if self.needs_references:
            from datasets import List, Sequence

            kinds = [features["references"] for features in self._features]
            several = any(isinstance(kind, (List, Sequence, list)) for kind in kinds)
            inputs["references"] = batch.ref_texts if several else [references[0] for references in batch.ref_texts]
        if "sources" in self._inputs:
            inputs["sources"] = batch.prompt_texts
        try:
            found = self._metric.compute(**inputs, **self._compute_args)
        except Exception as error:  # the metric's code can raise anything
            raise DataError(f"{self._who} failed: {type(error).__name__}: {error}") from error
        each = {key: _as_score(value, len(batch)) for key, value in (found or {}).items()}
        scores = {f"hf_evaluate/{self._metric.name}/{key}": score for key, score in each.items() if score is not None}
        if not scores:
            raise DataError(f"{self._who} returned no number: {found!r}")
        return scores


def _as_score(value: Any, n_texts: int) -> tuple[list[float] | None, float] | None:
    """Convert a number to a corpus score, and one number per text to sentence scores with their mean; else ``None``."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (int, float)):
        return None, float(value)
    if isinstance(value, list) and len(value) == n_texts and all(isinstance(each, (int, float)) for each in value):
        return [float(each) for each in value], float(sum(value) / n_texts)
    return None
