"""The immutable state of a chat on the page: each action returns a new state or raises an error."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rl4dialog.policies.token_details import TokenDetails


@dataclass(frozen=True)
class Reply:
    """A reply, complete or in progress.

    Attributes:
        model: Name of the model.
        prompt: The prompt.
        text: The text generated so far.
        token_ids: Its tokens.
        finished: Whether the reply is complete.
        reward: The reward as text, or why it is missing; empty if it was not requested or the reason was already shown.
        details: Numbers per token.
        no_details: Why they are missing, if computing them failed.
        rating: 1 for up, -1 for down, ``None`` if not rated.
        correction: The user's corrected text, if any.
    """

    model: str
    prompt: str
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finished: bool = False
    reward: str = ""
    details: TokenDetails | None = None
    no_details: str | None = None
    rating: int | None = None
    correction: str | None = None


@dataclass(frozen=True)
class Exchange:
    """A user message and the replies to it.

    Attributes:
        text: The user's message.
        persona: The model's persona.
        replies: One per model.
        chosen: Index of the reply that continues the conversation, possibly in its corrected form; ``None`` until the
            user chooses one of two replies.
    """

    text: str
    persona: str | None
    replies: tuple[Reply, ...]
    chosen: int | None = None

    @property
    def said(self) -> str | None:
        """Text that continues the conversation; ``None`` until the user chooses one of two replies."""
        if self.chosen is None:
            return None
        reply = self.replies[self.chosen]
        return reply.text if reply.correction is None else reply.correction

    def shows(self, index: int) -> bool:
        """Whether a model's column shows this model's reply, or its correction."""
        return self.chosen in (None, index)

    def origin(self, index: int) -> str:
        """Source of the text in a model's column; empty if it is this model's own reply."""
        if self.chosen is None:
            return ""
        reply = self.replies[self.chosen]
        whose = "" if len(self.replies) == 1 else f" of {self.chosen + 1}: {reply.model}"
        if reply.correction is not None:
            return f"your correction of the reply{whose}"
        return "" if self.chosen == index else f"the reply{whose}"

    def with_reply(self, index: int, reply: Reply) -> Exchange:
        """Return a copy with another reply of one model."""
        replies = (*self.replies[:index], reply, *self.replies[index + 1 :])
        return replace(self, replies=replies)


@dataclass(frozen=True)
class ChatState:
    """The state of a chat after a user action.

    Attributes:
        persona: The model's persona.
        temperature: Sampling temperature; ``None`` for each model's own.
        beta: Weight of the values that guide the models; ``None`` for each model's own.
        exchanges: All exchanges, oldest first.
        told: Missing reward parts that were already reported: index of the model, and parts.
        n_asked: Number of messages sent so far, including those that were undone.
        note: Result of the last action, for the user.
        revision: Number of states before this one.
    """

    persona: str | None = None
    temperature: float | None = None
    beta: float | None = None
    exchanges: tuple[Exchange, ...] = ()
    told: frozenset[tuple[int, str]] = frozenset()
    n_asked: int = 0
    note: str = ""
    revision: int = 0

    @property
    def last(self) -> Exchange | None:
        """The last exchange, if there is one."""
        return self.exchanges[-1] if self.exchanges else None

    @property
    def awaits_choice(self) -> bool:
        """Whether the user has to choose one of two replies before the conversation continues."""
        return self.last is not None and self.last.said is None

    @property
    def turns(self) -> list[str]:
        """All turns, oldest first, without an exchange that awaits a choice."""
        done = [exchange for exchange in self.exchanges if exchange.said is not None]
        return [text for exchange in done for text in (exchange.text, exchange.said or "")]

    def with_last(self, exchange: Exchange, note: str | None = None) -> ChatState:
        """Return a copy with another last exchange."""
        exchanges = (*self.exchanges[:-1], exchange)
        return replace(self, exchanges=exchanges, note=self.note if note is None else note)

    def settled(self) -> ChatState:
        """Return a copy without a last exchange that was stopped before any model generated text."""
        if self.last is None or any(reply.text or reply.finished for reply in self.last.replies):
            return self
        return replace(self, exchanges=self.exchanges[:-1])

    def messages(self, index: int) -> list[dict[str, str]]:
        """Chat messages in a model's column, with role, content, and origin if another model or the user wrote it."""
        found = []
        for exchange in self.exchanges:
            said = exchange.replies[index].text if exchange.said is None else exchange.said
            found.append({"role": "user", "content": exchange.text, "origin": ""})
            found.append({"role": "assistant", "content": said, "origin": exchange.origin(index)})
        return found
