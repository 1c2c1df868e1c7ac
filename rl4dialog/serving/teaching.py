"""Teaching a model in conversations: it replies, a person accepts, rejects or corrects, and the conversation goes on.

The loop of convogym's ActiveGym (https://github.com/af1tang/convogym), in which a person chooses goals and corrects
replies; here, the judgements are written to a feedback file, and learned afterwards or, by a `Learner`, in between.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rl4dialog.core.errors import ConfigError, RL4DialogError
from rl4dialog.core.feedback import Feedback, JudgedReply, QueuedReplies, queue_id, read_feedback
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import PartnerReply
from rl4dialog.data.dialogue_text import with_goal, without_goal
from rl4dialog.data.ratings import latest
from rl4dialog.serving.chat import ChatModel
from rl4dialog.serving.judging import Judging

_MAX_TRIES = 8  # replies that are generated to find one that was not rejected yet
Answers = Callable[[str], PartnerReply]  # answers an utterance of the model, as the next one of a conversation


class Learner(Protocol):
    """Learns from corrections while the model is taught; methods return a note for the person."""

    def learn(self, prompt: str, reply: str) -> str:
        """Take a better reply to a prompt, and learn if it is time."""

    def keep(self) -> str:
        """Save what was learned."""

    def undo(self) -> str:
        """Return to what was kept last."""


@dataclass(frozen=True)
class Situation:
    """A place in a conversation at which a person begins to teach."""

    turns: Sequence[str]
    persona: str | None = None
    goal: str | None = None
    begin: Callable[[], Answers] | None = None  # begins a conversation with the partner, if there is one

    @property
    def place(self) -> tuple[str, ...]:
        """What identifies the situation in a feedback file."""
        return (self.persona or "", *self.turns)


@dataclass
class _Lesson:
    """The conversation of a person about a situation."""

    situation: Situation
    turns: list[str]
    goal: str | None
    answers: Answers | None = None
    goals_so_far: set[str | None] = field(default_factory=set)
    reply: str | None = None
    rejected: set[str] = field(default_factory=set)

    @property
    def persona(self) -> str | None:
        persona = self.situation.persona
        return persona if self.goal is None else with_goal([persona] if persona else [], self.goal)


class Teaching(Judging[Situation]):
    """Situations in which a person teaches a model, without those that are judged in the feedback file.

    An accepted or corrected reply continues the conversation with the partner's answer. After a rejected one, the model
    replies again. Its prompts have goals if there are any to choose from.
    """

    hint = "Rate a reply up, or correct it, to continue the conversation with it. Rate it down to see another one."

    def __init__(
        self,
        model: ChatModel,
        situations: Sequence[Situation],
        feedback: Path,
        seed: int | None = None,
        goals: Sequence[str] = (),
        learner: Learner | None = None,
    ) -> None:
        known = latest(read_feedback(feedback)) if feedback.exists() else []
        super().__init__(_not_judged(situations, known), len(situations), feedback, known)
        self._model, self._seed, self.goals, self.learner = model, seed, tuple(goals), learner
        self._lessons: dict[str, _Lesson] = {}
        self._n_asked = 0

    def current(self, person: str) -> QueuedReplies | None:
        if (lesson := self._lesson(person)) is None:
            return None
        if lesson.reply is None:
            lesson.reply = self._reply(lesson)
        reply, persona = lesson.reply, lesson.persona
        id, judged = queue_id(persona, lesson.turns, [reply]), [JudgedReply(self._model.name, reply)]
        return QueuedReplies(id, [*lesson.turns], judged, persona, "teach")

    def goal(self, person: str) -> str | None:
        lesson = self._lesson(person)
        return None if lesson is None else lesson.goal

    def rate(self, person: str, id: str, index: int, rating: int | None) -> str:
        lesson = self._lesson(person)
        if rating == -1 and lesson is not None and lesson.reply in lesson.rejected:
            raise ConfigError("this reply is already rejected; write a better one, or go to the next situation")
        return super().rate(person, id, index, rating)

    def correct(self, person: str, id: str, index: int, correction: str) -> str:
        self._model.dialogue_format.check_said(correction)
        prompt = self._prompt(lesson) if (lesson := self._lesson(person)) is not None else ""
        note = super().correct(person, id, index, correction)  # it is in the file before anything is learned
        return note if self.learner is None else f"{note} {self.learner.learn(prompt, correction.strip())}".rstrip()

    def skip(self, person: str, id: str) -> str:
        """Go to the next situation, also from one in which the model cannot reply."""
        lesson = self._lesson(person)
        if lesson is not None and lesson.reply is not None:
            self._shown(person, id)
        self._finish(person)
        return ""

    def set_goal(self, person: str, id: str, goal: str) -> str:
        """Let the model reply to another goal, one of :attr:`goals` or a new one."""
        if not self.goals:
            raise ConfigError("the samples have no goals, so the model has not learned to follow any")
        self._shown(person, id)
        goal, lesson = goal.strip(), self._lesson(person)
        assert lesson is not None
        self._model.dialogue_format.check_said(goal)
        if not goal:
            raise ConfigError(f"a goal cannot be empty; known goals are {', '.join(self.goals)}")
        lesson.goal, lesson.reply, lesson.rejected = goal, None, set()
        return f"This is a reply to the goal {goal}."

    def _after(self, person: str, feedback: Feedback) -> str:
        lesson = self._lesson(person)
        assert lesson is not None and lesson.reply is not None
        if feedback.rating == -1:
            return self._reject(lesson)
        said = lesson.reply if feedback.correction is None else feedback.correction
        try:
            if lesson.answers is None and lesson.situation.begin is not None:
                lesson.answers = lesson.situation.begin()
            answer = PartnerReply(leaves=True) if lesson.answers is None else lesson.answers(said)
        except RL4DialogError as error:
            self._finish(person)
            return f"The partner has no answer, so the conversation is over: {error}"
        if answer.leaves or answer.text is None:
            self._finish(person)
            return f"The partner said: {answer.text} The conversation is over." if answer.text else ""
        lesson.turns += [said, answer.text]
        lesson.goals_so_far.add(lesson.goal)
        lesson.goal, lesson.reply, lesson.rejected = self._next_goal(lesson), None, set()
        return ""

    def _reject(self, lesson: _Lesson) -> str:
        assert lesson.reply is not None
        lesson.rejected.add(lesson.reply)
        for _ in range(_MAX_TRIES):
            reply = self._reply(lesson)
            if reply not in lesson.rejected:
                lesson.reply = reply
                return "This is another reply."
        return "The model has no other reply; write a better one, or go to the next situation."

    def _next_goal(self, lesson: _Lesson) -> str | None:
        """A goal that the conversation has not had yet, or at least another one, at random."""
        if lesson.goal is None:
            return None
        new = [goal for goal in self.goals if goal not in lesson.goals_so_far]
        others = [goal for goal in self.goals if goal != lesson.goal]
        rng = random.Random("/".join([*lesson.situation.place, str(len(lesson.turns))]))
        return rng.choice(new or others or [lesson.goal])

    def _reply(self, lesson: _Lesson) -> str:
        self._n_asked += 1
        seed = None if self._seed is None else derive_seed(self._seed, "teach", self._n_asked)
        *_, last = self._model.stream(self._prompt(lesson), seed)
        return last.text

    def _prompt(self, lesson: _Lesson) -> str:
        dialogue_format = self._model.dialogue_format
        return dialogue_format.prompt(dialogue_format.context(lesson.turns), lesson.persona)

    def _lesson(self, person: str) -> _Lesson | None:
        if (situation := self._own(person)) is None:
            return None
        lesson = self._lessons.get(person)
        if lesson is None or lesson.situation is not situation:
            lesson = self._lessons[person] = _Lesson(situation, [*situation.turns], situation.goal)
        return lesson


def _not_judged(situations: Iterable[Situation], known: Iterable[Feedback]) -> dict[str, Situation]:
    """The situations that nobody judged, by number.

    Several may look alike, as in games with a secret: then each accepted or corrected reply stands for one of them.
    """
    n_judged: Counter[tuple[str, ...]] = Counter()
    touched = set()
    for each in (given for given in known if not given.rates_conversation):
        for persona in {each.persona or "", without_goal(each.persona or "")}:
            place = (persona, *each.turns)
            touched.add(place)
            n_judged[place] += each.kind == "correction" or each.rating == 1
    left = {}
    for number, situation in enumerate(situations):
        place = situation.place
        n_judged[place] = max(n_judged[place], place in touched)
        touched.discard(place)
        if n_judged[place]:
            n_judged[place] -= 1
        else:
            left[str(number)] = situation
    return left
