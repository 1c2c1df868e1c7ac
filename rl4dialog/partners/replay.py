"""A partner that says what was said in the dataset's own dialogue."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.protocols import Partner
from rl4dialog.core.types import PartnerReply
from rl4dialog.partners.sample_texts import sample_texts

_HINT = (
    "the datapools daily_dialog, persona_chat and small_talk provide it with datapool.args.samples: dialogues, and "
    "conversational with datapool.args.turns: first"
)


class ReplayPartner(Partner):
    """Says the next utterance of the dataset's own dialogue, whatever the agent said; leaves at the end of it.

    Samples need ``meta_data["continuation"]``: the utterances after the reference reply, by the partner and the agent
    in turn. Those of the agent, and their labels, are the references and labels of its later replies.

    Raises:
        DataError: At the start of a conversation, if the sample has no continuation.
    """

    gives_references = True
    checks_samples = True

    def __init__(self) -> None:
        self._continuation: list[str] = []
        self._labels: list[dict[str, Any]] = []
        self._position = 0

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._continuation = sample_texts(meta_info, "continuation", "replay", _HINT)
        self._labels = meta_info.get("continuation_labels") or [{}] * len(self._continuation)
        self._position = 0

    def reply(self, history: list[str]) -> PartnerReply:
        said = self._continuation[self._position : self._position + 2]
        labels = self._labels[self._position + 1 : self._position + 2]
        self._position += 2
        text, references = next(iter(said), None), said[1:]
        # Without a reference, the agent had nothing more to say.
        info = {"references": references, "labels": labels[0]} if references else {}
        return PartnerReply(text, info=info, leaves=not references)
