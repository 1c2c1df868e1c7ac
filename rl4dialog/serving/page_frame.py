"""The frame of all pages of ``rl4dialog ui``: conversations as tall as the window, with a sidebar for settings.

Conversations are Gradio's Chatbot, so a reply is judged on its bubble: thumbs rate it, the pencil corrects it, and
buttons beneath the last one choose. A bubble always shows what is recorded. `page`, `task_page` and `judging_page`
fill the frame.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from rl4dialog.core.errors import ConfigError, RL4DialogError
from rl4dialog.serving.page_html import help_html, plain, without_joiners

Updates = dict[Any, Any]
Options = Mapping[str, str]
"""What can be chosen beneath the last reply: labels by name."""

RATINGS = {1: "Like", -1: "Dislike"}
# How long a browser takes at most to show an update that another one follows.
_UPDATE_S = 0.2

_logger = logging.getLogger(__name__)


def load_gradio() -> ModuleType:
    """Import gradio with its telemetry disabled."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        return importlib.import_module("gradio")
    except ImportError as error:
        raise ConfigError(f"the page needs the package gradio: pip install 'rl4dialog[ui]' ({error})") from error


@dataclass(frozen=True)
class Bubble:
    """A message in a conversation.

    Attributes:
        role: ``user`` or ``assistant``.
        text: Its text.
        html: What stands beneath the text.
        rating: 1 for up, -1 for down, ``None`` if not rated.
        is_typed: Whether the text is still being generated.
    """

    role: str
    text: str
    html: str = ""
    rating: int | None = None
    is_typed: bool = False


@dataclass(frozen=True)
class BubbleEvent:
    """A click on a bubble.

    Attributes:
        index: Number of the message in the conversation.
        value: The new text, or the name of the option.
        rating: 1 for up, -1 for down, ``None`` if it is taken back.
    """

    index: int
    value: str
    rating: int | None


class ConversationColumn:
    """A conversation with one model.

    Args:
        gradio: The package.
        index: Number of the column.
        label: What is shown as its name.
        placeholder: What it shows before the first message.
    """

    def __init__(self, gradio: ModuleType, index: int, label: str, placeholder: str) -> None:
        self._gradio, self._n_shown = gradio, 0
        with gradio.Column(min_width=280, elem_classes="conversation") as self.box:
            self.chat = gradio.Chatbot(
                label=label, elem_id=f"chat-{index}", height="100%", scale=1, layout="bubble", buttons=["copy"],
                render_markdown=False, latex_delimiters=[], placeholder=placeholder,
            )  # fmt: skip
        self.parts = [self.box, self.chat]

    def shown(
        self,
        bubbles: Sequence[Bubble],
        options: Options | None = None,
        can_judge: bool = True,
        can_correct: bool = True,
        is_visible: bool = True,
        label: str | None = None,
    ) -> Updates:
        """Updates that show a conversation.

        Args:
            bubbles: Its messages.
            options: What can be chosen beneath the last one.
            can_judge: Whether replies can be rated and corrected now.
            can_correct: Whether they can be corrected at all.
            is_visible: Whether the column is shown.
            label: Its new name.
        """
        messages = [self._message(bubble) for bubble in bubbles]
        if options:
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
        """Updates that show one more token."""
        return {self.chat: self._gradio.update(value=[self._message(bubble) for bubble in bubbles])}

    def unrated(self, n_replies: int) -> Updates:
        """Updates that show no rating."""
        return {self.chat: self._gradio.update(feedback_value=[self._unrated()] * n_replies)}

    def _unrated(self) -> str:
        """A value for which no thumb is highlighted.

        A browser highlights a thumb that is clicked, and looks at the value again only if it differs from the last one.
        """
        self._n_shown += 1
        return f"unrated {self._n_shown}"

    def _message(self, bubble: Bubble) -> dict[str, Any]:
        content: list[Any] = [{"type": "text", "text": plain(bubble.text)}]
        if bubble.html:
            content.append(self._gradio.HTML(bubble.html, render=False))
        # Gradio's sign that more is to come.
        return {"role": bubble.role, "content": content, "metadata": {"status": "done"} if bubble.is_typed else {}}


