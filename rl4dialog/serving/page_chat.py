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
from rl4dialog.serving.chat_state import ChatState, Exchange, Reply
from rl4dialog.serving.conversation import Conversation

_RATINGS = {1: "up", -1: "down"}


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
        self.models, self._feedback = tuple(models), feedback
        self._seed, self._show_reward = seed, show_reward

    def send(
        self,
        state: ChatState,
        text: str,
        persona: str = "",
        temperature: float | None = None,
        beta: float | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[ChatState]:
        """Send a message to all models and stream their replies.

        Args:
            state: The current state.
            text: The user's message.
            persona: The model's persona; empty for none.
            temperature: Sampling temperature; ``None`` for each model's own.
            beta: Weight of the values that guide the models; ``None`` for each model's own.
            is_stopped: Called after every token; returns whether to stop.

        Yields:
            The state after every token, and finally with rewards and token details. Every yielded state can be
            continued: a stopped reply keeps the text generated so far.

        Raises:
            RL4DialogError: If the text, the persona, the temperature or beta is invalid, a choice is pending, or a
                model fails.
        """
        state = state.settled()
        if state.awaits_choice:
            raise ConfigError("choose one of the two replies first, to continue the conversation with it")
        text, state = text.strip(), self._changed(state, persona, temperature, beta)
        talk = Conversation(state.persona, state.turns)
        replies = tuple(Reply(model.name, talk.prompt(text, model.dialogue_format)) for model in self.models)
        exchange = Exchange(text, state.persona, replies, chosen=0 if len(self.models) == 1 else None)
        state = replace(state, exchanges=(*state.exchanges, exchange), n_asked=state.n_asked + 1)
        yield state
        for said in self._replies(exchange, state):
            exchange, state = said, state.with_last(said)
            yield state
            if is_stopped():
                break
        yield self._examined(state, exchange, talk).settled()

    def choose(self, state: ChatState, index: int | None) -> ChatState:
        """Choose the better one of two replies and continue the conversation with it.

        Args:
            state: The current state.
            index: Index of the reply; ``None`` for no preference, which records nothing and takes the first reply.

        Raises:
            RL4DialogError: If no choice is pending, or the choice cannot be recorded.
        """
        if state.last is None or not state.awaits_choice:
            raise ConfigError("there is nothing to choose: a reply was already chosen")
        chosen = replace(state.last, chosen=index or 0)
        note = f"Nothing was recorded; the conversation continues with the reply of {chosen.replies[0].model}."
        if index is not None:
            note = self._record(state, "preference", state.last.replies, chosen=index)
        return state.with_last(chosen, note)

    def rate(self, state: ChatState, index: int, rating: int) -> ChatState:
        """Rate a last reply: 1 for up, -1 for down.

        Raises:
            RL4DialogError: If there is no reply, the column does not show it, it already has this rating, or the
                rating cannot be recorded.
        """
        exchange, reply = _judged(state, index)
        if reply.correction is not None:
            raise ConfigError("this reply was corrected; the column shows your correction, which cannot be rated")
        if reply.rating == rating:
            raise ConfigError(f"this reply is already rated {_RATINGS[rating]}")
        note = self._record(state, "rating", [reply], rating=rating)
        return state.with_last(exchange.with_reply(index, replace(reply, rating=rating)), note)

    def correct(self, state: ChatState, index: int, correction: str) -> ChatState:
        """Correct a last reply and continue the conversation with the correction.

        Raises:
            RL4DialogError: If there is no reply, the column does not show it, the correction is empty, unchanged or
                contains reserved markup, or it cannot be recorded.
        """
        exchange, reply = _judged(state, index)
        correction = correction.strip()
        if not correction:
            raise ConfigError("a correction cannot be empty")
        for model in self.models:
            model.dialogue_format.check_said(correction)
        if correction in (reply.text, reply.correction):
            raise ConfigError("a correction must differ from the current text")
        note = self._record(state, "correction", [reply], correction=correction)
        exchange = exchange.with_reply(index, replace(reply, correction=correction))
        return state.with_last(replace(exchange, chosen=index), note)

    def undo(self, state: ChatState) -> ChatState:
        """Remove the last exchange; feedback recorded about it is kept."""
        if state.last is None:
            return replace(state, note="There is nothing to undo.")
        return replace(state, exchanges=state.exchanges[:-1], note=f"Undone: {state.last.text}")

    def reset(self, state: ChatState) -> ChatState:
        """Clear the conversation; persona, temperature and beta stay."""
        return replace(state, exchanges=(), note="The conversation was reset.")

    # -- replies ------------------------------------------------------------------------------------------------------

    def _changed(self, state: ChatState, persona: str, temperature: float | None, beta: float | None) -> ChatState:
        """Return the state with new settings for persona, temperature and beta."""
        note = ""
        if beta is not None and (isinstance(beta, bool) or not 0 <= beta < math.inf):
            raise ConfigError(f"beta must be a number of at least 0, not {shown(beta)}")
        if temperature is not None:
            if isinstance(temperature, bool) or not 0 < temperature < math.inf:
                raise ConfigError(f"the temperature must be a number above 0, not {shown(temperature)}")
            greedy = [model.name for model in self.models if not _samples(model)]
            note = f"{' and '.join(greedy)}: no sampling, so the temperature has no effect." if greedy else ""
        return replace(state, persona=persona.strip() or None, temperature=temperature, beta=beta, note=note)

    def _replies(self, exchange: Exchange, state: ChatState) -> Iterator[Exchange]:
        """Yield the exchange after every token; two models alternate."""
        streams = {}
        for index, (model, reply) in enumerate(zip(self.models, exchange.replies, strict=True)):
            kwargs = {} if state.temperature is None else {"temperature": state.temperature}
            seed = self._seed_of(state.n_asked, index)
            streams[index] = model.stream(reply.prompt, seed, _beta(model, state), **kwargs)
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
        return replace(state.with_last(exchange), told=frozenset(told))

    # -- feedback -----------------------------------------------------------------------------------------------------

    def _record(self, state: ChatState, kind: str, replies: Sequence[Reply], **verdict: Any) -> str:
        """Append feedback on the last exchange to the file, and return the note for the user."""
        assert state.last is not None
        before = replace(state, exchanges=state.exchanges[:-1]).turns
        judged = [JudgedReply(reply.model, reply.text) for reply in replies]
        append_feedback(
            self._feedback, Feedback(kind, [*before, state.last.text], judged, persona=state.last.persona, **verdict)
        )
        return f"The {kind} was appended to {self._feedback}."


def _beta(model: ChatModel, state: ChatState) -> float | None:
    """Beta of a model in a chat; ``None`` for its own, or if no values guide it."""
    return None if model.beta is None else state.beta


def _samples(model: ChatModel) -> bool:
    return GenerationSettings.from_kwargs(model.generation_kwargs).do_sample


def _judged(state: ChatState, index: int) -> tuple[Exchange, Reply]:
    """Return the last exchange and one of its replies, for feedback."""
    if state.last is None:
        raise ConfigError("there is no reply to judge yet")
    if not state.last.shows(index):
        raise ConfigError(f"this column shows {state.last.origin(index)}; give feedback in the column of that reply")
    return state.last, state.last.replies[index]
