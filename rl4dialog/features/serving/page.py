"""The page of ``rl4dialog ui``: conversations as tall as the window, what is beneath them, and a sidebar for settings.

Conversations are Gradio's Chatbot, so a reply is judged on its bubble: thumbs rate it, the pencil corrects it, and
buttons beneath the last one choose. A bubble always shows what is recorded. `ChatPage`, `TaskPage` and `JudgingPage`
say what is on the page, and what its events do.

All events that use a model or write feedback share one queue, so two tabs never use a model at the same time. The
server keeps the chats; the browser stores only the key of its chat.
"""

from __future__ import annotations

import html
import logging
import os
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeVar

from rl4dialog.core.errors import ConfigError, RL4DialogError
from rl4dialog.core.registry import optional_module
from rl4dialog.core.untrusted import visible

T = TypeVar("T")
Updates = dict[Any, Any]
Options = Mapping[str, str]  # what can be chosen beneath the last reply: labels by name

RATINGS = {1: "Like", -1: "Dislike"}
_JOINER = "\u2060"
# How long a browser takes at most to show an update that another one follows.
_UPDATE_S = 0.2

_logger = logging.getLogger(__name__)


# -- texts of users and models ----------------------------------------------------------------------------------------


def escaped(text: str) -> str:
    """Escape a text for HTML, including braces and dollar signs, which are special in Gradio's templates."""
    found = html.escape(visible(text))
    for character in "{}$":
        found = found.replace(character, f"&#{ord(character)};")
    return found


def plain(text: str) -> str:
    """The text for a Chatbot, which reads texts as HTML: an invisible character after ``<`` and ``&`` prevents that.

    Escaped, the text would be wrong in the box in which it is edited.
    """
    return re.sub("([<&])", rf"\1{_JOINER}", visible(text))


def without_joiners(text: str) -> str:
    """A text from a Chatbot as it was before :func:`plain`."""
    return re.sub(f"([<&]){_JOINER}", r"\1", text)


def help_html(hint: str, about: str = "", goal: str = "", title: str = "rl4dialog") -> str:
    """The top of the page: what to do, and what the conversation is about; a goal can be folded."""
    found = f'<h1>{escaped(title)}</h1><p class="hint">{escaped(hint)}</p>'
    found += f'<p class="about">{escaped(about)}</p>' if about else ""
    return found + (f"<details open><summary>Goal</summary>{escaped(goal)}</details>" if goal else "")


def paragraphs_html(heading: str, text: str) -> str:
    """A text whose paragraphs are separated by empty lines, under a heading if there is one."""
    parts = "".join(f"<p>{escaped(part)}</p>" for part in re.split(r"\n\s*\n", text.strip()))
    return (f"<h2>{escaped(heading)}</h2>" if heading else "") + parts


def note_html(text: str, is_strong: bool = False) -> str:
    shown = f"<strong>{escaped(text)}</strong>" if is_strong else escaped(text)
    return f'<p class="remark">{shown}</p>' if text else ""


def status_html(problem: str, note: str) -> str:
    """The result of the last action, or why it failed."""
    if problem:
        return f'<p class="problem" role="alert">error: {escaped(problem)}</p>'
    return f'<p class="note" role="status">{escaped(note)}</p>' if note else ""


# -- chats of all browsers --------------------------------------------------------------------------------------------


def browser_key(key: object = None) -> str:
    """The key that a browser sent, or a new one if it is malformed."""
    return key if isinstance(key, str) and re.fullmatch(r"[0-9a-f]{32}", key) else uuid.uuid4().hex