class Page(ABC):
    """A page: a line of help, conversations side by side, what is beneath them, and a sidebar.

    Attributes:
        blocks: The Gradio app.
    """

    def __init__(self, storage_key: str, names: Sequence[str], placeholder: str, mode: str = "chat") -> None:
        gradio = self._gradio = load_gradio()
        # Models never generate for two tabs at the same time, and feedback is written by one at a time.
        self._in_turn = {"concurrency_id": "models", "concurrency_limit": 1}
        with gradio.Blocks(title="rl4dialog", analytics_enabled=False, fill_height=True, fill_width=True) as blocks:
            self.blocks = blocks
            self._browser = gradio.BrowserState(None, storage_key=storage_key, secret="rl4dialog")
            with gradio.Sidebar(open=False, label="Settings", elem_id="settings"):
                self._add_settings()
            self._help = gradio.HTML(help_html(self._hint), elem_id="help")
            with gradio.Row(elem_id="conversations", elem_classes=mode, scale=1):
                self._columns = [ConversationColumn(gradio, i, name, placeholder) for i, name in enumerate(names)]
            self._add_below()
            self._status = gradio.HTML("", elem_id="status")
            self._add_events()

    @property
    @abstractmethod
    def _hint(self) -> str:
        """What a person can do, in a line."""

    @abstractmethod
    def _add_settings(self) -> None:
        """Add the components of the sidebar."""

    @abstractmethod
    def _add_below(self) -> None:
        """Add components beneath the conversations."""

    @abstractmethod
    def _add_events(self) -> None:
        """Connect the components."""

    def _add_message_box(self) -> None:
        """Add the box for messages, disabled until the page has loaded the state of the chat, and its revision."""
        self._revision = self._gradio.State(-1)
        self._text = self._gradio.Textbox(
            label="Message", show_label=False, container=False, placeholder="Type a message", lines=1, max_lines=6,
            elem_id="text", submit_btn=True, autofocus=True, interactive=False,
        )  # fmt: skip

    @property
    def _chats(self) -> list[Any]:
        return [column.chat for column in self._columns]

    def _on(self, listen: Callable[..., Any], name: str, act: Callable[..., Any], *lists: Sequence[Any]) -> None:
        """Connect an event whose progress the conversations show.

        Args:
            listen: The event.
            name: Its name in the API.
            act: Gets the values of the inputs.
            lists: Inputs, and outputs.
        """
        inputs, outputs = lists
        listen(
            act,
            list(inputs),
            list(outputs),
            api_name=name,
            show_progress="minimal",
            show_progress_on=self._chats,
            **self._in_turn,
        )

    def _on_bubble(
        self, listen: Callable[..., Any], name: str, act: Callable[..., Iterator[Updates]], *lists: Sequence[Any]
    ) -> None:
        """Connect a click on a bubble.

        Args:
            listen: The event.
            name: Its name in the API.
            act: Gets the event, and the values of the inputs.
            lists: Inputs, and outputs.
        """

        def clicked(event: Any, *values: Any) -> Iterator[Updates]:
            yield from act(_parsed(event), *values)

        clicked.__annotations__["event"] = self._gradio.EventData  # Gradio finds the parameter by its type
        self._on(listen, name, clicked, *lists)

    def _again(self, shown: Updates) -> Iterator[Updates]:
        """Show what is recorded, where a browser highlights a thumb that was clicked in vain: first no rating."""
        n_replies = len(shown[self._chats[0]].get("value") or ())
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
    said = event._data if isinstance(event._data, dict) else {}
    index, value, liked = said.get("index"), said.get("value"), said.get("liked")
    return BubbleEvent(
        index if isinstance(index, int) and not isinstance(index, bool) else -1,
        without_joiners(value) if isinstance(value, str) else "",
        1 if liked is True else -1 if liked is False else None,
    )
