"""The actions of the page for queues: choices between two replies, and corrections, written before they count."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.feedback import append_feedback, read_feedback
from rl4dialog.core.feedback_queue import QueuedPair


class PairJudging:
    """A queue of pairs, from the first one that nobody judged.

    Args:
        pairs: The queue.
        feedback: File to which judgements are appended. Pairs that are judged in it are not shown again.

    Attributes:
        n_pairs: Number of pairs of the queue.
        n_done: Number of pairs that were judged or passed over.
    """

    def __init__(self, pairs: Sequence[QueuedPair], feedback: Path) -> None:
        self._feedback, self.n_pairs = feedback, len(pairs)
        known = read_feedback(feedback) if feedback.exists() else []
        self._left = [pair for pair in pairs if not any(map(pair.is_judged_by, known))]

    @property
    def n_done(self) -> int:
        return self.n_pairs - len(self._left)

    @property
    def current(self) -> QueuedPair | None:
        """The pair to judge; ``None`` after the last one."""
        return self._left[0] if self._left else None

    def choose(self, id: str, index: int | None) -> str:
        """Choose the better reply of the current pair.

        Args:
            id: Id of the pair on the page.
            index: Index of the reply; ``None`` for no difference, which records nothing. Such a pair is shown again
                when the command is started again.

        Returns:
            A note for the user.

        Raises:
            ConfigError: If the page shows another pair than the current one.
            RunFolderError: If the choice cannot be written.
        """
        pair = self._shown(id)
        note = "Nothing was recorded."
        if index is not None:
            append_feedback(self._feedback, pair.chosen(index))
            note = f"The choice was appended to {self._feedback}."
        self._left.pop(0)
        return note

    def correct(self, id: str, index: int, correction: str) -> str:
        """Record a better version of one reply of the current pair, which stays to be judged.

        Raises:
            ConfigError: If the page shows another pair, or the correction is empty or changes nothing.
            RunFolderError: If it cannot be written.
        """
        pair, text = self._shown(id), correction.strip()
        if not text or text == pair.replies[index].text:
            raise ConfigError("a correction must not be empty, and must differ from the reply")
        append_feedback(self._feedback, pair.corrected(index, text))
        return f"The correction was appended to {self._feedback}."

    def _shown(self, id: str) -> QueuedPair:
        if self.current is None or self.current.id != id:
            raise ConfigError("this page was out of date, so nothing was recorded; it now shows the current pair")
        return self.current
