"""The state of a chat: who the model is to be, and what was said, in the run's dialogue format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rl4dialog.core.errors import DataError
from rl4dialog.data.dialogue_format import DialogueFormat


@dataclass
class Conversation:
    """What was said so far; the user and the model take turns, and the user begins.

    Attributes:
        persona: Who the model is to be.
        turns: Texts, the oldest first.
    """

    persona: str | None = None
    turns: list[str] = field(default_factory=list)

    def prompt(self, text: str, dialogue_format: DialogueFormat) -> str:
        """What the model reads when the user says ``text`` next.

        Raises:
            DataError: If there is nothing to say, or something that only the dialogue format writes.
        """
        for said in (text, self.persona or ""):
            dialogue_format.check_said(said)
        if not text.strip():
            raise DataError("a text to reply to cannot be empty")
        return dialogue_format.prompt(dialogue_format.context([*self.turns, text]), self.persona)

    def meta_info(self, text: str, dialogue_format: DialogueFormat) -> dict[str, Any]:
        """What rewards may read about the prompt, under the names that datapools give it."""
        history = {"history": dialogue_format.context([*self.turns, text])}
        return {**history, "persona": [self.persona]} if self.persona else history

    def add(self, text: str, reply: str) -> None:
        """Take over what the user said, and the reply."""
        self.turns += [text, reply]

    def undo(self) -> tuple[str, str] | None:
        """Take the last exchange back: what the user said, and the reply; ``None`` if there was none."""
        if not self.turns:
            return None
        text, reply = self.turns[-2:]
        del self.turns[-2:]
        return text, reply

    def reset(self) -> None:
        """Forget what was said; the persona stays."""
        self.turns.clear()

    def messages(self) -> list[dict[str, str]]:
        """All of it as chat messages with role and content."""
        first = [{"role": "system", "content": self.persona}] if self.persona else []
        roles = ("user", "assistant")
        return first + [{"role": roles[i % 2], "content": text} for i, text in enumerate(self.turns)]
