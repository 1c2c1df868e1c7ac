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
        replies: One per model; that of a model that was not asked stays empty.
        before: The turns before the message, as the models read them.
        chosen: Index of the reply that continues the conversation, possibly in its corrected form; ``None`` until the
            user chooses one of two replies.
        preferred: Index of the reply that is recorded as the better one of two.
    """

    text: str
    persona: str | None
    replies: tuple[Reply, ...]
    before: tuple[str, ...] = ()
    chosen: int | None = None
    preferred: int | None = None

    @property
    def turns(self) -> list[str]:
        """The turns that the replies answer."""
        return [*self.before, self.text]

    @property
    def was_choice(self) -> bool:
        """Whether one of two replies was chosen, so that the choice can be taken back."""
        n_asked = sum(bool(reply.text or reply.finished) for reply in self.replies)
        return n_asked > 1 and self.chosen is not None and self.replies[self.chosen].correction is None

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
class Settings:
    """Settings of the next replies.

    Attributes:
        persona: The model's persona.
        temperature: Sampling temperature; ``None`` for each model's own.
        top_p: Share of the probability from which tokens are sampled; ``None`` for each model's own.
        max_new_tokens: Longest reply, in tokens; ``None`` for each model's own.
        beta: Weight of the values that guide the models; ``None`` for each model's own.
        only: Index of the model that replies; ``None`` for all.
    """

    persona: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_new_tokens: int | None = None
    beta: float | None = None
    only: int | None = None

    @property
    def sampling(self) -> dict[str, float]:
        """The sampling settings that differ from each model's own."""
        given = {"temperature": self.temperature, "top_p": self.top_p, "max_new_tokens": self.max_new_tokens}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class ChatState:
    """The state of a chat after a user action.

    Attributes:
        settings: Those of the next replies.
        exchanges: All exchanges, oldest first.
        told: Missing reward parts that were already reported: index of the model, and parts.
        n_asked: Number of messages sent so far, including those that were undone.
        note: Result of the last action, for the user.
        revision: Number of states before this one.
    """

    settings: Settings = Settings()
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

    def with_exchange(self, number: int, exchange: Exchange, note: str | None = None) -> ChatState:
        """Return a copy with another exchange at a place."""
        exchanges = list(self.exchanges)
        exchanges[number] = exchange
        return replace(self, exchanges=tuple(exchanges), note=self.note if note is None else note)

    def until(self, number: int, note: str = "") -> ChatState:
        """Return a copy that ends before an exchange."""
        return replace(self, exchanges=self.exchanges[:number], note=note)

    def settled(self) -> ChatState:
        """Return a copy without a last exchange that was stopped before any model generated text."""
        if self.last is None or any(reply.text or reply.finished for reply in self.last.replies):
            return self
        return self.until(-1, self.note)

    def messages(self, index: int) -> list[dict[str, str]]:
        """Chat messages in a model's column, with role, content, and origin if another model or the user wrote it."""
        found = []
        for exchange in self.exchanges:
            said = exchange.replies[index].text if exchange.said is None else exchange.said
            found.append({"role": "user", "content": exchange.text, "origin": ""})
            found.append({"role": "assistant", "content": said, "origin": exchange.origin(index)})
        return found
