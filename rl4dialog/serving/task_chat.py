"""A person's dialogue with an agent for a task, about a goal or without one, and its page."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from rl4dialog.core.errors import ConfigError
from rl4dialog.serving.page import Bubble, Page, Updates, Visit, help_html, note_html, status_html

NOTHING = "(nothing)"
"""What is shown for an agent that says nothing."""
_GOODBYE = "bye"
_NEXT = "New goal or Free chat begins another dialogue."
# The time to understand a text grows with the square of its length.
_MAX_CHARACTERS = 2000


class Agent(Protocol):
    """What the person talks to, as in `rl4dialog.inference.task_agent`."""

    name: str

    @property
    def domains(self) -> Sequence[str]:
        """What the agent can talk about."""

    def reset(self) -> None:
        """Begin a new dialogue, without a goal."""

    def draw_goal(self) -> str:
        """Begin a new dialogue about a goal, and return the goal in words."""

    def reply(self, text: str) -> Any:
        """Reply to what a person said: a `TaskReply`."""

    def outcome(self) -> Any:
        """Outcome of the dialogue so far, with `success` and `failures`; ``None`` without a goal or a dialogue."""


class TaskChat:
    """A dialogue with an agent for this person alone; after its end, the next one begins with a goal or a message.

    `turns` are what the person said, with the agent's reply. The goal is in words, and empty if there is none. The
    revision is another after each change, and in each chat.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent, self.goal, self.turns = agent, "", list[tuple[str, Any]]()
        self.is_over, self.revision = False, secrets.randbelow(2**31)
        self._final: Any = None  # outcome of a dialogue that is over

    @property
    def score(self) -> str:
        """Whether the goal is reached, and what is missing; empty without a goal or a dialogue."""
        if (outcome := self._outcome) is None:
            return ""
        return "Success: the goal is reached." if outcome.success else f"Failure: {'; '.join(outcome.failures)}."

    def reset(self) -> None:
        self.agent.reset()
        self._begin("")

    def draw_goal(self) -> None:
        self._begin(self.agent.draw_goal())

    def say(self, text: str) -> Any:
        """Say something to the agent; a goodbye ends the dialogue."""
        if len(text) > _MAX_CHARACTERS:
            raise ConfigError(f"a message can have at most {_MAX_CHARACTERS} characters, not {len(text)}; shorten it")
        if self.is_over:
            self.agent.reset()
        reply = self.agent.reply(text)
        if not reply.understood:
            domains = ", ".join(self.agent.domains)
            raise ConfigError(f"nothing was understood, so the agent did not answer; it knows: {domains}")
        if self.is_over:
            self._begin("")
        self.turns.append((text, reply))
        if any(act.intent == _GOODBYE for act in reply.understood):
            self._end()
        self.revision += 1
        return reply

    def end(self) -> None:
        if self.is_over or not self.turns or not self.score:
            raise ConfigError("there is no dialogue about a goal to score; begin one with a new goal (/goal)")
        self._end()
        self.revision += 1

    def record(self) -> Mapping[str, Any] | None:
        """The dialogue as a record for a file; ``None`` if nothing was said."""
        said = [
            {"role": role, "content": content}
            for text, reply in self.turns
            for role, content in (("user", text), ("assistant", reply.text))
        ]
        outcome = self._outcome
        scored = {} if outcome is None else {"goal_text": self.goal, "success": outcome.success}
        return {"messages": said, "model": self.agent.name, **scored} if said else None

    @property
    def _outcome(self) -> Any:
        return self._final if self.is_over else self.agent.outcome()

    def _end(self) -> None:
        self.is_over, self._final = True, self.agent.outcome()

    def _begin(self, goal: str) -> None:
        self.goal, self.turns, self.is_over = goal, [], False
        self.revision += 1


def in_words(acts: Sequence[Any]) -> str:
    return " ".join(map(str, acts)) or "none"


class TaskPage(Page[TaskChat]):
    """A web page for dialogues about goals. Each browser has an agent of its own, and begins with a goal."""

    mode = "task"
    hint = "You are the user. Say goodbye, or press Done, when you have everything."

    def __init__(self, begin: Callable[[], Agent]) -> None:
        def begin_chat() -> TaskChat:
            chat = TaskChat(begin())
            chat.draw_goal()
            return chat

        agent = begin()
        self._about = f"Talk about: {', '.join(agent.domains)}."
        super().__init__([agent.name], self._about, begin_chat)

    def _add_settings(self) -> None:
        self._gradio.Markdown(
            "## Settings\nThe agent understands sentences, and dialogue acts as they are written beneath a message."
        )
        self.options = [self._gradio.Checkbox(True, label="Show dialogue acts", elem_id="acts")]

    def _add_below(self) -> list[Any]:
        text = self._add_message_box()
        with self._gradio.Row(elem_id="below"):
            self._done, self._new_goal, self._free_chat = map(self._button, ("Done", "New goal", "Free chat"))
        return [text, self._done]

    def _add_events(self) -> None:
        self._on_load()
        self._on(self._text.submit, "send", self._sent, self._text, written=self._text)
        self._on(self._done.click, "done", lambda visit: self._chat(visit).end())
        self._on(self._new_goal.click, "goal", lambda visit: self._chat(visit).draw_goal())
        self._on(self._free_chat.click, "reset", lambda visit: self._chat(visit).reset())
        self._on(self.options[0].input, "acts", lambda visit: None, needs_current=False)

    def _chat(self, visit: Visit) -> TaskChat:
        return self._sessions.open(visit.person)

    def _sent(self, visit: Visit, text: str) -> Iterator[Updates]:
        yield self._shown(visit, asked=text)
        self._chat(visit).say(text)

    def _shown(self, visit: Visit, problem: str = "", note: str = "", asked: str | None = None) -> Updates:
        """Updates of all components; a message that was `asked` is the one that the agent is replying to."""
        chat, update = self._chat(visit), self._gradio.update
        (shows_acts,) = visit.options
        bubbles = _bubbles(chat, shows_acts)
        if asked is not None:
            bubbles += [Bubble("user", asked), Bubble("assistant", "", is_typed=True)]
        is_open, written = not chat.is_over, {} if asked is None else {"value": ""}
        placeholder = "Type a message" if is_open else "The dialogue is over."
        return {
            self._revision: chat.revision,
            self._help: help_html(self.hint if chat.goal else f"You are the user. {self._about}", goal=chat.goal),
            self._status: status_html(problem, "" if is_open else _NEXT),
            self._text: update(interactive=is_open, submit_btn=is_open, placeholder=placeholder, **written),
            self._done: update(interactive=bool(chat.score) and is_open),
            **self._columns[0].shown(bubbles, can_judge=False),
        }


def _bubbles(chat: TaskChat, shows_acts: bool) -> list[Bubble]:
    found = []
    for text, reply in chat.turns:
        understood, acts = f"understood: {in_words(reply.understood)}", f"acts: {in_words(reply.acts)}"
        below, below_reply = (note_html(understood), note_html(acts)) if shows_acts else ("", "")
        found += [Bubble("user", text, below), Bubble("assistant", reply.text or NOTHING, below_reply)]
    if chat.is_over:
        found[-1] = replace(found[-1], html=found[-1].html + note_html(chat.score, is_strong=True))
    return found
