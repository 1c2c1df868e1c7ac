"""The classifier behind intent accuracy, and the one form of its input, for training and scoring alike."""

from __future__ import annotations

from typing import Any

from rl4dialog.metrics.sequence_classifier import SequenceClassifier

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


class IntentClassifier(SequenceClassifier):
    """A sequence classifier over dialogue acts: class ``i`` is act ``i + 1``, unless its labels are such numbers."""

    @classmethod
    def from_pretrained(
        cls,
        path_or_id: str,
        batch_size: int = 64,
        max_length: int | None = None,
        *,
        what: str = "intent classifier",
        hint: str = "Give a folder that scripts/train_intent_classifier.py wrote, or builtin/intent-classifier.",
        # A long text loses its beginning: the reply, which is classified, is at its end.
        truncation_side: str = "left",
    ) -> IntentClassifier:
        found: IntentClassifier = super().from_pretrained(
            path_or_id, batch_size, max_length, what=what, hint=hint, truncation_side=truncation_side
        )
        return found

    def predict(
        self, prompt_texts: list[str], reply_texts: list[str], meta_infos: list[dict[str, Any]] | None
    ) -> list[int]:
        """The act of each reply, 1 to 4."""
        infos: list[Any] = list(meta_infos) if meta_infos is not None else [None] * len(reply_texts)
        texts = [
            intent_input(last_utterance(prompt, info), reply)
            for prompt, reply, info in zip(prompt_texts, reply_texts, infos, strict=True)
        ]
        acts = _acts_of_classes(self.model.config)
        return [acts[label] for label in self.logits(texts).argmax(dim=-1).tolist()]


def _acts_of_classes(config: Any) -> list[int]:
    """The act of each class, 1 to 4: by the config's labels if they are such numbers, else by position."""
    by_position = [i + 1 for i in range(config.num_labels)]
    labels = [str(config.id2label.get(i, "")) for i in range(config.num_labels)]
    # Labels from 0 on are positions, not acts.
    return [int(label) for label in labels] if sorted(labels) == [str(act) for act in by_position] else by_position
