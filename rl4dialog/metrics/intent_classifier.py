"""The classifier behind intent accuracy, and the one form of its input, for training and scoring alike."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.hub import load_pretrained

_MARKER = "<EOU>"


def intent_input(last_utterance: str, reply: str) -> str:
    """What the classifier reads: the form that RL4LMs' published classifier was trained on, separators included."""
    return f"{last_utterance.strip()} {_MARKER}{reply.strip()}{_MARKER}"


def last_utterance(prompt_text: str, meta_info: dict[str, Any] | None) -> str:
    """The utterance that is replied to: of ``meta_info["history"]``, or else the prompt's last piece."""
    history = (meta_info or {}).get("history")
    if history:
        return str(history[-1]).strip()
    pieces = [piece.strip() for piece in prompt_text.split(_MARKER) if piece.strip()]
    return pieces[-1] if pieces else ""


class IntentClassifier:
    """A sequence classifier over dialogue acts.

    Args:
        model: Class ``i`` is the act ``i + 1``, unless the labels in its config are acts as numbers.
        tokenizer: The model's.
        device: Where it runs.
        batch_size: Texts per forward pass.
    """

    def __init__(self, model: Any, tokenizer: Any, device: str = "cpu", batch_size: int = 64) -> None:
        self.model, self.tokenizer = model.to(device).eval(), tokenizer
        self._device, self._batch_size = device, batch_size
        # A tokenizer that knows no longest text says 1e30, and would not cut one that the model has no positions for.
        n_positions = getattr(model.config, "max_position_embeddings", None) or tokenizer.model_max_length
        if "roberta" in model.config.model_type:
            n_positions -= model.config.pad_token_id + 1
        self._max_length = min(tokenizer.model_max_length, n_positions)
        self._acts = _acts_of_classes(model.config)

    @classmethod
    def from_pretrained(cls, path_or_id: str, batch_size: int = 64) -> IntentClassifier:
        """Load a classifier from a folder or a hub.

        Raises:
            ModelError: If it cannot be loaded.
        """
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        hint = "Give a folder that scripts/train_intent_classifier.py wrote, or builtin/intent-classifier."
        model = load_pretrained(AutoModelForSequenceClassification, path_or_id, "intent classifier", hint)
        # A long text loses its beginning: the reply, which is classified, is at its end.
        tokenizer = load_pretrained(AutoTokenizer, path_or_id, "intent classifier", hint, truncation_side="left")
        return cls(model, tokenizer, "cuda" if torch.cuda.is_available() else "cpu", batch_size)

    def predict(
        self, prompt_texts: list[str], reply_texts: list[str], meta_infos: list[dict[str, Any]] | None
    ) -> list[int]:
        """The act of each reply, 1 to 4."""
        import torch

        infos: list[Any] = list(meta_infos) if meta_infos is not None else [None] * len(reply_texts)
        texts = [
            intent_input(last_utterance(prompt, info), reply)
            for prompt, reply, info in zip(prompt_texts, reply_texts, infos, strict=True)
        ]
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        labels = [0] * len(texts)
        with torch.inference_mode():
            for start in range(0, len(order), self._batch_size):
                rows = order[start : start + self._batch_size]
                batch = self.tokenizer(
                    [texts[i] for i in rows],
                    return_tensors="pt",
                    padding=True,
                    truncation=True,
                    max_length=self._max_length,
                ).to(self._device)
                logits = self.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
                for row, label in zip(rows, logits.argmax(dim=-1).tolist(), strict=True):
                    labels[row] = self._acts[label]
        return labels


def _acts_of_classes(config: Any) -> list[int]:
    """The act of each class, 1 to 4: by the config's labels if they are such numbers, else by position."""
    by_position = [i + 1 for i in range(config.num_labels)]
    labels = [str(config.id2label.get(i, "")) for i in range(config.num_labels)]
    # Labels from 0 on are positions, not acts.
    return [int(label) for label in labels] if sorted(labels) == [str(act) for act in by_position] else by_position