class Sessions(Generic[T]):
    """Chats in memory, by the unguessable keys of browsers, so that a chat survives a reload.

    Beyond the capacity, the least recently used chat is dropped.
    """

    def __init__(self, begin: Callable[[], T], capacity: int = 1000) -> None:
        self._begin, self._capacity, self._states, self._lock = begin, capacity, OrderedDict[str, T](), Lock()

    def open(self, key: str) -> T:
        """The chat of a browser, which is a new one if the key is unknown."""
        with self._lock:
            if key not in self._states:
                self._states[key] = self._begin()
            self._states.move_to_end(key)
            while len(self._states) > self._capacity:
                self._states.popitem(last=False)
            return self._states[key]

    def keep(self, key: str, state: T) -> T:
        self.open(key)
        with self._lock:
            self._states[key] = state
        return state


# -- the page ---------------------------------------------------------------------------------------------------------


def load_gradio() -> ModuleType:
    """Import gradio with its telemetry disabled."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    return optional_module("gradio", "ui", "the page")


@dataclass(frozen=True)
class Bubble:
    """A message of a ``user`` or an ``assistant``, with the HTML beneath it.

    A reply that `is_typed` is still being generated.
    """

    role: str
    text: str
    html: str = ""
    rating: int | None = None
    is_typed: bool = False


@dataclass(frozen=True)
class BubbleEvent:
    """A click on a bubble: number of the message, the new text or name of the option, and the rating if it is one."""

    index: int
    value: str
    rating: int | None


class Visit(NamedTuple):
    """Who does something on a page, what they saw there, and where they clicked.

    The revision is that of the state that the page showed, so that an action on an outdated page is not applied to
    another reply. Options are values of :attr:`Page.options`.
    """

    person: str
    revision: Any
    options: Sequence[Any]
    click: BubbleEvent


class ConversationColumn:
    """A conversation with one model."""

    def __init__(
        self, gradio: ModuleType, index: int, label: str, placeholder: str, examples: Sequence[str] = ()
    ) -> None:
        self._gradio, self._n_shown = gradio, 0
        with gradio.Column(min_width=280, elem_classes="conversation") as self.box:
            self.chat = gradio.Chatbot(
                label=label, elem_id=f"chat-{index}", height="100%", scale=1, layout="bubble", buttons=["copy"],
                render_markdown=False, latex_delimiters=[], placeholder=placeholder,
                examples=[{"text": text} for text in examples],
            )  # fmt: skip

    def shown(
        self,
        bubbles: Sequence[Bubble],
        options: Options | None = None,
        can_judge: bool = True,
        can_correct: bool = True,
        is_visible: bool = True,
        label: str | None = None,
    ) -> Updates:
        """Updates that show a conversation, with options beneath its last message, or whose replies can be judged."""
        messages = [self._message(bubble) for bubble in bubbles]
        if options:
            if bubbles[-1].role == "user":  # Gradio has options beneath replies only; the style hides an empty one
                messages.append(self._message(Bubble("assistant", "")))
            messages[-1]["options"] = [{"value": value, "label": label} for value, label in options.items()]
        ratings = [each.rating for each in bubbles if each.role == "assistant"]
        chat = self._gradio.update(
            value=messages,
            feedback_value=[self._unrated() if each is None else RATINGS[each] for each in ratings],
            feedback_options=list(RATINGS.values()) if can_judge else [],
            editable="all" if can_judge and can_correct else "none",  # Gradio does not send a None
            **({} if label is None else {"label": label}),
        )
        return {self.chat: chat, self.box: self._gradio.update(visible=is_visible)}

    def typed(self, bubbles: Sequence[Bubble]) -> Updates:
        return {self.chat: self._gradio.update(value=[self._message(bubble) for bubble in bubbles])}

    def with_unsaved(self, shown: Updates, click: BubbleEvent) -> None:
        """Show an edited text that was not saved, so that the pencil finds it again."""
        messages = shown[self.chat]["value"]
        if click.value.strip() and 0 <= click.index < len(messages):
            edited = Bubble(messages[click.index]["role"], click.value, note_html("not saved"))
            messages[click.index] |= self._message(edited)

    def unrated(self, n_replies: int) -> Updates:
        return {self.chat: self._gradio.update(feedback_value=[self._unrated()] * n_replies)}

    def _unrated(self) -> str:
        """A value for which no thumb is highlighted.

        A browser highlights a thumb that is clicked, and looks at the value again only if it differs from the last one.
        """
        self._n_shown += 1
        return f"unrated {self._n_shown}"

    def _message(self, bubble: Bubble) -> dict[str, Any]:
        content: list[Any] = [{"type": "text", "text": plain(bubble.text)}]
        if bubble.html:  # when such a text is edited, Gradio 6.31 sends it, then logs an error about the HTML
            content.append(self._gradio.HTML(bubble.html, render=False))
        # Gradio's sign that more is to come.
        return {"role": bubble.role, "content": content, "metadata": {"status": "done"} if bubble.is_typed else {}}


class Page(ABC, Generic[T]):
    """A page: a line of help, conversations side by side, what is beneath them, and a sidebar.

    Each browser has a chat of type ``T``, with a ``revision``. The `options` are components that decide how its state
    is shown, the `outputs` those that depend on it.
    """

    mode: str  # CSS class, and part of the name under which a browser stores its key
    hint: str  # what a person can do, in a line
    title = "rl4dialog"
    about = ""  # who talks here to whom
    examples: Sequence[str] = ()  # messages to begin with

    def __init__(self, names: Sequence[str], placeholder: str, begin: Callable[[], T]) -> None:
        gradio = self._gradio = load_gradio()
        self._sessions = Sessions(begin)
        self.options: list[Any] = []
        with gradio.Blocks(title="rl4dialog", analytics_enabled=False, fill_height=True, fill_width=True) as blocks:
            self.blocks = blocks
            self._browser = gradio.BrowserState(None, storage_key=f"rl4dialog-{self.mode}", secret="rl4dialog")
            self._revision = gradio.State(-1)
            with gradio.Sidebar(open=False, label="Settings", elem_id="settings"):
                self._add_settings()
            self._help = gradio.HTML(help_html(self.hint, self.about, title=self.title), elem_id="help")
            unsaved = gradio.HTML(elem_id="unsaved")
            blocks.load(None, None, unsaved, js="unsaved", api_name=False)
            with gradio.Row(elem_id="conversations", elem_classes=self.mode, scale=1):
                self._columns = [
                    ConversationColumn(gradio, i, name, placeholder, self.examples) for i, name in enumerate(names)
                ]
            self._chats = [column.chat for column in self._columns]
            # Models never generate for two tabs at the same time, and feedback is written by one at a time.
            in_turn = {"concurrency_id": "models", "concurrency_limit": 1}
            self._busy: dict[str, Any] = {"show_progress": "minimal", "show_progress_on": self._chats, **in_turn}
            below = self._add_below()
            self._status = gradio.HTML("", elem_id="status")
            parts = [part for column in self._columns for part in (column.box, column.chat)]
            self.outputs = [self._revision, self._help, self._status, *below, *parts]
            self._add_events()

    @abstractmethod
    def _add_settings(self) -> None:
        """Add the components of the sidebar."""

    @abstractmethod
    def _add_below(self) -> list[Any]:
        """Add components beneath the conversations; returns those that depend on the state."""

    @abstractmethod
    def _add_events(self) -> None:
        """Connect the components."""

    @abstractmethod
    def _shown(self, visit: Visit, problem: str = "", note: str = "") -> Updates:
        """Updates of all components that depend on the state; a problem is why the last action failed."""

    def _add_message_box(self) -> Any:
        """Add the box for messages, disabled until the page has loaded the state of the chat."""
        self._text = self._gradio.Textbox(
            label="Message", show_label=False, container=False, placeholder="Type a message", lines=1, max_lines=6,
            elem_id="text", submit_btn=True, autofocus=True, interactive=False,
        )  # fmt: skip
        self.blocks.load(None, None, self._text, js="() => kept('message')", api_name=False)
        return self._text

    def _button(self, label: str, id: str | None = None) -> Any:
        return self._gradio.Button(label, min_width=80, elem_id=id or label.lower().replace(" ", "-"))

    def _on_load(
        self,
        restored: Sequence[Any] = (),
        restore: Callable[[Visit], Updates] = lambda visit: {},
        uses_model: bool = True,
    ) -> None:
        """Show the chat when a browser opens the page, and restore other components."""

        def opened(key: object, *options: Any) -> Updates:
            visit = Visit(browser_key(key), None, options, _parsed(None))
            return {self._browser: visit.person, **restore(visit), **self._shown(visit)}

        inputs, outputs = [self._browser, *self.options], [self._browser, *restored, *self.outputs]
        how = self._busy if uses_model else {"show_progress": "hidden"}
        self.blocks.load(opened, inputs, outputs, api_name="open", **how)

    def _on(
        self,
        listen: Callable[..., Any],
        name: str,
        act: Callable[..., Iterator[Updates] | Updates | str | None],
        *inputs: Any,
        written: Any = None,
        edited: ConversationColumn | None = None,
        needs_current: bool = True,
        shows_progress: bool = True,
    ) -> None:
        """Connect an event, and name it in the API.

        `act` gets the visit and the values of the inputs. It returns a note for the person, further updates, or those
        while it goes on. Then the new state is shown, or why there is none: then the first input, if it is `written`
        text, stays, and so does a text that was `edited` in a column, unless the page was out of date. An event that
        changes nothing is exempt from the check of the state that the page showed.
        """
        n = len(self.options)

        def happened(event: Any, key: object, revision: Any, *values: Any) -> Iterator[Updates]:
            visit = Visit(browser_key(key), revision, values[:n], _parsed(event))
            try:
                if needs_current:
                    self._check_revision(visit)
                found = act(visit, *values[n:])
                if isinstance(found, Iterator):
                    yield from found
            except Exception as error:
                shown = self._shown(visit, problem_of(error))
                if written is not None:
                    shown[written] = {**shown[written], "value": values[n]}
                if edited is not None and shown[self._revision] == revision:
                    edited.with_unsaved(shown, visit.click)
                yield from self._again(shown)
            else:
                updates = found if isinstance(found, dict) else {}
                yield {**self._shown(visit, note=found if isinstance(found, str) else ""), **updates}

        happened.__annotations__["event"] = self._gradio.EventData  # Gradio finds the parameter by its type
        listen(
            happened,
            [self._browser, self._revision, *self.options, *inputs],
            self.outputs,
            api_name=name,
            **self._busy | ({} if shows_progress else {"show_progress": "hidden"}),
        )

    def _check_revision(self, visit: Visit) -> None:
        current: Any = self._sessions.open(visit.person)
        if current.revision != visit.revision:
            raise ConfigError("this page was out of date, so nothing was changed; it now shows the current chat")

    def _again(self, shown: Updates) -> Iterator[Updates]:
        """Show what is recorded, where a browser highlights a thumb that was clicked in vain: first no rating."""
        if shown[self._chats[0]]["feedback_options"]:
            n_replies = len(shown[self._chats[0]]["value"])
            yield {part: update for column in self._columns for part, update in column.unrated(n_replies).items()}
            time.sleep(_UPDATE_S)
        yield shown


def problem_of(error: Exception) -> str:
    """What a person reads. The page must stay usable after any failure of a model, such as too little memory."""
    if not isinstance(error, RL4DialogError):
        _logger.error("a reply or a judgement failed", exc_info=error)
    return str(error) or type(error).__name__


def _parsed(event: Any) -> BubbleEvent:
    """What a browser says about a click, which may be anything."""
    said = getattr(event, "_data", None)
    said = said if isinstance(said, dict) else {}
    index, value, liked = said.get("index"), said.get("value"), said.get("liked")
    return BubbleEvent(
        index if isinstance(index, int) and not isinstance(index, bool) else -1,
        without_joiners(value) if isinstance(value, str) else "",
        1 if liked is True else -1 if liked is False else None,
    )
