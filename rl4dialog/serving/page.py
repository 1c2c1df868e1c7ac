"""The web page: its Gradio components, and how they are updated. `page_chat` implements the actions.

All events that use a model or write feedback share one queue, so two tabs never use a model at the same time. The
server keeps the chat state; the browser stores only the key of its chat.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from rl4dialog.core.errors import ConfigError, RL4DialogError
from rl4dialog.serving.chat_state import ChatState, Reply
from rl4dialog.serving.page_chat import PageChat
from rl4dialog.serving.page_html import conversation_html, escaped, status_html
from rl4dialog.serving.sessions import Sessions
from rl4dialog.serving.token_colours import QUANTITIES, common_scale, tokens_html

# One concurrency group for everything that must not run in parallel.
_IN_TURN = {"concurrency_id": "models", "concurrency_limit": 1}
_OUT_OF_DATE = "this page was out of date, so nothing was changed; it now shows the current chat"
_Updates = dict[Any, Any]

_logger = logging.getLogger(__name__)


def load_gradio() -> ModuleType:
    """Import gradio with its telemetry disabled.

    Raises:
        ConfigError: If it is not installed.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        return importlib.import_module("gradio")
    except ImportError as error:
        raise ConfigError(f"the page needs the package gradio: pip install 'rl4dialog[ui]' ({error})") from error


