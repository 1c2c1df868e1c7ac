"""The page of a chat with one model, or two side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rl4dialog.core.errors import ConfigError
from rl4dialog.features.serving.chat import Chat, ChatState, Reply, Settings, samples, takes_persona
from rl4dialog.features.serving.page import Bubble, Options, Page, Updates, Visit, browser_key, note_html, status_html
from rl4dialog.features.serving.token_colours import QUANTITIES, Quantity, Scale, common_scale, tokens_html
from rl4dialog.policies.generation import GenerationSettings

_NO_COLOUR = "none"
_BETTER, _SAME, _BACK = "better", "same", "back"
_BOTH = "both"


class ChatPage(Page[ChatState]):
    """A web page for chatting with one or two models."""

    mode = "chat"

    def __init__(self, chat: Chat, examples: Sequence[str] = (), remark: str = "", about: str = "") -> None:
        self.examples, self.about = examples, about
        self._chat, settings = chat, Settings(persona=chat.models[0].persona)
        self._to_stop: set[str] = set()
        choose = "Choose the better reply. " if len(chat.models) > 1 else ""
        self.hint = f"{choose}Thumbs rate a reply, the pencil corrects it."
        begin = "Type a message below, or click on one of these." if examples else "Type a message below."
        super().__init__(self._names(), f"{begin} {remark}".strip(), lambda: ChatState(settings))

    def _names(self) -> list[str]:
        """Model names as displayed; numbered if there are two."""
        names = [model.name for model in self._chat.models]
        return names if len(names) == 1 else [f"{i}: {name}" for i, name in enumerate(names, start=1)]

    # -- components ---------------------------------------------------------------------------------------------------

    def _add_settings(self) -> None:
        gradio, models = self._gradio, self._chat.models
        gradio.Markdown("## Settings\nFor the next message. An empty field stands for the setting of the run.")
        self._only = gradio.Radio(
            [("Both", _BOTH), *((name, str(i)) for i, name in enumerate(self._names()))],
            value=_BOTH, label="Models that reply", elem_id="models", visible=len(models) > 1,
        )  # fmt: skip
        example, has_effect = 'Optional, e.g. "You are a waiter"', any(map(takes_persona, models))
        persona = gradio.Textbox(label="Persona", placeholder=example, elem_id="persona", visible=has_effect)
        are_sampled = any(map(samples, models))
        temperature = self._number("temperature", "Temperature", 0.1, visible=are_sampled)
        top_p = self._number("top_p", "Top-p", 0.05, visible=are_sampled)
        max_new_tokens = self._number("max_new_tokens", "Longest reply (tokens)", 1, precision=0)
        is_guided = any(model.beta is not None for model in models)
        beta = gradio.Number(None, label="beta (weight of the values)", step=1, elem_id="beta", visible=is_guided)
        self._settings = [persona, temperature, top_p, max_new_tokens, beta]  # in the order of Settings
        found = [model.token_details(model.dialogue_format.prompt(["-"]), [0]) for model in models]
        known = [label for label, each in QUANTITIES.items() if any(getattr(one, each.name) for one in found)]
        colour = gradio.Radio([_NO_COLOUR, *known], value=_NO_COLOUR, label="Color tokens by", elem_id="colour")
        self._has_values = any(each.values for each in found)
        self.options = [colour]
        gradio.Markdown(f"Each judgement is appended to `{self._chat.feedback}`.")

    def _number(self, name: str, label: str, step: float, **kwargs: Any) -> Any:
        """A field for a number, which shows the run's own one while it is empty."""
        own = {getattr(GenerationSettings.from_kwargs(model.generation_kwargs), name) for model in self._chat.models}
        placeholder = "" if len(own) > 1 or None in own else str(*own)
        return self._gradio.Number(
            None, label=label, step=step, placeholder=placeholder, elem_id=name.replace("_", "-"), **kwargs
        )

    def _add_below(self) -> list[Any]:
        box = self._add_message_box()
        values = self._gradio.Checkbox(
            label="Show the critic's value of each reply", elem_id="values", container=False, visible=self._has_values
        )
        self.options.append(values)
        return [box]

    def _add_events(self) -> None:
        # Not in turn with replies, so that another tab can watch one.
        self._on_load([self._only, *self._settings], self._restored, uses_model=False)
        self._on(self._text.submit, "send", partial(self._replied, is_typed=True), self._text, *self._settings)
        # Not queued, so that it acts while a reply is generated; Gradio's own cancellation waits between two tokens.
        self._text.stop(lambda key: self._to_stop.add(browser_key(key)), [self._browser], api_name="stop", queue=False)
        for i, column in enumerate(self._columns):
            bubble = column.chat
            self._on(bubble.like, f"rate_{i}", partial(self._rate, i))
            self._on(bubble.example_select, f"example_{i}", self._began, *self._settings)
            self._on(bubble.option_select, f"option_{i}", partial(self._choose, i))
            self._on(bubble.edit, f"edit_{i}", partial(self._edited, i), *self._settings, edited=column)
            self._on(bubble.retry, f"retry_{i}", self._resent, *self._settings)
            self._on(bubble.undo, f"undo_{i}", self._undone)
            self._on(bubble.clear, f"reset_{i}", lambda visit: self._keep(visit, self._chat.reset(self._state(visit))))
        self._on(self._only.input, "models", self._asked, self._only, shows_progress=False)
        for name, option in zip(("colour", "values"), self.options, strict=True):
            self._on(option.input, name, lambda visit: None, needs_current=False, shows_progress=False)

    # -- events -------------------------------------------------------------------------------------------------------

    def _state(self, visit: Visit) -> ChatState:
        return self._sessions.open(visit.person)

    def _keep(self, visit: Visit, state: ChatState) -> None:
        self._sessions.keep(visit.person, replace(state, revision=self._state(visit).revision + 1))

    def _restored(self, visit: Visit) -> Updates:
        given = self._state(visit).settings
        values = [given.persona or "", given.temperature, given.top_p, given.max_new_tokens, given.beta]
        only = _BOTH if given.only is None else str(given.only)
        return {self._only: only, **dict(zip(self._settings, values, strict=True))}

    def _began(self, visit: Visit, *settings: Any) -> Iterator[Updates]:
        return self._replied(visit, self.examples[visit.click.index], *settings)

    def _resent(self, visit: Visit, *settings: Any, number: int = -1, text: str | None = None) -> Iterator[Updates]:
        """Replies to the message of an exchange, or another text in its place."""
        state = self._state(visit)
        if not -1 <= number < len(state.exchanges) or state.last is None:
            raise ConfigError("there is no message to send again")
        if text is not None and state.exchanges[number].of_tool:
            raise ConfigError("a tool said this, and gives the same answer to the same call")
        while state.exchanges[number].of_tool:  # the reply to the last message of the user
            state = state.until(number)
            number = -1
        text = state.exchanges[number].text if text is None else text
        return self._replied(visit, text, *settings, before=state.until(number))

    def _replied(
        self, visit: Visit, text: str, *settings: Any, before: ChatState | None = None, is_typed: bool = False
    ) -> Iterator[Updates]:
        """Stream replies to a message, which `is_typed` in the box for messages."""
        before = before or self._state(visit)
        self._to_stop.discard(visit.person)
        given = replace(Settings(*settings), only=self._state(visit).settings.only)
        is_begun = False
        try:
            for state in self._chat.send(before, text, given, lambda: visit.person in self._to_stop):
                self._keep(visit, state)
                if is_begun:
                    yield self._typed(visit)
                else:
                    box = self._text_box(True, "" if is_typed else None)
                    yield {**self._shown(visit, is_busy=True), self._text: box}
                is_begun = True
        except Exception:
            if is_begun:
                self._keep(visit, self._state(visit).settled())
            raise

    def _rate(self, index: int, visit: Visit) -> None:
        self._keep(visit, self._chat.rate(self._state(visit), index, visit.click.rating, visit.click.index // 2))

    def _choose(self, index: int, visit: Visit) -> None:
        state, option = self._state(visit), visit.click.value
        if option == _BACK:
            state = self._chat.take_back_choice(state)
        else:
            state = self._chat.choose(state, index if option == _BETTER else None)
        self._keep(visit, state)

    def _edited(self, index: int, visit: Visit, *settings: Any) -> Iterator[Updates] | None:
        """An edited message is sent again; an edited reply is corrected."""
        number, is_reply = divmod(visit.click.index, 2)
        if not is_reply:
            return self._resent(visit, *settings, number=number, text=visit.click.value)
        self._keep(visit, self._chat.correct(self._state(visit), index, visit.click.value, number))
        return None

    def _undone(self, visit: Visit) -> Updates:
        """Undo, and put the message back where it can be changed."""
        state = self._state(visit)
        self._keep(visit, self._chat.undo(state))
        asked = [each.text for each in state.exchanges if not each.of_tool]
        return {self._text: self._text_box(text=asked[-1])} if asked else {}

    def _asked(self, visit: Visit, only: str) -> None:
        state = self._state(visit)
        settings = replace(state.settings, only=None if only == _BOTH else int(only))
        self._keep(visit, self._chat.changed(state, settings))

    # -- what is shown ------------------------------------------------------------------------------------------------

    def _shown(self, visit: Visit, problem: str = "", note: str = "", is_busy: bool = False) -> Updates:
        state = self._state(visit)
        updates: Updates = {
            self._revision: state.revision,
            self._status: status_html(problem, state.note),
            self._text: self._text_box(is_busy),
        }
        for i, column in enumerate(self._columns):
            is_visible = state.settings.only in (None, i)
            options = {} if is_busy else _options(state, i)
            bubbles = _bubbles(state, i, visit.options, is_busy)
            updates |= column.shown(bubbles, options, not is_busy, is_visible=is_visible)
        return updates

    def _typed(self, visit: Visit) -> Updates:
        state = self._state(visit)
        updates: Updates = {self._revision: state.revision}
        for i, column in enumerate(self._columns):
            updates |= column.typed(_bubbles(state, i, visit.options, is_busy=True))
        return updates

    def _text_box(self, is_busy: bool = False, text: str | None = None) -> Any:
        written = {} if text is None else {"value": text}
        return self._gradio.update(interactive=True, submit_btn=not is_busy, stop_btn=is_busy, **written)


def _bubbles(state: ChatState, index: int, options: Sequence[Any], is_busy: bool) -> list[Bubble]:
    colour, shows_values = options
    quantity = QUANTITIES.get(colour)
    details = [reply.details for exchange in state.exchanges for reply in exchange.replies]
    scale = None if quantity is None else common_scale(quantity, details)
    bubbles = []
    for exchange, message in zip(state.exchanges, state.messages(index)[1::2], strict=True):
        bubbles.append(Bubble("user", f"tool: {exchange.text}" if exchange.of_tool else exchange.text))
        if is_busy and exchange is state.last:
            bubbles.append(Bubble("assistant", message["content"], is_typed=True))
            continue
        reply, origin = exchange.replies[index], exchange.origin(index)
        below = note_html(origin) or _below(reply, quantity, scale, bool(shows_values))
        if exchange.is_corrected:
            below = f'<div class="corrected">{below}</div>'
        bubbles.append(Bubble("assistant", message["content"], below, None if origin else reply.rating))
    return bubbles


def _below(reply: Reply, quantity: Quantity | None, scale: Scale | None, shows_values: bool) -> str:
    found = "" if reply.text else note_html("(empty reply)")
    if shows_values and reply.details is not None and reply.details.values:
        found += note_html(f"value {reply.details.values[0]:.2f}: the reward to come that the critic expected here")
    if quantity is not None and reply.details is not None:
        found += tokens_html(reply.details, quantity, scale)
    elif quantity is not None:
        found += note_html(f"No token details: {reply.no_details or 'the reply was stopped'}")
    return found + note_html("; ".join(reply.reward))


def _options(state: ChatState, index: int) -> Options:
    if state.last is None:
        return {}
    if state.awaits_choice:
        return {_BETTER: "This reply is better", _SAME: "No difference"}
    is_here = state.last.was_choice and state.last.chosen == index
    return {_BACK: "Take back the choice"} if is_here else {}
