"""The state of a terminal chat: the persona and the turns, rendered in the run's dialogue format."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rl4dialog.core.errors import DataError
from rl4dialog.data.dialogue_format import DialogueFormat


@dataclass
class Conversation:
    """The turns so far; user and model alternate, and the user starts.

    Attributes:
        persona: The model's persona.
        turns: Texts, oldest first.
    """

    persona: str | None = None
    turns: list[str] = field(default_factory=list)

    def prompt(self, text: str, dialogue_format: DialogueFormat) -> str:
        """Build the prompt for the next user message.

        Raises:
            DataError: If the text is empty, or contains markup reserved for the dialogue format.
        """
        for said in (text, self.persona or ""):
            dialogue_format.check_said(said)
        if not text.strip():
            raise DataError("a message cannot be empty")
        return dialogue_format.prompt(dialogue_format.context([*self.turns, text]), self.persona)

    def meta_info(self, text: str, dialogue_format: DialogueFormat) -> dict[str, Any]:
        """Return the conversation's meta data for rewards, under the names that datapools use."""
        history = {"history": dialogue_format.context([*self.turns, text])}
        return {**history, "persona": [self.persona]} if self.persona else history

    def add(self, text: str, reply: str) -> None:
        """Append a user message and the reply."""
        self.turns += [text, reply]

    def undo(self) -> tuple[str, str] | None:
        """Remove the last exchange and return its user message and reply; ``None`` if there is none."""
        if not self.turns:
            return None
        text, reply = self.turns[-2:]
        del self.turns[-2:]
        return text, reply

    def reset(self) -> None:
        """Clear the turns; the persona stays."""
        self.turns.clear()

    def messages(self) -> list[dict[str, str]]:
        """Return the conversation as chat messages with role and content."""
        first = [{"role": "system", "content": self.persona}] if self.persona else []
        roles = ("user", "assistant")
        return first + [{"role": roles[i % 2], "content": text} for i, text in enumerate(self.turns)]
