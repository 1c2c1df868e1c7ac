"""Batched sequence classifiers of transformers, of any classes and for natural language inference."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from rl4dialog.core.errors import ConfigError, ModelError, nearest_hint
from rl4dialog.core.pretrained import load_model, load_pretrained
from rl4dialog.core.types import is_whole_number

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class SequenceClassifier:
    """Computes logits of texts, or of pairs of texts, of at most ``max_length`` tokens.

    With ``offload``, the model is on the device only while it computes, and otherwise in main memory.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        device: str = "cpu",
        batch_size: int = 64,
        max_length: int | None = None,
        offload: bool = False,
    ) -> None:
        self.model, self.tokenizer = model.to("cpu" if offload else device).eval(), tokenizer
        self._device, self._batch_size, self._offload = device, batch_size, offload
        longest = max_tokens(tokenizer, model.config)
        self._max_length = min(longest, max_length) if max_length is not None else longest
        self._inputs = set(inspect.signature(model.forward).parameters)

    @classmethod
    def from_pretrained(
        cls,
        path_or_id: str,
        batch_size: int = 64,
        max_length: int | None = None,
        *,
        what: str = "sequence classifier",
        hint: str = "Pass the folder of a model, or a hub id if there is a network.",
        truncation_side: str = "right",
        offload: bool = False,
    ) -> Self:
        """Load a classifier from a folder or the hub; ``what`` it is and a ``hint`` are for error messages."""
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        model = load_model(AutoModelForSequenceClassification, path_or_id, what, hint)
        tokenizer = load_pretrained(AutoTokenizer, path_or_id, what, hint, truncation_side=truncation_side)
        if tokenizer.pad_token is None:
            # Language models with a classification head often have none; they read the last non-padding token.
            if tokenizer.eos_token is None:
                raise ModelError(f"{what} {path_or_id!r} has a tokenizer with neither a pad nor an eos token. {hint}")
            tokenizer.pad_token = tokenizer.eos_token
        if model.config.pad_token_id is None:
            model.config.pad_token_id = tokenizer.pad_token_id
        return cls(model, tokenizer, "cuda" if torch.cuda.is_available() else "cpu", batch_size, max_length, offload)

    def logits(self, texts: list[str], pairs: list[str] | None = None) -> Tensor:
        """Logits of texts, or of pairs with these second texts. Shape (number of texts, number of classes), on the CPU.

        The longer text of a pair that is too long is truncated.
        """
        import torch

        lengths = [len(text) + (len(pairs[i]) if pairs else 0) for i, text in enumerate(texts)]
        found = torch.empty(len(texts), self.model.config.num_labels)
        self.model.to(self._device)
        with torch.inference_mode():
            for rows in batches(lengths, self._batch_size):
                batch = self.tokenizer(
                    [texts[i] for i in rows],
                    [pairs[i] for i in rows] if pairs else None,
                    return_tensors="pt",
                    padding=True,
                    padding_side="right",  # decoders count positions from the first column
                    truncation=True,
                    max_length=self._max_length,
                )
                inputs = {name: ids.to(self._device) for name, ids in batch.items() if name in self._inputs}
                found[rows] = class_logits(self.model, inputs).float().cpu()
        if self._offload:
            self.model.to("cpu")
        return found


def batches(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Rows of each batch: texts of similar length share one, to reduce padding."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for start in range(0, len(order), size):
        yield order[start : start + size]


def class_logits(model: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """Logits of a batch that is padded on the right. Shapes (B, longest) to (B, number of classes)."""
    # Decoders read them off the last token that the mask names real. Their own forward looks for the last token whose
    # id is not that of padding, and so passes over an end-of-sequence token where both have the same id.
    if not hasattr(model, "score") or model.config.is_encoder_decoder:
        return model(**inputs).logits  # type: ignore[no-any-return]
    hidden = model.base_model(**inputs).last_hidden_state
    last = inputs["attention_mask"].sum(-1) - 1
    return model.score(hidden[range(len(last)), last])  # type: ignore[no-any-return]


def max_tokens(tokenizer: Any, config: Any) -> int:
    """Maximum length of a model's input; a tokenizer without a maximum reports 1e30."""
    n_positions: int = getattr(config, "max_position_embeddings", None) or tokenizer.model_max_length
    # Models of the RoBERTa family start positions after the padding id.
    if "roberta" in config.model_type:
        n_positions -= config.pad_token_id + 1
    return min(tokenizer.model_max_length, n_positions)


def label_index(config: Any, label: int | str, who: str) -> int:
    """The class of a label: a class number, or a name in ``id2label``, case-insensitive."""
    names = [str(config.id2label.get(i, i)) for i in range(config.num_labels)]
    if is_whole_number(label, at_least=0) and label < len(names):
        return label
    matching = [i for i, name in enumerate(names) if isinstance(label, str) and name.lower() == label.lower()]
    if len(matching) == 1:
        return matching[0]
    classes = ", ".join(f"{i} {name!r}" for i, name in enumerate(names))
    raise ConfigError(f"{who}: the model has no class {label!r}{nearest_hint(str(label), names)} (classes: {classes})")


# Beginnings of labels of published models. VitaminC's are those of fact checking.
_NLI_LABELS = {
    "entailment": ("entail", "support"),
    "contradiction": ("contradict", "refute"),
    "neutral": ("neutral", "not enough info"),
}


NLI_MODEL = "FacebookAI/roberta-large-mnli"


class NliModel:
    """Probabilities of entailment, contradiction and neutrality, by a classifier whose labels identify these."""

    def __init__(self, model_name: str, batch_size: int, who: str) -> None:
        what, hint = f"{who}: NLI model", f"Set model_name: <folder of a model>, such as a downloaded {NLI_MODEL}."
        self._classifier = SequenceClassifier.from_pretrained(model_name, batch_size, what=what, hint=hint)
        config, self._classes = self._classifier.model.config, list[int]()
        labels = [str(config.id2label.get(i, i)) for i in range(config.num_labels)]
        for name, beginnings in _NLI_LABELS.items():
            matching = [i for i, label in enumerate(labels) if label.lower().replace("_", " ").startswith(beginnings)]
            if len(matching) != 1:
                raise ModelError(
                    f"{what} {model_name!r} has no label that identifies the class {name}: its labels are "
                    f"{', '.join(labels)}. Use one with entailment, neutral and contradiction in id2label of "
                    "config.json"
                )
            self._classes += matching

    def probabilities(self, premises: list[str], hypotheses: list[str]) -> np.ndarray:
        """Compute probabilities per pair: entailment, contradiction, neutral. Shape (number of pairs, 3)."""
        return self._classifier.logits(premises, hypotheses).softmax(-1)[:, self._classes].numpy()
