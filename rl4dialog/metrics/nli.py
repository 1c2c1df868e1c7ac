"""Natural language inference: whether a text follows from another one, or contradicts it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl4dialog.core.errors import ModelError
from rl4dialog.metrics.sequence_classifier import SequenceClassifier

if TYPE_CHECKING:
    import numpy as np

# What published models call the three classes. VitaminC's are those of fact checking.
_NAMES = {
    "entailment": ("entail", "support"),
    "contradiction": ("contradict", "refute"),
    "neutral": ("neutral", "not enough info"),
}
DEFAULT_MODEL = "FacebookAI/roberta-large-mnli"


class NliModel:
    """Probabilities of entailment, contradiction and neutrality.

    Args:
        model_name: Folder or hub id of a sequence classifier with these three classes, told by its config's labels.
        batch_size: Pairs per forward pass.
        who: Asks for it, for error messages.

    Raises:
        ModelError: If the model cannot be loaded, or its labels do not say which class is which.
    """

    def __init__(self, model_name: str, batch_size: int, who: str) -> None:
        self._classifier = SequenceClassifier.from_pretrained(
            model_name,
            batch_size,
            what=f"{who}: NLI model",
            hint=f"Give model_name: <folder of a model>, for instance of a downloaded {DEFAULT_MODEL}.",
        )
        self._classes = _classes_of(self._classifier.model.config, f"{who}: NLI model {model_name!r}")

    def probabilities(self, premises: list[str], hypotheses: list[str]) -> np.ndarray:
        """Probabilities per pair, as columns entailment, contradiction, neutral. Shape (number of pairs, 3)."""
        found: np.ndarray = self._classifier.logits(premises, hypotheses).softmax(-1)[:, self._classes].numpy()
        return found


def _classes_of(config: Any, what: str) -> list[int]:
    labels = [str(config.id2label.get(i, i)) for i in range(config.num_labels)]
    classes = []
    for name, beginnings in _NAMES.items():
        matching = [i for i, label in enumerate(labels) if label.lower().replace("_", " ").startswith(beginnings)]
        if len(matching) != 1:
            raise ModelError(
                f"{what} does not say which class is {name}: its labels are {', '.join(labels)}. Give a model for "
                f"natural language inference whose config.json has entailment, neutral and contradiction in id2label"
            )
        classes += matching
    return classes
