"""The page on which a person is the user of an agent for a task. `task_chat` has the dialogue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from rl4dialog.serving.page_frame import Bubble, Page, Updates, problem_of
from rl4dialog.serving.page_html import help_html, note_html, status_html
from rl4dialog.serving.sessions import Sessions, check_revision
from rl4dialog.serving.task_chat import NOTHING, Agent, TaskChat, in_words

_NEXT = "New goal or Free chat begins another dialogue."


class TaskPage(Page):
    """A web page for dialogues about goals. Each browser has an agent of its own, and begins with a goal.

    Args:
        begin: Returns an agent for another person.
    """

    def __init__(self, begin: Callable[[], Agent]) -> None:
        agent = begin()
        self._about = f"Talk about: {', '.join(agent.domains)}."

        def begin_chat() -> TaskChat:
            chat = TaskChat(begin())
            chat.draw_goal()
            return chat

        self._sessions = Sessions(begin_chat)
        super().__init__("rl4dialog-task", [agent.name], self._about, "task")

    @property
    def _hint(self) -> str:
        return "You are the user. Say goodbye, or press Done, when you have everything."

    # -- components ---------------------------------------------------------------------------------------------------

    def _add_settings(self) -> None:
        self._gradio.Markdown(
            "## Settings\nThe agent understands sentences, and dialogue acts as they are written beneath a message."
        )
        self._shows_acts = self._gradio.Checkbox(True, label="Show dialogue acts", elem_id="acts")

    def _add_below(self) -> None:
        self._add_message_box()
        with self._gradio.Row(elem_id="below"):
            self._done = self._gradio.Button("Done", min_width=80, elem_id="done")
            self._new_goal = self._gradio.Button("New goal", min_width=80, elem_id="new-goal")
            self._free_chat = self._gradio.Button("Free chat", min_width=80, elem_id="free-chat")

    def _add_events(self) -> None:
        outputs = [self._revision, self._help, self._status, self._text, self._done, *self._columns[0].parts]
        opening = [self._browser, self._shows_acts]
        self._on(self.blocks.load, "open", self._opened, opening, [self._browser, *outputs])
        seen = [self._browser, self._revision, self._shows_acts]
        self._on(self._text.submit, "send", self._sent, [*seen, self._text], outputs)
        self._on(self._done.click, "done", self._acting(TaskChat.end), seen, outputs)
        self._on(self._new_goal.click, "goal", self._acting(TaskChat.draw_goal), seen, outputs)
        self._on(self._free_chat.click, "reset", self._acting(TaskChat.reset), seen, outputs)
        self._on(self._shows_acts.input, "acts", self._opened, opening, [self._browser, *outputs])

    # -- events -------------------------------------------------------------------------------------------------------

    def _opened(self, key: object, shows_acts: bool) -> Updates:
        known, chat = self._sessions.open(key)
        return {self._browser: known, **self._shown(chat, shows_acts)}

    def _sent(self, key: object, revision: int, shows_acts: bool, text: str) -> Iterator[Updates]:
        _, chat = self._sessions.open(key)
        try:
            check_revision(chat.revision, revision)
            yield self._shown(chat, shows_acts, asked=text)
            chat.say(text)
        except Exception as error:
            yield {**self._shown(chat, shows_acts, problem_of(error)), self._text: self._text_box(chat, text)}
            return
        yield self._shown(chat, shows_acts)

    def _acting(self, action: Callable[[TaskChat], None]) -> Callable[..., Updates]:
        """A handler of a button."""

        def clicked(key: object, revision: int, shows_acts: bool) -> Updates:
            _, chat = self._sessions.open(key)
            try:
                check_revision(chat.revision, revision)
                action(chat)
            except Exception as error:
                return self._shown(chat, shows_acts, problem_of(error))
            return self._shown(chat, shows_acts)

        return clicked

    # -- what is shown ------------------------------------------------------------------------------------------------

    def _shown(self, chat: TaskChat, shows_acts: bool, problem: str = "", asked: str | None = None) -> Updates:
        """Updates of all components.

        Args:
            chat: The dialogue.
            shows_acts: Whether dialogue acts are shown.
            problem: Why the last action failed.
            asked: A message that the agent is replying to.
        """
        bubbles = self._bubbles(chat, shows_acts)
        if asked is not None:
            bubbles += [Bubble("user", asked), Bubble("assistant", "", is_typed=True)]
        return {
            self._revision: chat.revision,
            self._help: help_html(self._hint if chat.goal else f"You are the user. {self._about}", goal=chat.goal),
            self._status: status_html(problem, _NEXT if chat.is_over else ""),
            self._text: self._text_box(chat, None if asked is None else ""),
            self._done: self._gradio.update(interactive=bool(chat.score) and not chat.is_over),
            **self._columns[0].shown(bubbles, can_judge=False),
        }

    def _text_box(self, chat: TaskChat, text: str | None = None) -> Any:
        written = {} if text is None else {"value": text}
        can_send, hint = not chat.is_over, "The dialogue is over." if chat.is_over else "Type a message"
        return self._gradio.update(interactive=can_send, submit_btn=can_send, placeholder=hint, **written)

    def _bubbles(self, chat: TaskChat, shows_acts: bool) -> list[Bubble]:
        found = []
        for text, reply in chat.turns:
            understood, acts = f"understood: {in_words(reply.understood)}", f"acts: {in_words(reply.acts)}"
            found.append(Bubble("user", text, note_html(understood if shows_acts else "")))
            found.append(Bubble("assistant", reply.text or NOTHING, note_html(acts if shows_acts else "")))
        if chat.is_over:
            found[-1] = replace(found[-1], html=found[-1].html + note_html(chat.score, is_strong=True))
        return found
