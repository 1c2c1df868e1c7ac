"""The classifier behind intent accuracy, and its input format, shared by training and scoring."""

from __future__ import annotations

from typing import Any

from rl4dialog.metrics.sequence_classifier import SequenceClassifier

_MARKER = "<EOU>"


def intent_input(last_utterance: str, reply: str) -> str:
    """Format the classifier's input as for RL4LMs' published classifier, including separators."""
    return f"{last_utterance.strip()} {_MARKER}{reply.strip()}{_MARKER}"


def last_utterance(prompt_text: str, meta_info: dict[str, Any] | None) -> str:
    """The utterance to reply to: the last of ``meta_info["history"]``, or else of the prompt."""
    history = (meta_info or {}).get("history")
    if history:
        return str(history[-1]).strip()
    pieces = [piece.strip() for piece in prompt_text.split(_MARKER) if piece.strip()]
    return pieces[-1] if pieces else ""


class IntentClassifier(SequenceClassifier):
    """A classifier of dialogue acts: class ``i`` is act ``i + 1``, unless its labels are the numbers of the acts."""

    @classmethod
    def from_pretrained(
        cls,
        path_or_id: str,
        batch_size: int = 64,
        max_length: int | None = None,
        *,
        what: str = "intent classifier",
        hint: str = "Pass a folder written by scripts/train_intent_classifier.py, or builtin/intent-classifier.",
        # Long texts are truncated at the start, because the reply to classify is at the end.
        truncation_side: str = "left",
    ) -> IntentClassifier:
        found: IntentClassifier = super().from_pretrained(
            path_or_id, batch_size, max_length, what=what, hint=hint, truncation_side=truncation_side
        )
        return found

    def predict(
        self, prompt_texts: list[str], reply_texts: list[str], meta_infos: list[dict[str, Any]] | None
    ) -> list[int]:
        """Predict the dialogue act of each reply, 1 to 4."""
        infos: list[Any] = list(meta_infos) if meta_infos is not None else [None] * len(reply_texts)
        texts = [
            intent_input(last_utterance(prompt, info), reply)
            for prompt, reply, info in zip(prompt_texts, reply_texts, infos, strict=True)
        ]
        acts = _acts_of_classes(self.model.config)
        return [acts[label] for label in self.logits(texts).argmax(dim=-1).tolist()]


def _acts_of_classes(config: Any) -> list[int]:
    """The act of each class, 1 to 4: from the config's labels if these are the numbers 1 to 4, else by position."""
    by_position = [i + 1 for i in range(config.num_labels)]
    labels = [str(config.id2label.get(i, "")) for i in range(config.num_labels)]
    # Labels that start at 0 are positions, not acts.
    return [int(label) for label in labels] if sorted(labels) == [str(act) for act in by_position] else by_position