class ChatPage:
    """A web page for chatting with one or two models.

    Args:
        chat: Implements the actions.

    Attributes:
        blocks: The Gradio app.

    Raises:
        ConfigError: If Gradio is not installed.
    """

    def __init__(self, chat: PageChat) -> None:
        self._chat, self._sessions, self._gradio = chat, Sessions(), load_gradio()
        self._to_stop: set[str] = set()
        with self._gradio.Blocks(title="rl4dialog", analytics_enabled=False, fill_width=True) as self.blocks:
            self._add_components()
            self._add_events()

    # -- components ---------------------------------------------------------------------------------------------------

    def _add_components(self) -> None:
        gradio = self._gradio
        self._browser = gradio.BrowserState(None, storage_key="rl4dialog-chat", secret="rl4dialog")
        self._revision = gradio.State(-1)
        with gradio.Row():
            self._columns = [_ModelColumn(gradio, i, name) for i, name in enumerate(self._names())]
        with gradio.Row(visible=False, elem_id="choice") as self._choice:
            first, same, second = (
                gradio.Button(label, variant=variant, min_width=80, elem_id=f"choose-{i}")
                for i, (label, variant) in enumerate(
                    [("1 is better", "primary"), ("No difference", "secondary"), ("2 is better", "primary")]
                )
            )
            self._choices = {first: 0, same: None, second: 1}
        self._status = gradio.HTML("", elem_id="status")
        # Disabled until the page has loaded the state of the chat.
        with gradio.Row(equal_height=True):
            self._text = gradio.Textbox(
                show_label=False, container=False, placeholder="Type a message", lines=1, scale=8, min_width=140,
                elem_id="text", interactive=False,
            )  # fmt: skip
            self._send = gradio.Button(
                "Send", variant="primary", scale=1, min_width=70, elem_id="send", interactive=False
            )
            self._stop = gradio.Button("Stop", scale=1, min_width=70, elem_id="stop", interactive=False)
        with gradio.Row():
            self._undo = gradio.Button("Undo", size="sm", min_width=80, elem_id="undo", interactive=False)
            self._reset = gradio.Button("Reset", size="sm", min_width=80, elem_id="reset", interactive=False)
        with gradio.Row():
            self._colour = gradio.Radio(
                list(QUANTITIES), value=next(iter(QUANTITIES)), label="Color tokens by", elem_id="colour"
            )
            self._temperature = gradio.Number(
                None, label="Temperature (empty: run setting)", step=0.1, elem_id="temperature", min_width=200
            )
            self._beta = gradio.Number(
                None, label="beta of the values (empty: run setting)", step=1, elem_id="beta", min_width=200,
                visible=any(model.beta is not None for model in self._chat.models),
            )  # fmt: skip
            self._persona = gradio.Textbox(
                label="Persona", placeholder='Optional, e.g. "You are a waiter"', elem_id="persona", min_width=200
            )

    def _names(self) -> list[str]:
        """Model names as displayed; numbered if there are two."""
        names = [model.name for model in self._chat.models]
        return names if len(names) == 1 else [f"{i}: {name}" for i, name in enumerate(names, start=1)]

    def _add_events(self) -> None:
        outputs = [
            self._revision, self._status, self._choice, self._text, self._send, self._stop, self._undo, self._reset,
            self._temperature, self._beta, self._persona, *(part for column in self._columns for part in column.parts),
        ]  # fmt: skip
        seen = [self._browser, self._revision, self._colour]
        self.blocks.load(
            self._opened,
            [self._browser, self._colour],
            [self._browser, *outputs],
            api_name="open",
            show_progress="hidden",
        )
        self._gradio.on(
            [self._text.submit, self._send.click],
            self._sent,
            [*seen, self._text, self._persona, self._temperature, self._beta],
            outputs,
            api_name="send",
            show_progress="hidden",
            **_IN_TURN,
        )

        # Not queued, so that it acts while a reply is generated; Gradio's own cancellation waits between two tokens.
        self._stop.click(self._stopped, [self._browser], api_name="stop", queue=False)

        def on(events: list[Any], name: str, action: Callable[..., ChatState], *inputs: Any) -> None:
            def clicked(key: object, revision: int, colour: str, *values: Any) -> _Updates:
                return self._clicked(key, revision, colour, lambda state: action(state, *values))

            self._gradio.on(
                events, clicked, [*seen, *inputs], outputs, api_name=name, show_progress="hidden", **_IN_TURN
            )

        chat = self._chat
        on([self._undo.click], "undo", chat.undo)
        on([self._reset.click], "reset", chat.reset)
        for button, i in self._choices.items():
            on([button.click], f"choose_{'none' if i is None else i}", lambda state, i=i: chat.choose(state, i))
        for i, column in enumerate(self._columns):
            on([column.up.click], f"rate_up_{i}", lambda state, i=i: chat.rate(state, i, 1))
            on([column.down.click], f"rate_down_{i}", lambda state, i=i: chat.rate(state, i, -1))
            on(
                [column.correct.click, column.correction.submit],
                f"correct_{i}",
                lambda state, text, i=i: chat.correct(state, i, text),
                column.correction,
            )
        self._colour.input(self._recoloured, seen, outputs, api_name="colour", show_progress="hidden", **_IN_TURN)

    # -- events -------------------------------------------------------------------------------------------------------

    def _opened(self, key: object, colour: str) -> _Updates:
        known, state = self._sessions.open(key)
        settings = {self._persona: state.persona or "", self._temperature: state.temperature, self._beta: state.beta}
        ready = {self._text: self._gradio.update(interactive=True)}
        return {self._browser: known, **settings, **ready, **self._shown(state, colour)}

    def _sent(
        self,
        key: object,
        revision: int,
        colour: str,
        text: str,
        persona: str,
        temperature: float | None,
        beta: float | None = None,
    ) -> Iterator[_Updates]:
        known, state = self._sessions.open(key)
        if state.revision != revision:
            yield self._shown(state, colour, _OUT_OF_DATE)
            return
        self._to_stop.discard(known)
        is_taken = False
        try:
            for step in self._chat.send(state, text, persona, temperature, beta, lambda: known in self._to_stop):
                state = self._sessions.keep(known, step)
                begin = {} if is_taken else {self._text: "", **self._shown(state, colour, is_busy=True)}
                is_taken = True
                yield {**begin, self._revision: state.revision, **self._conversations(state, is_busy=True)}
        except Exception as error:
            # The page must stay usable after any failure of a model, such as an out-of-memory error.
            if not isinstance(error, RL4DialogError):
                _logger.exception("a reply failed")
            state = self._sessions.keep(known, state.settled())
            yield self._shown(state, colour, str(error) or type(error).__name__)
            return
        yield self._shown(state, colour)

    def _stopped(self, key: object) -> None:
        known, _ = self._sessions.open(key)
        self._to_stop.add(known)

    def _clicked(self, key: object, revision: int, colour: str, action: Callable[[ChatState], ChatState]) -> _Updates:
        known, state = self._sessions.open(key)
        if state.revision != revision:
            return self._shown(state, colour, _OUT_OF_DATE)
        try:
            state = self._sessions.keep(known, action(state))
        except RL4DialogError as error:
            return self._shown(state, colour, str(error))
        return self._shown(state, colour)

    def _recoloured(self, key: object, revision: int, colour: str) -> _Updates:
        _, state = self._sessions.open(key)
        return self._tokens(state, colour)

    # -- what is shown ------------------------------------------------------------------------------------------------

    def _shown(self, state: ChatState, colour: str, problem: str = "", is_busy: bool = False) -> _Updates:
        """Updates of all components that depend on the state."""
        gradio, is_judged = self._gradio, state.last is not None and not is_busy
        choice = len(self._columns) > 1 and state.awaits_choice and not is_busy
        updates = {
            self._revision: state.revision,
            self._status: status_html(problem, state.note),
            self._choice: gradio.update(visible=choice),
            self._stop: gradio.update(interactive=is_busy),
            **{button: gradio.update(interactive=not is_busy) for button in (self._send, self._undo, self._reset)},
            **self._conversations(state, is_busy),
            **self._tokens(state, colour, is_busy),
        }
        for i, column in enumerate(self._columns):
            is_shown = is_judged and state.last is not None and state.last.shows(i)
            updates |= column.judged(state.last.replies[i] if is_shown and state.last else None)
        return updates

    def _conversations(self, state: ChatState, is_busy: bool = False) -> _Updates:
        return {
            column.chat: conversation_html(column.name, state.messages(i), is_busy)
            for i, column in enumerate(self._columns)
        }

    def _tokens(self, state: ChatState, colour: str, is_busy: bool = False) -> _Updates:
        updates: _Updates = {column.tokens: "" for column in self._columns}
        if state.last is None or is_busy:
            return updates
        quantity = QUANTITIES[colour]
        origins = [state.last.origin(i) for i in range(len(self._columns))]
        own = [reply for reply, origin in zip(state.last.replies, origins, strict=True) if not origin]
        scale = common_scale(quantity, [reply.details for reply in own])
        for column, reply, origin in zip(self._columns, state.last.replies, origins, strict=True):
            if origin:
                updates[column.tokens] = _missing(f"No token details: this column shows {origin}")
                continue
            if reply.details is not None:
                found = tokens_html(reply.details, quantity, scale)
            else:
                found = _missing(f"No token details: {reply.no_details or 'the reply was stopped'}")
            updates[column.tokens] = found + (f'<p class="reward">{escaped(reply.reward)}</p>' if reply.reward else "")
        return updates


