"""The chats of all browsers that use a page, so that a chat survives a reload.

Chats are kept in memory. A browser identifies its chat by an unguessable key. Each action carries the revision that
the page showed, so that an action on an outdated page is not applied to another reply.
"""

from __future__ import annotations

import re
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import Generic, TypeVar

from rl4dialog.core.errors import ConfigError
from rl4dialog.serving.chat_state import ChatState

T = TypeVar("T")


def browser_key(key: object = None) -> str:
    """The key that a browser sent, or a new one if it is malformed."""
    return key if isinstance(key, str) and re.fullmatch(r"[0-9a-f]{32}", key) else uuid.uuid4().hex


def check_revision(current: int, shown: int) -> None:
    """Check that a page shows the current state.

    Raises:
        ConfigError: If it is out of date.
    """
    if current != shown:
        raise ConfigError("this page was out of date, so nothing was changed; it now shows the current chat")


class Sessions(Generic[T]):
    """Chats by key.

    Args:
        begin: Begins a chat.
        capacity: Maximum number of chats; beyond it, the least recently used one is dropped.
    """

    def __init__(self, begin: Callable[[], T], capacity: int = 1000) -> None:
        self._begin, self._capacity, self._states, self._lock = begin, capacity, OrderedDict[str, T](), Lock()

    def open(self, key: object = None) -> tuple[str, T]:
        """Return the chat of a browser.

        Args:
            key: The key that the browser sent.

        Returns:
            The key, or a new one if it is malformed, and the chat, which is a new one if the key is unknown.
        """
        known = browser_key(key)
        with self._lock:
            if known not in self._states:
                self._states[known] = self._begin()
            state = self._states[known]
            self._states.move_to_end(known)
            while len(self._states) > self._capacity:
                self._states.popitem(last=False)
        return known, state


class ChatSessions(Sessions[ChatState]):
    """Chats with language models, which are empty at their beginning."""

    def __init__(self, begin: Callable[[], ChatState] = ChatState, capacity: int = 1000) -> None:
        super().__init__(begin, capacity)

    def keep(self, key: str, state: ChatState) -> ChatState:
        """Store the next state of a chat.

        Returns:
            The state with its revision.
        """
        _, before = self.open(key)
        kept = replace(state, revision=before.revision + 1)
        with self._lock:
            self._states[key] = kept
        return kept
