"""The chats of all browsers that talk to the page, so that a reload finds what was said.

They live as long as the program. A browser knows its chat by a key that nobody can guess. Whoever changes a chat says
which revision they have seen: a click on a page that shows an older one would be about another reply.
"""

from __future__ import annotations

import re
import uuid
from collections import OrderedDict
from dataclasses import replace
from threading import Lock

from rl4dialog.serving.chat_state import ChatState


class Sessions:
    """Chats by their keys.

    Args:
        capacity: How many are kept; one more, and the one that was not used for longest is forgotten.
    """

    def __init__(self, capacity: int = 1000) -> None:
        self._capacity, self._states, self._lock = capacity, OrderedDict[str, ChatState](), Lock()

    def open(self, key: object = None) -> tuple[str, ChatState]:
        """The chat of a browser.

        Args:
            key: What the browser says that its key is.

        Returns:
            The key, a new one if that was none, and the chat, an empty one if the key is not known.
        """
        known = key if isinstance(key, str) and re.fullmatch(r"[0-9a-f]{32}", key) else uuid.uuid4().hex
        with self._lock:
            state = self._states.setdefault(known, ChatState())
            self._states.move_to_end(known)
            while len(self._states) > self._capacity:
                self._states.popitem(last=False)
        return known, state

    def keep(self, key: str, state: ChatState) -> ChatState:
        """Take over the next state of a chat.

        Returns:
            The state with its revision.
        """
        _, before = self.open(key)
        kept = replace(state, revision=before.revision + 1)
        with self._lock:
            self._states[key] = kept
        return kept