def _missing(why: str) -> str:
    return f'<p class="missing">{escaped(why)}</p>'


class _ModelColumn:
    """The components of one model."""

    def __init__(self, gradio: ModuleType, index: int, name: str) -> None:
        self._gradio, self.name = gradio, name
        with gradio.Column(min_width=300):
            self.chat = gradio.HTML(conversation_html(name, []), elem_id=f"chat-{index}")
            self.tokens = gradio.HTML("", elem_id=f"tokens-{index}")
            with gradio.Row():
                self.up = gradio.Button("Rate up", size="sm", min_width=80, elem_id=f"up-{index}", interactive=False)
                self.down = gradio.Button(
                    "Rate down", size="sm", min_width=80, elem_id=f"down-{index}", interactive=False
                )
            with gradio.Row(equal_height=True):
                self.correction = gradio.Textbox(
                    show_label=False, container=False, placeholder="A better reply", lines=1,
                    scale=4, min_width=150, elem_id=f"correction-{index}", interactive=False,
                )  # fmt: skip
                self.correct = gradio.Button(
                    "Correct", size="sm", scale=1, min_width=80, elem_id=f"correct-{index}", interactive=False
                )
        self.parts = [self.chat, self.tokens, self.up, self.down, self.correction, self.correct]

    def judged(self, reply: Reply | None) -> _Updates:
        """Updates of the feedback controls for the last reply; ``None`` if this column shows no reply of its own."""
        update = self._gradio.update
        is_possible, correction = reply is not None, reply.correction if reply else None
        is_rateable, rating = is_possible and correction is None, reply.rating if reply else None
        # Rating keeps a correction that is being typed; the next reply clears it.
        written = {} if is_rateable else {"value": correction or ""}
        return {
            self.up: update(interactive=is_rateable, variant="primary" if is_rateable and rating == 1 else "secondary"),
            self.down: update(
                interactive=is_rateable, variant="primary" if is_rateable and rating == -1 else "secondary"
            ),
            self.correction: update(interactive=is_possible, **written),
            self.correct: update(interactive=is_possible),
        }
