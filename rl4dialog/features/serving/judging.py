"""What people judge, one reply, pair or conversation at a time for each person, and the page on which they do.

A judgement is written to disk before anything else happens, so none is lost if the command is killed. The page does not
name the models, so that it does not influence the choice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from rl4dialog.core.cache import content_hash
from rl4dialog.core.errors import ConfigError, RL4DialogError
from rl4dialog.core.feedback import Feedback, QueuedReplies, append_feedback, in_words, read_feedback
from rl4dialog.data.dialogue_format import chat_messages
from rl4dialog.data.ratings import latest
from rl4dialog.data.studies import Study, item_of, rater_of
from rl4dialog.features.serving.page import (
    Bubble,
    Options,
    Page,
    Updates,
    Visit,
    help_html,
    note_html,
    paragraphs_html,
    problem_of,
    status_html,
)

if TYPE_CHECKING:
    from rl4dialog.features.serving.talk_study import TalkJudging

T = TypeVar("T")

_OUT_OF_DATE = "this page was out of date, so nothing was recorded; it now shows what to judge"


class Standing(NamedTuple):
    """What the feedback file says about a reply: 1 for up or -1 for down, and a better version."""

    rating: int | None = None
    correction: str | None = None


class Judging(ABC, Generic[T]):
    """Hands out things to judge, a different one to each person, and records the judgements.

    Actions take the person and the id of the replies that they saw, and return a note for them. What is left to judge
    is given by key, in order, beside the number of all things, and what the feedback file had before.
    """

    hint: str  # what a person is to do
    advice: str = ""  # how to change one's mind
    judges_bubbles = True  # whether thumbs and pencils judge single replies
    goals: Sequence[str] = ()  # goals that a person can choose from; empty if the model's prompts have none

    def __init__(self, left: Mapping[str, T], n_things: int, feedback: Path, known: Sequence[Feedback] = ()) -> None:
        self.feedback, self.given = feedback, list[Feedback]()
        self._known, self._left, self._n_things = list(known), dict(left), n_things
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

    def options(self, shown: QueuedReplies, standing: Standing) -> Options:
        """What can be chosen beneath a reply."""
        return {"better": _choice(standing)} if shown.is_pair else {}

    def skip_label(self, shown: QueuedReplies | None) -> str:
        """What :meth:`skip` says about the replies."""
        return "No difference" if shown is not None and shown.is_pair else "Next"

    def pick(self, person: str, id: str, index: int, option: str) -> str:
        """Choose one of the options of a reply."""
        return self._record(person, self._shown(person, id).chosen(index))

    def rate(self, person: str, id: str, index: int, rating: int | None) -> str:
        """Rate a current reply, or the conversation: 1 for up, -1 for down, ``None`` to take the rating back."""
        shown = self._shown(person, id)
        if rating is not None:
            return self._record(person, shown.rated(index, rating))
        before = self.standing(shown)[index].rating
        if before is None:
            raise ConfigError("this reply has no rating to take back")
        return self._withdraw(shown.rated(index, before))

    def correct(self, person: str, id: str, index: int, correction: str) -> str:
        """Record a better version of one of the current replies; its own text takes an earlier version back."""
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
        return False

    def go_back(self, person: str, id: str) -> str:
        """Show again what a person judged or passed over before, and take that judgement back."""
        raise ConfigError("there is nothing to go back to")

    def standing(self, shown: QueuedReplies) -> list[Standing]:
        """What the feedback file says about each of the replies."""
        place, found = (shown.persona, *shown.turns), dict[str, Standing]()
        for each in latest([*self._known, *self.given]):
            is_alike = each.kind != "preference" and each.rates_conversation == shown.is_conversation
            if is_alike and (each.persona, *each.turns) == place:
                text = each.replies[0].text
                before = found.get(text, Standing())
                rating = before.rating if each.rating is None else each.rating
                found[text] = Standing(rating, each.correction or before.correction)
        return [found.get(reply.text, Standing()) for reply in shown.replies]

    def goal(self, person: str) -> str | None:
        """Goal of the reply that a person judges, if it has one."""
        return None

    def set_goal(self, person: str, id: str, goal: str) -> str:
        raise ConfigError("these replies have no goals")

    def _append(self, feedback: Feedback, done: str) -> str:
        append_feedback(self.feedback, feedback)
        self.given.append(feedback)
        return f"The {in_words(feedback.kind)} was {done} {self.feedback}."

    def _withdraw(self, feedback: Feedback) -> str:
        return self._append(feedback.withdrawal(), "withdrawn in")

    def _record(self, person: str, feedback: Feedback) -> str:
        return f"{self._append(feedback, 'appended to')} {self._after(person, feedback)}".rstrip()

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
    """A queue, from the first replies that nobody judged; what is judged in the file is not shown again."""

    hint = "Choose the better reply, or rate a single one. The pencil writes a better version."
    advice = "Back shows what you judged before, and takes that judgement back."

    def __init__(self, queue: Sequence[QueuedReplies], feedback: Path) -> None:
        known = latest(read_feedback(feedback)) if feedback.exists() else []
        left = {each.id: each for each in queue if not any(map(each.is_judged_by, known))}
        if any(each.is_pair for each in queue):
            self.advice = (
                "The keys 1 and 2 choose a reply. To take a rating back, click its thumb again; to take a correction "
                f"back, restore the text of the reply. {self.advice}"
            )
        else:
            self.hint = "Rate the reply. The pencil writes a better version."
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


class StudyJudging(QueueJudging):
    """A queue of which each rater answers each item once, until enough raters did.

    People are raters by name, so those of the same name in two tabs are one. Others that had an item on their page when
    it became complete can still answer.
    """

    judges_bubbles = False

    def __init__(self, study: Study, queue: Sequence[QueuedReplies], feedback: Path) -> None:
        super().__init__(queue, feedback)
        self.study, self.hint = study, study.question
        self._labels = {
            str(key): f"{key}: {label}" if label else str(key) for key, label in (study.scale or {}).items()
        }
        if any((each.study, each.scale) != (study.title, study.bounds) for each in self._known):
            raise ConfigError(
                f"{feedback} has answers of another study or scale than {study.title!r}; choose another --feedback"
            )
        self._left = {key: replace(each, id=key) for key, each in study.items(queue).items()}
        self._raters: dict[str, set[str]] = {key: set() for key in self._left}
        self._passed = set[tuple[str, str]]()  # raters and items that are over for them, answered or not
        for each in self._known:
            self._raters.setdefault(item_of(each), set()).add(str(each.rater))

    def counts(self, rater: str) -> tuple[int, int]:
        """How many items a rater answered, and how many are left for them."""
        return sum(rater in raters for raters in self._raters.values()), len(self._open(rater))

    def options(self, shown: QueuedReplies, standing: Standing) -> Options:
        return super().options(shown, standing) if self.study.scale is None else self._labels

    def skip_label(self, shown: QueuedReplies | None) -> str:
        return "No difference" if self._can_tie else "I cannot say"

    def standing(self, shown: QueuedReplies) -> list[Standing]:
        return [Standing() for _ in shown.replies]

    def pick(self, person: str, id: str, index: int, option: str) -> str:
        shown, options = self._shown(person, id), self.options(self._shown(person, id), Standing())
        if option not in options:
            raise ConfigError(f"an answer must be one of {', '.join(options)}, not {option!r}")
        if shown.is_pair:
            return self._record(person, shown.chosen(index, **self._by(person)))
        return self._record(person, shown.rated(0, int(option), scale=self.study.bounds, **self._by(person)))

    def skip(self, person: str, id: str) -> str:
        if self._can_tie:
            return self._record(person, self._shown(person, id).chosen(None, **self._by(person)))
        return super().skip(person, id)

    def go_back(self, person: str, id: str) -> str:
        note = super().go_back(person, id)
        self._passed.discard((person, self._keys[person]))
        return note

    @property
    def _can_tie(self) -> bool:
        return self.study.scale is None and self.study.no_difference

    def _by(self, rater: str) -> dict[str, Any]:
        return {"rater": rater, "study": self.study.title}

    def _append(self, feedback: Feedback, done: str) -> str:
        try:
            super()._append(feedback, done)
        except RL4DialogError as error:
            raise ConfigError(f"nothing was saved; please tell those who asked you to take part: {error}") from error
        raters = self._raters[item_of(feedback)]
        (raters.discard if feedback.withdrawn else raters.add)(str(feedback.rater))
        said = self._labels.get(str(feedback.rating), "No difference")
        said = said if feedback.chosen is None else f"Reply {feedback.chosen + 1}"
        return f"Your answer was {'taken back' if feedback.withdrawn else 'saved'}: {said}."

    def _open(self, rater: str) -> list[str]:
        """The items that a rater can answer."""
        n = self.study.raters_per_item
        return [
            key
            for key in self._left
            if rater not in self._raters[key]
            and (rater, key) not in self._passed
            and (len(self._raters[key]) < n or self._keys.get(rater) == key)
        ]

    def _own(self, person: str) -> QueuedReplies | None:
        """What a rater has: first what would not get too many raters if all who have it now answer."""
        if not person:
            return None
        if person not in self._keys:
            able, held, n = self._open(person), Counter(self._keys.values()), self.study.raters_per_item
            key = next((key for key in able if len(self._raters[key]) + held[key] < n), next(iter(able), None))
            if key is None:
                return None
            self._keys[person] = key
        shown = self._left[self._keys[person]]
        # Each rater sees the replies in an order of their own, since the first one may be preferred for its place.
        own_order = sorted(shown.replies, key=lambda each: content_hash([person, *shown.turns, each.text]))
        return replace(shown, replies=own_order)

    def _finish(self, person: str) -> None:
        self._passed.add((person, self._keys.pop(person)))


class JudgingPage(Page[None]):
    """A web page for ratings, corrections, and choices of two replies. Each browser has something else to judge."""

    mode = "judging"
    persona_label = "Persona"

    def __init__(self, judging: Judging[Any]) -> None:
        self._judging, self.hint = judging, judging.hint
        super().__init__(["Reply 1", "Reply 2"], "There is nothing left to judge.", lambda: None)

    def _add_settings(self) -> None:
        goals = list(self._judging.goals)
        self._gradio.Markdown(
            f"## Judging\nEach judgement is appended to `{self._judging.feedback}` at once.\n\n{self._judging.advice}"
        )
        with self._gradio.Group(visible=bool(goals), elem_id="goals"):
            self._goal = self._gradio.Dropdown(
                goals, value=None, allow_custom_value=True, label="Goal of the reply", elem_id="goal"
            )
            self._set_goal = self._gradio.Button("Reply to this goal", elem_id="set-goal")

    def _add_below(self) -> list[Any]:
        with self._gradio.Row(elem_id="below"):
            self._back, self._skip = self._button("Back"), self._button("Next", "skip")
        return [self._goal, self._set_goal, self._skip, self._back]

    def _add_events(self) -> None:
        judging, seen = self._judging, self._seen
        self._on_load()
        self._on(self._skip.click, "skip", lambda visit: judging.skip(*seen(visit)))
        self._on(self._back.click, "back", lambda visit: judging.go_back(*seen(visit)))
        self._on(self._set_goal.click, "goal", lambda visit, goal: judging.set_goal(*seen(visit), goal), self._goal)
        for i, column in enumerate(self._columns):
            bubble = column.chat
            self._on(bubble.option_select, f"choose_{i}", partial(self._picked, i))
            if not judging.judges_bubbles:
                continue
            self._on(bubble.like, f"rate_{i}", self._judged(i, judging.rate, "rating"))
            self._on(bubble.edit, f"correct_{i}", self._judged(i, judging.correct, "value"), edited=column)

    def _seen(self, visit: Visit) -> tuple[str, str]:
        """Who acts, and the id of the replies on the page."""
        return visit.person, visit.revision

    def _picked(self, index: int, visit: Visit) -> str:
        return self._judging.pick(*self._seen(visit), index, visit.click.value)

    def _check_revision(self, visit: Visit) -> None:
        """Nothing: the actions compare the revision, which is the id of the replies on the page."""

    def _judged(self, index: int, action: Callable[..., str], verdict: str) -> Callable[[Visit], str]:
        """A handler of a click on the bubble of a reply."""

        def act(visit: Visit) -> str:
            shown = self._judging.current(visit.person)
            if shown and not shown.is_conversation and visit.click.index != len(shown.turns):
                raise ConfigError("only the last reply can be judged")
            return action(*self._seen(visit), index, getattr(visit.click, verdict))

        return act

    def _shown(self, visit: Visit, problem: str = "", note: str = "") -> Updates:
        judging, update, person, replies = self._judging, self._gradio.update, self._seen(visit)[0], None
        try:
            replies = judging.current(person)
        except Exception as error:
            problem = problem_of(error)
        n = 0 if replies is None else len(replies.replies)
        is_whole = replies is not None and replies.is_conversation
        persona = "" if replies is None or not replies.persona else f"{self.persona_label}: {replies.persona}"
        updates = {
            self._revision: "" if replies is None else replies.id,
            self._help: help_html(self._hint(person, replies), persona, title=self.title),
            self._status: status_html(problem, note),
            self._goal: update(value=judging.goal(person), interactive=n > 0),
            self._set_goal: update(interactive=n > 0),
            self._skip: update(value=judging.skip_label(replies), interactive=not judging.is_done),
            self._back: update(visible=judging.can_go_back(person)),
        }
        standings = [] if replies is None else judging.standing(replies)
        for i, column in enumerate(self._columns):
            bubbles = [] if replies is None or i >= n else _bubbles(replies, i, standings[i])
            options = {} if replies is None or not bubbles else judging.options(replies, standings[i])
            label = f"Reply {i + 1}" if n == 2 else "Conversation" if is_whole else "Reply"
            can = {"can_judge": judging.judges_bubbles, "can_correct": not is_whole}
            updates |= column.shown(bubbles, options, **can, is_visible=i < max(n, 1), label=label)
        return updates

    def _hint(self, person: str, replies: QueuedReplies | None) -> str:
        """How many are done, and what a person is to do."""
        is_whole = replies is not None and replies.is_conversation
        hint = "The thumbs rate the whole conversation." if is_whole else self._judging.hint
        return f"{self._judging.progress} {'You can close this page.' if self._judging.is_done else hint}"


class StudyPage(JudgingPage):
    """The page of a study: first its instructions, where raters give their names, then one item after the other.

    Each tab has a rater, which is in its revision: tabs of one browser can have different ones.
    """

    mode = "judging study"
    persona_label = "Role of the computer program"

    def __init__(self, judging: StudyJudging | TalkJudging) -> None:
        self._of_study, self.title = judging, judging.study.title
        super().__init__(judging)

    def _add_settings(self) -> None:
        self._gradio.HTML(paragraphs_html("Instructions", self._of_study.study.instructions))
        with self._gradio.Group(visible=False):
            super()._add_settings()

    def _add_below(self) -> list[Any]:
        below, study = super()._add_below(), self._of_study.study
        with self._gradio.Column(elem_id="intro") as self._intro:
            consent = paragraphs_html("Consent", study.consent) if study.consent.strip() else ""
            again = "The arrow at the top left shows these instructions again. The keys 1, 2 and so on answer, too."
            self._gradio.HTML(paragraphs_html("", f"{study.instructions}\n\n{again}") + consent)
            self._name = self._gradio.Textbox(label="Your name or number", max_lines=1, elem_id="rater")
            self._begin = self._button("I agree; begin" if consent else "Begin", "begin")
        return [*below, self._intro]

    def _add_events(self) -> None:
        super()._add_events()
        # The name is in the address, so that a link can have it, and a reload keeps it.
        keep = "name => { history.replaceState(null, '', '?rater=' + encodeURIComponent(name)); }"
        for api_name, listen in (("begin", self._begin.click), ("begin_by_key", self._name.submit)):
            self._on(listen, api_name, self._begun, self._name)
            listen(None, self._name, None, js=keep, api_name=False)
        self.blocks.load(None, None, self._name, js="() => new URLSearchParams(location.search).get('rater') || ''")

    def _begun(self, visit: Visit, name: str) -> Updates:
        return self._shown(visit._replace(revision=(rater_of(name), "")))

    def _seen(self, visit: Visit) -> tuple[str, str]:
        return visit.revision if isinstance(visit.revision, tuple) else ("", "")

    def _hint(self, person: str, replies: QueuedReplies | None) -> str:
        if not person:
            return self._of_study.hint
        n_done, n_left = self._of_study.counts(person)
        if replies is None:
            return f"Thank you, {person}! You answered {n_done}, and nothing is left for you. You can close this page."
        return f"{self._of_study.hint} ({n_done} of {n_done + n_left} done)"

    def _shown(self, visit: Visit, problem: str = "", note: str = "") -> Updates:
        updates, (person, _) = super()._shown(visit, problem, note), self._seen(visit)
        id, update = updates[self._revision], self._gradio.update
        more = {
            self._revision: (person, id),
            self._intro: update(visible=not person),
            self._skip: {**updates[self._skip], "visible": bool(id)},
        }
        for column in self._columns if not id else ():
            more[column.box] = update(visible=False)
        return {**updates, **more}


def _bubbles(replies: QueuedReplies, index: int, standing: Standing) -> list[Bubble]:
    reply = replies.replies[index].text
    said = [Bubble(message["role"], message["content"]) for message in chat_messages(replies.turns)]
    below = "" if standing.correction is None else note_html(f"your correction of the reply: {reply}")
    rating = standing.rating if standing.correction is None else None
    answer = [] if replies.answer is None else [Bubble("user", replies.answer)]
    return [*said, Bubble("assistant", standing.correction or reply, below, rating), *answer]


def _choice(standing: Standing) -> str:
    """What chooses a reply: where its bubble shows a correction, the choice is still that of the model's text."""
    return "This reply is better" if standing.correction is None else "The original reply is better"
