"""The actions of the page: each takes a state and returns the next one, independently of how the page looks.

Feedback is written to disk before the state records it. If writing fails, the action raises and the state is unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import ConfigError, RL4DialogError, shown
from rl4dialog.core.feedback import Feedback, JudgedReply, append_feedback
from rl4dialog.core.seeding import derive_seed
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.serving.chat_model import ChatModel, reward_in_words
from rl4dialog.serving.chat_state import ChatState, Exchange, Reply, Settings
from rl4dialog.serving.conversation import Conversation

_RATINGS = {1: "up", -1: "down"}
_OWN = Settings()


class PageChat:
    """Conversations with one model, or with two side by side.

    Args:
        models: One or two models; the first one is shown on the left.
        feedback: File to which ratings, choices and corrections are appended.
        seed: Random seed. With it, the first model gives the same replies as in the terminal.
        show_reward: Whether to show the reward of each reply and its parts.
    """

    def __init__(
        self, models: Sequence[ChatModel], feedback: Path, seed: int | None = None, show_reward: bool = False
    ) -> None:
        self.models, self.feedback = tuple(models), feedback
        self._seed, self._show_reward = seed, show_reward

    def send(
        self,
        state: ChatState,
        text: str,
        settings: Settings = _OWN,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[ChatState]:
        """Send a message to the models and stream their replies.

        Args:
            state: The current state.
            text: The user's message.
            settings: Settings of this and the next replies.
            is_stopped: Called after every token; returns whether to stop.

        Yields:
            The state after every token, and finally with rewards and token details. Every yielded state can be
            continued: a stopped reply keeps the text generated so far.
        """
        state = state.settled()
        if state.awaits_choice:
            raise ConfigError("choose one of the two replies first, to continue the conversation with it")
        text, state = text.strip(), self._changed(state, settings)
        talk = Conversation(state.settings.persona, state.turns)
        replies = tuple(Reply(model.name, talk.prompt(text, model.dialogue_format)) for model in self.models)
        only = 0 if len(self.models) == 1 else state.settings.only
        exchange = Exchange(text, state.settings.persona, replies, tuple(state.turns), chosen=only)
        state = replace(state, exchanges=(*state.exchanges, exchange), n_asked=state.n_asked + 1)
        yield state
        for said in self._replies(exchange, state):
            exchange, state = said, state.with_exchange(-1, said)
            yield state
            if is_stopped():
                break
        yield self._examined(state, exchange, talk).settled()

    def choose(self, state: ChatState, index: int | None) -> ChatState:
        """Choose the better one of two replies and continue the conversation with it.

        Args:
            state: The current state.
            index: Index of the reply; ``None`` for no preference, which records nothing and takes the first reply.
        """
        if state.last is None or not state.awaits_choice:
            raise ConfigError("there is nothing to choose: a reply was already chosen")
        chosen = replace(state.last, chosen=index or 0, preferred=index)
        note = f"Nothing was recorded; the conversation continues with the reply of {chosen.replies[0].model}."
        if index is not None:
            note = self._record(chosen, "preference", chosen.replies, chosen=index)
        return state.with_exchange(-1, chosen, note)

    def take_back_choice(self, state: ChatState) -> ChatState:
        """Take back the choice between the last two replies, so that it can be made again."""
        exchange = state.last
        if exchange is None or not exchange.was_choice:
            raise ConfigError("there is no choice to take back")
        note = ""
        if exchange.preferred is not None:
            note = self._record(exchange, "preference", exchange.replies, True, chosen=exchange.preferred)
        return state.with_exchange(-1, replace(exchange, chosen=None, preferred=None), note)

    def rate(self, state: ChatState, index: int, rating: int | None, number: int = -1) -> ChatState:
        """Rate a reply.

        Args:
            state: The current state.
            index: Index of the model.
            rating: 1 for up, -1 for down, ``None`` to take the rating back.
            number: Number of the exchange; by default the last one.
        """
        exchange, reply = _judged(state, index, number)
        if reply.correction is not None:
            raise ConfigError("this reply was corrected; the column shows your correction, which cannot be rated")
        if reply.rating == rating:
            raise ConfigError(f"this reply is already rated {_RATINGS[rating]}" if rating else "it has no rating")
        note = self._record(exchange, "rating", [reply], rating is None, rating=rating or reply.rating)
        return state.with_exchange(number, exchange.with_reply(index, replace(reply, rating=rating)), note)

    def correct(self, state: ChatState, index: int, correction: str, number: int = -1) -> ChatState:
        """Correct a reply and continue the conversation with the correction; the model's own text takes it back.

        Args:
            state: The current state.
            index: Index of the model.
            correction: The better reply.
            number: Number of the exchange; by default the last one.
        """
        exchange, reply = _judged(state, index, number)
        correction = correction.strip()
        if reply.correction is not None and correction == reply.text.strip():
            note = self._record(exchange, "correction", [reply], True, correction=reply.correction)
            return state.with_exchange(number, exchange.with_reply(index, replace(reply, correction=None)), note)
        if not correction:
            raise ConfigError("a correction cannot be empty")
        for model in self.models:
            model.dialogue_format.check_said(correction)
        if correction in (reply.text, reply.correction):
            raise ConfigError("a correction must differ from the current text")
        note = self._record(exchange, "correction", [reply], correction=correction)
        exchange = exchange.with_reply(index, replace(reply, correction=correction))
        return state.with_exchange(number, replace(exchange, chosen=index), note)

    def undo(self, state: ChatState) -> ChatState:
        """Remove the last exchange; feedback recorded about it is kept."""
        if state.last is None:
            return replace(state, note="There is nothing to undo.")
        return state.until(-1, f"Undone: {state.last.text}")

    def reset(self, state: ChatState) -> ChatState:
        """Clear the conversation; the settings and recorded feedback stay."""
        return state.until(0, "The conversation was cleared; recorded feedback is kept.")

    def ask_only(self, state: ChatState, index: int | None) -> ChatState:
        """Let only one model reply from now on, or all."""
        return self._changed(state, replace(state.settings, only=index))

    # -- replies ------------------------------------------------------------------------------------------------------

    def _changed(self, state: ChatState, settings: Settings) -> ChatState:
        """Return the state with new settings."""
        note, beta, temperature = "", settings.beta, settings.temperature
        if settings.only not in (None, *range(len(self.models))):
            raise ConfigError(f"there is no model {shown(settings.only)}")
        if beta is not None and (isinstance(beta, bool) or not 0 <= beta < math.inf):
            raise ConfigError(f"beta must be a number of at least 0, not {shown(beta)}")
        if temperature is not None:
            if isinstance(temperature, bool) or not 0 < temperature < math.inf:
                raise ConfigError(f"the temperature must be a number above 0, not {shown(temperature)}")
            greedy = [model.name for model in self.models if not _samples(model)]
            note = f"{' and '.join(greedy)}: no sampling, so the temperature has no effect." if greedy else ""
        GenerationSettings.from_kwargs(settings.sampling, "settings")
        persona = (settings.persona or "").strip() or None
        return replace(state, settings=replace(settings, persona=persona), note=note)

    def _replies(self, exchange: Exchange, state: ChatState) -> Iterator[Exchange]:
        """Yield the exchange after every token; two models alternate."""
        streams = {}
        for index, (model, reply) in enumerate(zip(self.models, exchange.replies, strict=True)):
            if exchange.chosen in (None, index):
                seed = self._seed_of(state.n_asked, index)
                streams[index] = model.stream(reply.prompt, seed, _beta(model, state), **state.settings.sampling)
        while streams:
            for index, stream in list(streams.items()):
                part = next(stream, None)
                if part is None:
                    del streams[index]
                    continue
                reply = exchange.replies[index]
                reply = replace(reply, text=part.text, token_ids=tuple(part.token_ids), finished=part.finished)
                exchange = exchange.with_reply(index, reply)
                yield exchange

    def _seed_of(self, n_asked: int, index: int) -> int | None:
        if self._seed is None:
            return None
        # Two instances of the same model get different seeds.
        return derive_seed(self._seed, "chat", n_asked, *([index] if index else []))

    def _examined(self, state: ChatState, exchange: Exchange, talk: Conversation) -> ChatState:
        """Return the state with rewards and token details of the last replies."""
        told = set(state.told)
        for index, (model, reply) in enumerate(zip(self.models, exchange.replies, strict=True)):
            if exchange.chosen not in (None, index):
                continue
            if self._show_reward:
                meta_info = talk.meta_info(exchange.text, model.dialogue_format)
                known = [missing for i, missing in told if i == index]
                found = reward_in_words(model, reply.prompt, reply.text, meta_info, known)
                reply = replace(reply, reward="; ".join(filter(None, (found.text, found.why))))
                told |= {(index, found.missing)} if found.missing else set()
            try:
                reply = replace(reply, details=model.token_details(reply.prompt, reply.token_ids, _beta(model, state)))
            except RL4DialogError as error:
                reply = replace(reply, no_details=str(error))
            exchange = exchange.with_reply(index, reply)
        return replace(state.with_exchange(-1, exchange), told=frozenset(told))

    # -- feedback -----------------------------------------------------------------------------------------------------

    def _record(
        self, exchange: Exchange, kind: str, replies: Sequence[Reply], withdrawn: bool = False, **verdict: Any
    ) -> str:
        """Append feedback on an exchange to the file, and return the note for the user."""
        judged = [JudgedReply(reply.model, reply.text) for reply in replies]
        given = Feedback(kind, exchange.turns, judged, persona=exchange.persona, withdrawn=withdrawn, **verdict)
        append_feedback(self.feedback, given)
        return f"The {kind} was {'withdrawn in' if withdrawn else 'appended to'} {self.feedback}."


def _beta(model: ChatModel, state: ChatState) -> float | None:
    """Beta of a model in a chat; ``None`` for its own, or if no values guide it."""
    return None if model.beta is None else state.settings.beta


def _samples(model: ChatModel) -> bool:
    return GenerationSettings.from_kwargs(model.generation_kwargs).do_sample


def _judged(state: ChatState, index: int, number: int) -> tuple[Exchange, Reply]:
    """Return an exchange and one of its replies, for feedback."""
    if not -1 <= number < len(state.exchanges) or not state.exchanges:
        raise ConfigError("there is no reply to judge yet")
    exchange = state.exchanges[number]
    if not exchange.shows(index):
        raise ConfigError(f"this column shows {exchange.origin(index)}; give feedback in the column of that reply")
    return exchange, exchange.replies[index]
