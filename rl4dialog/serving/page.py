"""The page of the chat: its controls and events. `page_chat` implements the actions, `page_frame` how it looks.

All events that use a model or write feedback share one queue, so two tabs never use a model at the same time. The
server keeps the chat state; the browser stores only the key of its chat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rl4dialog.core.errors import ConfigError, RL4DialogError
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.serving.chat_state import ChatState, Reply, Settings
from rl4dialog.serving.page_chat import PageChat
from rl4dialog.serving.page_frame import Bubble, BubbleEvent, Options, Page, Updates, problem_of
from rl4dialog.serving.page_html import note_html, status_html
from rl4dialog.serving.sessions import ChatSessions, check_revision
from rl4dialog.serving.token_colours import QUANTITIES, Quantity, Scale, common_scale, tokens_html

_NO_COLOUR = "none"
_BETTER, _SAME, _BACK = "better", "same", "back"
_BOTH = "both"


class ChatPage(Page):
    """A web page for chatting with one or two models.

    Args:
        chat: Implements the actions.
    """

    def __init__(self, chat: PageChat) -> None:
        settings = Settings(persona=chat.models[0].persona)
        self._chat, self._sessions = chat, ChatSessions(lambda: ChatState(settings))
        self._to_stop: set[str] = set()
        super().__init__("rl4dialog-chat", self._names(), "Type a message below.")

    def _names(self) -> list[str]:
        """Model names as displayed; numbered if there are two."""
        names = [model.name for model in self._chat.models]
        return names if len(names) == 1 else [f"{i}: {name}" for i, name in enumerate(names, start=1)]

    @property
    def _hint(self) -> str:
        choose = "Choose the better reply. " if len(self._chat.models) > 1 else ""
        return f"{choose}Thumbs rate a reply, the pencil corrects it."

    # -- components ---------------------------------------------------------------------------------------------------

    def _add_settings(self) -> None:
        gradio, models = self._gradio, self._chat.models
        gradio.Markdown("## Settings\nFor the next message. An empty field stands for the setting of the run.")
        self._only = gradio.Radio(
            [("Both", _BOTH), *((name, str(i)) for i, name in enumerate(self._names()))],
            value=_BOTH, label="Models that reply", elem_id="models", visible=len(models) > 1,
        )  # fmt: skip
        self._persona = gradio.Textbox(
            label="Persona", placeholder='Optional, e.g. "You are a waiter"', elem_id="persona"
        )
        self._temperature = self._number("temperature", "Temperature", 0.1)
        self._top_p = self._number("top_p", "Top-p", 0.05)
        self._max_new_tokens = self._number("max_new_tokens", "Longest reply (tokens)", 1, precision=0)
        self._beta = gradio.Number(
            None, label="beta (weight of the values)", step=1, elem_id="beta",
            visible=any(model.beta is not None for model in models),
        )  # fmt: skip
        self._settings = [self._persona, self._temperature, self._top_p, self._max_new_tokens, self._beta]
        self._colour = gradio.Radio(
            [_NO_COLOUR, *QUANTITIES], value=_NO_COLOUR, label="Color tokens by", elem_id="colour"
        )
        gradio.Markdown(f"Ratings, choices and corrections are appended to `{self._chat.feedback}`.")

    def _number(self, name: str, label: str, step: float, **kwargs: Any) -> Any:
        """A field for a number, which shows the run's own one while it is empty."""
        own = {getattr(GenerationSettings.from_kwargs(model.generation_kwargs), name) for model in self._chat.models}
        placeholder = "" if len(own) > 1 or None in own else str(*own)
        return self._gradio.Number(
            None, label=label, step=step, placeholder=placeholder, elem_id=name.replace("_", "-"), **kwargs
        )

    def _add_below(self) -> None:
        self._add_message_box()

    def _add_events(self) -> None:
        parts = [part for column in self._columns for part in column.parts]
        outputs = [self._revision, self._status, self._text, *parts]
        seen = [self._browser, self._revision, self._colour]
        self.blocks.load(
            self._opened,
            [self._browser, self._colour],
            [self._browser, self._only, *self._settings, *outputs],
            api_name="open",
            show_progress="hidden",
        )
        self._on(self._text.submit, "send", self._sent, [*seen, self._text, *self._settings], outputs)
        # Not queued, so that it acts while a reply is generated; Gradio's own cancellation waits between two tokens.
        self._text.stop(self._stopped, [self._browser], api_name="stop", queue=False)
        changes = [*seen, *self._settings]
        for i, column in enumerate(self._columns):
            bubble = column.chat
            self._on_bubble(bubble.like, f"rate_{i}", self._acting(self._rate, i), seen, outputs)
            self._on_bubble(bubble.option_select, f"option_{i}", self._acting(self._choose, i), seen, outputs)
            self._on_bubble(bubble.edit, f"edit_{i}", partial(self._edited, i), changes, outputs)
            self._on_bubble(bubble.retry, f"retry_{i}", self._retried, changes, outputs)
            self._on_bubble(bubble.undo, f"undo_{i}", self._undone, seen, outputs)
            self._on_bubble(bubble.clear, f"reset_{i}", self._acting(self._reset, i), seen, outputs)
        self._only.input(
            self._asked, [*seen, self._only], outputs, api_name="models", show_progress="hidden", **self._in_turn
        )
        self._colour.input(self._recoloured, seen, outputs, api_name="colour", show_progress="hidden", **self._in_turn)

    # -- events -------------------------------------------------------------------------------------------------------

    def _opened(self, key: object, colour: str) -> Updates:
        known, state = self._sessions.open(key)
        given = state.settings
        values = [given.persona or "", given.temperature, given.top_p, given.max_new_tokens, given.beta]
        only = _BOTH if given.only is None else str(given.only)
        settings = {self._only: only, **dict(zip(self._settings, values, strict=True))}
        return {self._browser: known, **settings, **self._shown(state, colour)}

    def _sent(self, key: object, revision: int, colour: str, text: str, *settings: Any) -> Iterator[Updates]:
        yield from self._replied(key, revision, colour, lambda state: (state, text), settings, is_typed=True)

    def _retried(
        self, event: BubbleEvent, key: object, revision: int, colour: str, *settings: Any
    ) -> Iterator[Updates]:
        yield from self._replied(key, revision, colour, lambda state: _before(state, -1), settings)

    def _edited(
        self, index: int, event: BubbleEvent, key: object, revision: int, colour: str, *settings: Any
    ) -> Iterator[Updates]:
        """An edited message is sent again; an edited reply is corrected."""
        number, is_reply = divmod(event.index, 2)
        if is_reply:
            correct = partial(self._chat.correct, index=index, correction=event.value, number=number)
            yield from self._changed(key, revision, colour, correct)
            return
        yield from self._replied(
            key, revision, colour, lambda state: (_before(state, number)[0], event.value), settings
        )

    def _replied(
        self,
        key: object,
        revision: int,
        colour: str,
        begin: Callable[[ChatState], tuple[ChatState, str]],
        settings: Sequence[Any],
        is_typed: bool = False,
    ) -> Iterator[Updates]:
        """Stream replies.

        Args:
            key: That of the browser.
            revision: What the browser shows.
            colour: Name of the numbers by which tokens are colored.
            begin: Returns the conversation before the message, and the message.
            settings: Values of the settings.
            is_typed: Whether the message is in the box for messages.
        """
        known, state = self._sessions.open(key)
        self._to_stop.discard(known)
        is_begun = False
        try:
            check_revision(state.revision, revision)
            before, text = begin(state)
            given = replace(Settings(*settings), only=state.settings.only)
            for step in self._chat.send(before, text, given, lambda: known in self._to_stop):
                state = self._sessions.keep(known, step)
                if is_begun:
                    updates = {part: value for each in self._typed(state, colour) for part, value in each.items()}
                    yield {**updates, self._revision: state.revision}
                else:
                    yield self._shown(state, colour, is_busy=True, text="" if is_typed else None)
                is_begun = True
        except Exception as error:
            state = self._sessions.keep(known, state.settled()) if is_begun else state
            yield from self._again(self._shown(state, colour, problem_of(error)))
            return
        yield self._shown(state, colour)

    def _stopped(self, key: object) -> None:
        known, _ = self._sessions.open(key)
        self._to_stop.add(known)

    def _changed(
        self, key: object, revision: int, colour: str, action: Callable[[ChatState], ChatState]
    ) -> Iterator[Updates]:
        known, state = self._sessions.open(key)
        try:
            check_revision(state.revision, revision)
            state = self._sessions.keep(known, action(state))
        except RL4DialogError as error:
            yield from self._again(self._shown(state, colour, str(error)))
            return
        yield self._shown(state, colour)

    def _acting(self, action: Callable[[ChatState, int, BubbleEvent], ChatState], index: int) -> Callable[..., Any]:
        """A handler of a click on a bubble in a column."""

        def clicked(event: BubbleEvent, key: object, revision: int, colour: str) -> Iterator[Updates]:
            yield from self._changed(key, revision, colour, lambda state: action(state, index, event))

        return clicked

    def _rate(self, state: ChatState, index: int, event: BubbleEvent) -> ChatState:
        return self._chat.rate(state, index, event.rating, event.index // 2)

    def _choose(self, state: ChatState, index: int, event: BubbleEvent) -> ChatState:
        if event.value == _BACK:
            return self._chat.take_back_choice(state)
        return self._chat.choose(state, index if event.value == _BETTER else None)

    def _reset(self, state: ChatState, index: int, event: BubbleEvent) -> ChatState:
        return self._chat.reset(state)

    def _undone(self, event: BubbleEvent, key: object, revision: int, colour: str) -> Iterator[Updates]:
        """Undo, and put the message back where it can be changed."""
        _, state = self._sessions.open(key)
        text = None if state.last is None or state.revision != revision else state.last.text
        for updates in self._changed(key, revision, colour, self._chat.undo):
            yield updates if text is None else {**updates, self._text: self._text_box(text=text)}

    def _asked(self, key: object, revision: int, colour: str, only: str) -> Iterator[Updates]:
        index = None if only == _BOTH else int(only)
        yield from self._changed(key, revision, colour, lambda state: self._chat.ask_only(state, index))

    def _recoloured(self, key: object, revision: int, colour: str) -> Updates:
        _, state = self._sessions.open(key)
        return self._conversations(state, colour)

    # -- what is shown ------------------------------------------------------------------------------------------------

    def _shown(
        self, state: ChatState, colour: str, problem: str = "", is_busy: bool = False, text: str | None = None
    ) -> Updates:
        """Updates of all components that depend on the state."""
        return {
            self._revision: state.revision,
            self._status: status_html(problem, state.note),
            self._text: self._text_box(is_busy, text),
            **self._conversations(state, colour, is_busy),
        }

    def _text_box(self, is_busy: bool = False, text: str | None = None) -> Any:
        written = {} if text is None else {"value": text}
        return self._gradio.update(interactive=True, submit_btn=not is_busy, stop_btn=is_busy, **written)

    def _conversations(self, state: ChatState, colour: str, is_busy: bool = False) -> Updates:
        updates: Updates = {}
        for i, column in enumerate(self._columns):
            is_visible = state.settings.only in (None, i)
            options = {} if is_busy else _options(state, i)
            updates |= column.shown(self._bubbles(state, i, colour, is_busy), options, not is_busy, is_visible)
        return updates

    def _typed(self, state: ChatState, colour: str) -> Iterator[Updates]:
        for i, column in enumerate(self._columns):
            yield column.typed(self._bubbles(state, i, colour, is_busy=True))

    def _bubbles(self, state: ChatState, index: int, colour: str, is_busy: bool) -> list[Bubble]:
        quantity = QUANTITIES.get(colour)
        details = [reply.details for exchange in state.exchanges for reply in exchange.replies]
        scale = None if quantity is None else common_scale(quantity, details)
        bubbles = []
        for exchange, message in zip(state.exchanges, state.messages(index)[1::2], strict=True):
            bubbles.append(Bubble("user", exchange.text))
            if is_busy and exchange is state.last:
                bubbles.append(Bubble("assistant", message["content"], is_typed=True))
                continue
            reply = exchange.replies[index]
            rating = None if message["origin"] else reply.rating
            below = note_html(message["origin"]) or _below(reply, quantity, scale)
            bubbles.append(Bubble("assistant", message["content"], below, rating))
        return bubbles


def _below(reply: Reply, quantity: Quantity | None, scale: Scale | None) -> str:
    """What stands beneath a model's own reply."""
    found = "" if reply.text else note_html("(empty reply)")
    if quantity is not None and reply.details is not None:
        found += tokens_html(reply.details, quantity, scale)
    elif quantity is not None:
        found += note_html(f"No token details: {reply.no_details or 'the reply was stopped'}")
    return found + note_html(reply.reward)


def _options(state: ChatState, index: int) -> Options:
    """What can be chosen beneath the last reply in a column."""
    if state.last is None:
        return {}
    if state.awaits_choice:
        return {_BETTER: "This reply is better", _SAME: "No difference"}
    is_here = state.last.was_choice and state.last.chosen == index
    return {_BACK: "Take back the choice"} if is_here else {}


def _before(state: ChatState, number: int) -> tuple[ChatState, str]:
    """The conversation before an exchange, and its message."""
    if not -1 <= number < len(state.exchanges) or state.last is None:
        raise ConfigError("there is no message to send again")
    return state.until(number), state.exchanges[number].text
