"""What people judge on a page or in the terminal, one reply, pair or conversation at a time for each person.

A judgement is written to disk before anything else happens, so none is lost if the command is killed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.feedback import Feedback, append_feedback, in_words, read_feedback
from rl4dialog.core.feedback_queue import QueuedReplies
from rl4dialog.data.latest_feedback import latest

T = TypeVar("T")

_OUT_OF_DATE = "this page was out of date, so nothing was recorded; it now shows what to judge"


class Standing(NamedTuple):
    """What the feedback file says about a reply.

    Attributes:
        rating: 1 for up, -1 for down, ``None`` if not rated.
        correction: The better version, if there is one.
    """

    rating: int | None = None
    correction: str | None = None


class Judging(ABC, Generic[T]):
    """Hands out things to judge, a different one to each person, and records the judgements.

    Args:
        left: The things that are not judged yet, by key, in order.
        n_things: Number of all things.
        feedback: File to which judgements are appended.
        known: What it had before.

    Attributes:
        feedback: The same.
        given: The judgements that were made here.
        goals: Goals that a person can choose from; empty if the model's prompts have none.
        hint: What a person is to do.
        advice: How to change one's mind.
    """

    hint: str
    advice: str = ""
    goals: Sequence[str] = ()

    def __init__(self, left: Mapping[str, T], n_things: int, feedback: Path, known: Sequence[Feedback] = ()) -> None:
        self.feedback, self.given = feedback, list[Feedback]()
        self._known = list(known)
        self._left, self._n_things = dict(left), n_things
        self._keys: dict[str, str] = {}  # what each person has

    @abstractmethod
    def current(self, person: str) -> QueuedReplies | None:
        """What a person judges now; ``None`` after the last one."""

    @abstractmethod
    def _after(self, person: str, feedback: Feedback) -> str:
        """Continue after a judgement, which is already written; returns a note for the user."""

    @property
    def is_done(self) -> bool:
        """Whether everything is judged or passed over."""
        return not self._left

    @property
    def progress(self) -> str:
        """How many things are judged or passed over, in words."""
        return f"{self._n_things - len(self._left)} of {self._n_things} done."

    def choose(self, person: str, id: str, index: int) -> str:
        """Choose the better reply of the current pair.

        Args:
            person: Who judges.
            id: Id of the replies on the page.
            index: Index of the reply.

        Returns:
            A note for the user.
        """
        return self._record(person, self._shown(person, id).chosen(index))

    def rate(self, person: str, id: str, index: int, rating: int | None) -> str:
        """Rate a current reply, or the conversation: 1 for up, -1 for down, ``None`` to take the rating back.

        Otherwise like :meth:`choose`.
        """
        shown = self._shown(person, id)
        if rating is not None:
            return self._record(person, shown.rated(index, rating))
        before = self.standing(shown)[index].rating
        if before is None:
            raise ConfigError("this reply has no rating to take back")
        return self._withdraw(shown.rated(index, before))

    def correct(self, person: str, id: str, index: int, correction: str) -> str:
        """Record a better version of one of the current replies; its own text takes an earlier version back.

        Otherwise like :meth:`choose`.
        """
        shown, text = self._shown(person, id), correction.strip()
        before = self.standing(shown)[index].correction
        if before is not None and text == shown.replies[index].text.strip():
            return self._withdraw(shown.corrected(index, before))
        if not text or text == shown.replies[index].text:
            raise ConfigError("a correction must not be empty, and must differ from the reply")
        return self._record(person, shown.corrected(index, text))

    def skip(self, person: str, id: str) -> str:
        """Pass over what a person has. Without a judgement, it is shown again when the command is started again."""
        self._shown(person, id)
        self._finish(person)
        return "Nothing was recorded."

    def can_go_back(self, person: str) -> bool:
        """Whether there is something to go back to."""
        del person
        return False

    def go_back(self, person: str, id: str) -> str:
        """Show again what a person judged or passed over before, and take that judgement back."""
        raise ConfigError("there is nothing to go back to")

    def standing(self, shown: QueuedReplies) -> list[Standing]:
        """What the feedback file says about each of the replies."""
        place = (shown.persona, *shown.turns)
        found = dict[str, Standing]()
        for each in latest([*self._known, *self.given]):
            is_alike = each.kind != "preference" and each.rates_conversation == shown.is_conversation
            if is_alike and (each.persona, *each.turns) == place:
                text = each.replies[0].text
                before = found.get(text, Standing())
                found[text] = Standing(
                    before.rating if each.rating is None else each.rating, each.correction or before.correction
                )
        return [found.get(reply.text, Standing()) for reply in shown.replies]

    def goal(self, person: str) -> str | None:
        """Goal of the reply that a person judges, if it has one."""
        del person
        return None

    def set_goal(self, person: str, id: str, goal: str) -> str:
        """Let the model reply to another goal."""
        raise ConfigError("these replies have no goals")

    def _withdraw(self, feedback: Feedback) -> str:
        withdrawn = feedback.withdrawal()
        append_feedback(self.feedback, withdrawn)
        self.given.append(withdrawn)
        return f"The {in_words(feedback.kind)} was withdrawn in {self.feedback}."

    def _record(self, person: str, feedback: Feedback) -> str:
        append_feedback(self.feedback, feedback)
        self.given.append(feedback)
        note = f"The {in_words(feedback.kind)} was appended to {self.feedback}."
        return f"{note} {self._after(person, feedback)}".rstrip()

    def _shown(self, person: str, id: str) -> QueuedReplies:
        current = self.current(person)
        if current is None or current.id != id:
            raise ConfigError(_OUT_OF_DATE)
        return current

    def _own(self, person: str) -> T | None:
        """What a person has: the same as before until it is finished, then something that nobody else has.

        If others have all that is left, it is shared, since they may have closed their pages.
        """
        if self._keys.get(person) not in self._left:
            taken = set(self._keys.values())
            key = next((key for key in self._left if key not in taken), next(iter(self._left), None))
            self._keys.pop(person, None)
            if key is None:
                return None
            self._keys[person] = key
        return self._left[self._keys[person]]

    def _finish(self, person: str) -> None:
        self._left.pop(self._keys.pop(person), None)


class QueueJudging(Judging[QueuedReplies]):
    """A queue, from the first replies that nobody judged.

    Args:
        queue: The queue.
        feedback: File to which judgements are appended. What is judged in it is not shown again.
    """

    hint = "Choose the better reply, or rate a single one. The pencil writes a better version."
    advice = (
        "To take a rating back, click its thumb again; to take a correction back, restore the text of the reply. "
        "Back shows what you judged before, and takes that judgement back."
    )

    def __init__(self, queue: Sequence[QueuedReplies], feedback: Path) -> None:
        known = latest(read_feedback(feedback)) if feedback.exists() else []
        left = {each.id: each for each in queue if not any(map(each.is_judged_by, known))}
        super().__init__(left, len({each.id for each in queue}), feedback, known)
        # What each person judged or passed over, with the judgement that finished it.
        self._past: dict[str, list[tuple[QueuedReplies, Feedback | None]]] = {}

    def current(self, person: str) -> QueuedReplies | None:
        return self._own(person)

    def _after(self, person: str, feedback: Feedback) -> str:
        shown = self._own(person)
        assert shown is not None
        # Ratings and corrections of a pair are extras: the pair stays until the better reply is chosen.
        if shown.is_judged_by(feedback):
            self._past.setdefault(person, []).append((shown, feedback))
            self._finish(person)
        return ""

    def skip(self, person: str, id: str) -> str:
        self._past.setdefault(person, []).append((self._shown(person, id), None))
        return super().skip(person, id)

    def can_go_back(self, person: str) -> bool:
        return bool(self._past.get(person))

    def go_back(self, person: str, id: str) -> str:
        current = self.current(person)
        if not self.can_go_back(person):
            raise ConfigError("there is nothing to go back to")
        if (current.id if current else "") != id:
            raise ConfigError(_OUT_OF_DATE)
        shown, feedback = self._past[person][-1]
        note = "" if feedback is None else self._withdraw(feedback)
        self._past[person].pop()
        self._left[shown.id], self._keys[person] = shown, shown.id
        return note
