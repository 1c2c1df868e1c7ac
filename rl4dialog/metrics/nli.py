"""Natural language inference: whether a text follows from another one or contradicts it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl4dialog.core.errors import ModelError
from rl4dialog.metrics.sequence_classifier import SequenceClassifier

if TYPE_CHECKING:
    import numpy as np

# Label prefixes of published models. VitaminC's are those of fact checking.
_NAMES = {
    "entailment": ("entail", "support"),
    "contradiction": ("contradict", "refute"),
    "neutral": ("neutral", "not enough info"),
}
DEFAULT_MODEL = "FacebookAI/roberta-large-mnli"


class NliModel:
    """Probabilities of entailment, contradiction and neutrality.

    Args:
        model_name: Folder or hub id of a sequence classifier with these three classes, identified by its labels.
        batch_size: Pairs per forward pass.
        who: Name of the caller, for error messages.
    """

    def __init__(self, model_name: str, batch_size: int, who: str) -> None:
        self._classifier = SequenceClassifier.from_pretrained(
            model_name,
            batch_size,
            what=f"{who}: NLI model",
            hint=f"Set model_name: <folder of a model>, such as a downloaded {DEFAULT_MODEL}.",
        )
        self._classes = _classes_of(self._classifier.model.config, f"{who}: NLI model {model_name!r}")

    def probabilities(self, premises: list[str], hypotheses: list[str]) -> np.ndarray:
        """Compute probabilities per pair: entailment, contradiction, neutral. Shape (number of pairs, 3)."""
        found: np.ndarray = self._classifier.logits(premises, hypotheses).softmax(-1)[:, self._classes].numpy()
        return found


def _classes_of(config: Any, what: str) -> list[int]:
    labels = [str(config.id2label.get(i, i)) for i in range(config.num_labels)]
    classes = []
    for name, beginnings in _NAMES.items():
        matching = [i for i, label in enumerate(labels) if label.lower().replace("_", " ").startswith(beginnings)]
        if len(matching) != 1:
            raise ModelError(
                f"{what} has no label that identifies the class {name}: its labels are {', '.join(labels)}. Use one "
                f"for natural language inference with entailment, neutral and contradiction in id2label of config.json"
            )
        classes += matching
    return classes
