"""A batched sequence classifier of transformers, used by all metrics with such a model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rl4dialog.core.errors import ConfigError, ModelError, nearest_hint
from rl4dialog.core.pretrained import load_model, load_pretrained
from rl4dialog.core.types import is_whole_number

if TYPE_CHECKING:
    from torch import Tensor


class SequenceClassifier:
    """Computes logits of texts, or of pairs of texts.

    Args:
        model: A model with a head for sequence classification or regression.
        tokenizer: The model's tokenizer.
        device: Device of the model.
        batch_size: Texts per forward pass.
        max_length: Maximum length in tokens; by default the maximum of model and tokenizer.
    """

    def __init__(
        self, model: Any, tokenizer: Any, device: str = "cpu", batch_size: int = 64, max_length: int | None = None
    ) -> None:
        self.model, self.tokenizer = model.to(device).eval(), tokenizer
        self._device, self._batch_size = device, batch_size
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
    ) -> Any:
        """Load a classifier from a folder or the hub.

        Args:
            path_or_id: Folder or hub id.
            batch_size: Texts per forward pass.
            max_length: Maximum length in tokens.
            what: Name of the classifier in error messages.
            hint: Advice at the end of error messages.
            truncation_side: Side at which long texts are truncated: ``left`` or ``right``.

        Raises:
            ModelError: If it cannot be loaded, has no head for classification, or its tokenizer cannot pad batches.
        """
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
        return cls(model, tokenizer, "cuda" if torch.cuda.is_available() else "cpu", batch_size, max_length)

    def logits(self, texts: list[str], pairs: list[str] | None = None) -> Tensor:
        """Compute logits for any number of texts.

        Args:
            texts: Texts to classify.
            pairs: Second texts, to classify pairs. The longer text of a pair that is too long is truncated.

        Returns:
            Logits of shape (number of texts, number of classes), on the CPU.
        """
        import torch

        # Texts of similar length share a batch, to reduce padding.
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]) + (len(pairs[i]) if pairs else 0))
        found = torch.empty(len(texts), self.model.config.num_labels)
        with torch.inference_mode():
            for start in range(0, len(order), self._batch_size):
                rows = order[start : start + self._batch_size]
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
        return found


def class_logits(model: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """Logits of a batch that is padded on the right.

    Decoders read them off the last token that the mask names real. Their own ``forward`` looks for the last token whose
    id is not that of padding, and so passes over an end-of-sequence token where both have the same id.

    Args:
        model: A model with a head for sequence classification.
        inputs: Its inputs, such as ``input_ids`` and ``attention_mask`` of shape (B, longest).

    Returns:
        Logits of shape (B, number of classes).
    """
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
    """Return the class of a label.

    Args:
        config: The model's config.
        label: A class number, or a name in ``id2label``, case-insensitive.
        who: Name of the caller, for error messages.
    """
    names = [str(config.id2label.get(i, i)) for i in range(config.num_labels)]
    if is_whole_number(label, at_least=0) and label < len(names):
        return label
    matching = [i for i, name in enumerate(names) if isinstance(label, str) and name.lower() == label.lower()]
    if len(matching) == 1:
        return matching[0]
    raise ConfigError(
        f"{who}: the model has no class {label!r}{nearest_hint(str(label), names)} "
        f"(classes: {', '.join(f'{i} {name!r}' for i, name in enumerate(names))})"
    )
