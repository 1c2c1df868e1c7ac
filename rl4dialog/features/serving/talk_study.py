"""A study in which people talk to two models, which are not named, about goals, and rate each conversation.

Each person has as many conversations with one model as with the other, about different goals. Over all people, the
models come first equally often, and goals are talked about with both. A line of the file of answers is a conversation
of a log, with its rating and, if there are tools, its right calls.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rl4dialog.core.cache import content_hash
from rl4dialog.core.errors import ConfigError, DataError, RL4DialogError
from rl4dialog.core.feedback import Feedback, JudgedReply, QueuedReplies, queue_id
from rl4dialog.core.files import append_record, json_object, whole_lines
from rl4dialog.core.types import Sample
from rl4dialog.data.conversations.record import VERSION
from rl4dialog.data.dialogue_text import persona_in
from rl4dialog.data.studies import TalkStudy
from rl4dialog.features.serving.chat import Chat, ChatAgent, ChatState
from rl4dialog.features.serving.judging import Judging, Standing, StudyPage
from rl4dialog.features.serving.page import Options, Updates, Visit

_FIRST = "Please write the first message."
_CALLED = "(It used its system, and says nothing more.)"


class _Held(NamedTuple):
    """A conversation that a person has had."""

    rater: str
    model: int
    goal: str


@dataclass
class _Talk:
    """A conversation that a person has now."""

    model: int
    goal: str
    state: ChatState = field(default_factory=ChatState)


class TalkJudging(Judging[None]):
    """Conversations of people with two models. An answered conversation is in the file; others begin again."""

    judges_bubbles = False

    def __init__(
        self, study: TalkStudy, models: Sequence[ChatAgent], samples: Sequence[Sample], feedback: Path, seed: int = 0
    ) -> None:
        super().__init__({}, 0, feedback)
        self.study, self.hint, self._seed = study, study.question, seed
        self._models, self._chats = [*models], [Chat([each], feedback, seed, show_tokens=False) for each in models]
        infos = [each.meta_data or {} for each in samples]
        self._goals: dict[str, dict[str, Any]] = {
            goal: {key: value for key, value in info.items() if key not in ("history", "continuation")}
            for info in infos
            if (goal := persona_in(info, study.goal_key) or "")
        }
        if len(self._goals) < study.conversations:
            what = f"samples have {len(self._goals)} different goals in meta_data[{study.goal_key!r}]"
            keys = ", ".join(sorted({key for info in infos for key in info}))
            cure = f"set goal_key of the study (keys: {keys})"
            raise DataError(f"{what}, and each person has {study.conversations} conversations; {cure}")
        self._labels = {str(key): f"{key}: {label}" if label else str(key) for key, label in study.scale.items()}
        names = [each.name for each in models]
        self._held, self._talks = list[_Held](), dict[str, _Talk]()
        for line in filter(bytes.strip, whole_lines(feedback) if feedback.exists() else ()):
            record = json_object(line)
            if record.get("study") != study.title or record.get("system") not in names:
                known = f"the study {study.title!r} with {' and '.join(names)}"
                raise ConfigError(f"{feedback} has answers of another study than {known}; choose another --feedback")
            self._held.append(_Held(record["rater"], names.index(record["system"]), record["meta_data"]["goal"]))

    @property
    def is_done(self) -> bool:
        return False

    def counts(self, rater: str) -> tuple[int, int]:
        """How many conversations a person has rated, and how many are left."""
        n = sum(each.rater == rater for each in self._held)
        return n, self.study.conversations - n

    def current(self, person: str) -> QueuedReplies | None:
        talk = self._talk(person)
        if talk is None:
            return None
        said = self._heard(talk) or [_FIRST]
        id = queue_id(talk.goal, said, [str(talk.model), *map(str, self.counts(person))])
        return QueuedReplies(id, said[:-1], [JudgedReply("", said[-1])], talk.goal, is_conversation=True)

    def say(self, person: str, id: str, text: str) -> str:
        """Send a message to the model, and take its reply."""
        self._shown(person, id)
        talk = self._talk(person)
        assert talk is not None
        if not text.strip():
            raise ConfigError("a message cannot be empty")
        if sum(not each.of_tool for each in talk.state.exchanges) >= self.study.max_messages:
            raise ConfigError("this conversation is long enough: please rate it")
        *_, talk.state = self._chats[talk.model].send(talk.state, text)
        return ""

    def options(self, shown: QueuedReplies, standing: Standing) -> Options:
        return self._labels if shown.turns else {}

    def standing(self, shown: QueuedReplies) -> list[Standing]:
        return [Standing()]

    def pick(self, person: str, id: str, index: int, option: str) -> str:
        """Rate the conversation, which ends it."""
        shown = self._shown(person, id)
        if option not in self.options(shown, Standing()):
            raise ConfigError(f"an answer must be one of {', '.join(self._labels)}, not {option!r}")
        bounds = min(self.study.scale), max(self.study.scale)
        return self._record(person, shown.rated(0, int(option), scale=bounds, rater=person, study=self.study.title))

    def _append(self, feedback: Feedback, done: str) -> str:
        person = str(feedback.rater)
        talk = self._talk(person)
        assert talk is not None
        record = {
            "version": VERSION,
            "id": f"{person}/{self.counts(person)[0] + 1}",
            "study": feedback.study,
            "rater": person,
            "system": self._models[talk.model].name,
            "messages": talk.state.messages(0),
            "meta_data": {**self._goals[talk.goal], "goal": talk.goal},
            "ratings": {"rating": feedback.rating},
            "outcome": self._outcome(talk),
        }
        try:
            append_record(self.feedback, record)
        except RL4DialogError as error:
            raise ConfigError(f"nothing was saved; please tell those who asked you to take part: {error}") from error
        return f"Your answer was saved: {self._labels[str(feedback.rating)]}."

    def _after(self, person: str, feedback: Feedback) -> str:
        talk = self._talks.pop(person)
        self._held.append(_Held(person, talk.model, talk.goal))
        return ""

    def _talk(self, person: str) -> _Talk | None:
        """The conversation of a person: the same until it is rated."""
        n_done, n_left = self.counts(person)
        if not person or not n_left:
            return None
        if person not in self._talks:
            self._talks[person] = self._assigned(person, n_done)
        return self._talks[person]

    def _assigned(self, person: str, n_done: int) -> _Talk:
        """The next conversation: what the person and, at this place and about this goal, all others had least."""
        place = Counter[str]()  # of each conversation among those of its person
        at_place, with_model, about = Counter[int](), Counter[tuple[int, str]](), Counter[str]()
        now = [_Held(rater, talk.model, talk.goal) for rater, talk in self._talks.items()]
        for each in (*self._held, *now):
            at_place[each.model] += place[each.rater] == n_done
            with_model[each.model, each.goal] += 1
            about[each.goal] += 1
            place[each.rater] += 1
        own = [each for each in self._held if each.rater == person]
        had = Counter(each.model for each in own)

        def by_chance(what: object) -> str:
            return content_hash([str(self._seed), person, str(n_done), str(what)])

        model = min(range(len(self._models)), key=lambda i: (had[i], at_place[i], by_chance(i)))
        free = self._goals.keys() - {each.goal for each in own}
        goal = min(free, key=lambda goal: (with_model[model, goal], about[goal], by_chance(goal)))
        return _Talk(model, goal)

    def _heard(self, talk: _Talk) -> list[str]:
        """What the person and the model said to each other, without calls of tools and their answers."""
        heard, toolbox = list[str](), self._models[talk.model].toolbox
        for each in talk.state.exchanges:
            said = [] if each.of_tool else [each.text]
            reply = each.said or "(no answer)"
            reply = _CALLED if toolbox is not None and toolbox.takes(reply) else reply
            heard = [*(heard[:-1] if each.of_tool else heard), *said, reply]
        return heard

    def _outcome(self, talk: _Talk) -> Mapping[str, float]:
        """Numbers about the calls, for which they are repeated."""
        if (toolbox := copy.deepcopy(self._models[talk.model].toolbox)) is None:
            return {}
        toolbox.reset(self._goals[talk.goal], 0)
        for said in talk.state.turns[1::2]:
            if toolbox.takes(said):
                toolbox.answer(said)
        return toolbox.outcome()


class TalkStudyPage(StudyPage):
    """The page of a study in which people talk: instructions and name, then one conversation after the other."""

    persona_label = "Your goal"

    def __init__(self, judging: TalkJudging) -> None:
        self._talks = judging
        super().__init__(judging)

    def _add_below(self) -> list[Any]:
        return [*super()._add_below(), self._add_message_box()]

    def _add_events(self) -> None:
        super()._add_events()
        say = self._talks.say
        self._on(
            self._text.submit, "send", lambda visit, text: say(*self._seen(visit), text), self._text, written=self._text
        )

    def _shown(self, visit: Visit, problem: str = "", note: str = "") -> Updates:
        updates = super()._shown(visit, problem, note)
        has_talk = bool(updates[self._revision][1])
        updates[self._skip] = {**updates[self._skip], "visible": False}
        updates[self._text] = self._gradio.update(value="", interactive=has_talk, visible=has_talk)
        return updates
