"""The classifier behind intent accuracy, and its input format, shared by training and scoring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl4dialog.metrics.sequence_classifier import SequenceClassifier

if TYPE_CHECKING:
    from torch import Tensor

_MARKER = "<EOU>"


def intent_input(context: str, reply: str) -> str:
    """Format the classifier's input as for RL4LMs' published classifier, including separators."""
    return f"{context.strip()} {_MARKER}{reply.strip()}{_MARKER}"


def last_utterances(prompt_text: str, meta_info: dict[str, Any] | None, n: int = 1) -> str:
    """The last ``n`` utterances before the reply: of ``meta_info["history"]``, or else of the prompt."""
    history = (meta_info or {}).get("history") or prompt_text.split(_MARKER)
    said = [str(utterance).strip() for utterance in history if str(utterance).strip()]
    return f" {_MARKER}".join(said[-n:])


class IntentClassifier(SequenceClassifier):
    """A classifier of dialogue acts: class ``i`` is act ``i + 1``, unless its labels are the numbers of the acts.

    If the model's config has ``reads_reply: false``, it predicts the act of a reply without reading it, from the last
    ``n_utterances`` before it.
    """

    @property
    def reads_reply(self) -> bool:
        """Whether it reads the reply; otherwise only utterances before it."""
        return bool(getattr(self.model.config, "reads_reply", True))

    @property
    def n_utterances(self) -> int:
        """Number of utterances before the reply that it reads."""
        return int(getattr(self.model.config, "n_utterances", 1))

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
        return [act + 1 for act in self.probabilities(prompt_texts, reply_texts, meta_infos).argmax(dim=-1).tolist()]

    def probabilities(
        self, prompt_texts: list[str], reply_texts: list[str], meta_infos: list[dict[str, Any]] | None
    ) -> Tensor:
        """Probability of each dialogue act. Shape (number of replies, 4), in the order of the acts."""
        infos: list[Any] = list(meta_infos) if meta_infos is not None else [None] * len(reply_texts)
        texts = [
            intent_input(last_utterances(prompt, info, self.n_utterances), reply if self.reads_reply else "")
            for prompt, reply, info in zip(prompt_texts, reply_texts, infos, strict=True)
        ]
        return self.logits(texts).softmax(dim=-1)[:, _classes_of_acts(self.model.config)]


def _classes_of_acts(config: Any) -> list[int]:
    """The class of each act: from the config's labels if these are the numbers 1 to 4, else by position."""
    by_position = list(range(config.num_labels))
    labels = [str(config.id2label.get(i, "")) for i in by_position]
    acts = [str(i + 1) for i in by_position]
    # Labels that start at 0 are positions, not acts.
    return [labels.index(act) for act in acts] if sorted(labels) == acts else by_position
