"""The state of a chat on the page. It never changes: a click gives the next one, or an error and none."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rl4dialog.policies.token_details import TokenDetails


@dataclass(frozen=True)
class Reply:
    """What a model has said.

    Attributes:
        model: Its name.
        prompt: What it has read.
        text: What it said so far.
        token_ids: The tokens of it.
        finished: Whether there is no more to come.
        reward: The reward in words, or why there is none; empty if nobody asked for it, or knows why already.
        details: Numbers of the tokens.
        no_details: Why there are none, if it was tried.
        rating: 1 for up, -1 for down, ``None`` if it was not rated.
        correction: What it should have been, if somebody said so.
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
    """What the user said, and what came back.

    Attributes:
        text: The user's.
        persona: Who the model was to be.
        replies: One per model.
        chosen: Index of the reply with which the conversation goes on, or whose correction it goes on with; ``None``
            until one of two replies is chosen.
    """

    text: str
    persona: str | None
    replies: tuple[Reply, ...]
    chosen: int | None = None

    @property
    def said(self) -> str | None:
        """With what the conversation goes on; ``None`` until one of two replies is chosen."""
        if self.chosen is None:
            return None
        reply = self.replies[self.chosen]
        return reply.text if reply.correction is None else reply.correction

    def shows(self, index: int) -> bool:
        """Whether a model's own column shows what this model has said, or what somebody made of it."""
        return self.chosen in (None, index)

    def origin(self, index: int) -> str:
        """Where the text in a model's column is from, if it is not this model's own reply; empty if it is."""
        if self.chosen is None:
            return ""
        reply = self.replies[self.chosen]
        whose = "" if len(self.replies) == 1 else f" of {self.chosen + 1}: {reply.model}"
        if reply.correction is not None:
            return f"your correction of the reply{whose}"
        return "" if self.chosen == index else f"the reply{whose}"

    def with_reply(self, index: int, reply: Reply) -> Exchange:
        """The same with another reply of one model."""
        replies = (*self.replies[:index], reply, *self.replies[index + 1 :])
        return replace(self, replies=replies)


@dataclass(frozen=True)
class ChatState:
    """A chat as it is after a click.

    Attributes:
        persona: Who the model is to be.
        temperature: Of the sampling; ``None`` for each model's own.
        exchanges: The oldest first.
        told: Which parts of the reward cannot be computed, as the user knows by now: index of the model, and parts.
        n_asked: How often a model was asked, also for what was taken back.
        note: What the last click has done, for the user.
        revision: How many states came before this one.
    """

    persona: str | None = None
    temperature: float | None = None
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
        """Whether the user has to choose one of two replies before the conversation goes on."""
        return self.last is not None and self.last.said is None

    @property
    def turns(self) -> list[str]:
        """What was said before the text that waits for a choice, or so far if none does; the oldest first."""
        done = [exchange for exchange in self.exchanges if exchange.said is not None]
        return [text for exchange in done for text in (exchange.text, exchange.said or "")]

    def with_last(self, exchange: Exchange, note: str | None = None) -> ChatState:
        """The same with another last exchange."""
        exchanges = (*self.exchanges[:-1], exchange)
        return replace(self, exchanges=exchanges, note=self.note if note is None else note)

    def settled(self) -> ChatState:
        """The same without a last exchange in which no model came to say anything before it was stopped."""
        if self.last is None or any(reply.text or reply.finished for reply in self.last.replies):
            return self
        return replace(self, exchanges=self.exchanges[:-1])

    def messages(self, index: int) -> list[dict[str, str]]:
        """The chat as a model's column shows it: messages with role, content, and origin if another one said it."""
        found = []
        for exchange in self.exchanges:
            said = exchange.replies[index].text if exchange.said is None else exchange.said
            found.append({"role": "user", "content": exchange.text, "origin": ""})
            found.append({"role": "assistant", "content": said, "origin": exchange.origin(index)})
        return found
