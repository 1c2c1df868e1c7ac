"""What a click on the page does: a state in, the next state out. It knows nothing of how the page looks.

Feedback is on the disk before the state says so; where it cannot be written there is an error, and no next state.
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
        models: Reply; the first one is shown on the left.
        feedback: The file to which ratings, choices and corrections are appended.
        seed: Makes the replies to the same texts the same. The first model then says what it says in the terminal.
        show_reward: Whether to show the reward of each reply, and its parts.
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
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[ChatState]:
        """Have the models reply.

        Args:
            state: Of before.
            text: What the user says.
            persona: Who the model is to be; empty for nobody.
            temperature: Of the sampling; ``None`` for each model's own.
            is_stopped: Asked after every token whether that is enough.

        Yields:
            The state after every token, then with reward and details. Each of them can be gone on from: a reply that is
            stopped has been said as far as it came.

        Raises:
            RL4DialogError: If the text, the persona or the temperature cannot be, a choice is yet to be made, or a
                model fails.
        """
        state = state.settled()
        if state.awaits_choice:
            raise ConfigError("choose one of the two replies first; the conversation goes on with it")
        text, state = text.strip(), self._changed(state, persona, temperature)
        talk = Conversation(state.persona, state.turns)
        replies = tuple(Reply(model.name, talk.prompt(text, model.dialogue_format)) for model in self.models)
        exchange = Exchange(text, state.persona, replies, chosen=0 if len(self.models) == 1 else None)
        state = replace(state, exchanges=(*state.exchanges, exchange), n_asked=state.n_asked + 1)
        yield state
        for said in self._replies(exchange, state.n_asked, state.temperature):
            exchange, state = said, state.with_last(said)
            yield state
            if is_stopped():
                break
        yield self._examined(state, exchange, talk).settled()

    def choose(self, state: ChatState, index: int | None) -> ChatState:
        """Go on with one of two replies, which is the better one.

        Args:
            state: Of before.
            index: Of the reply; ``None`` if neither is better: then nothing is recorded, and the first one is taken.

        Raises:
            RL4DialogError: If there is nothing to choose, or the choice cannot be recorded.
        """
        if state.last is None or not state.awaits_choice:
            raise ConfigError("there is nothing to choose: the conversation goes on with a reply already")
        chosen = replace(state.last, chosen=index or 0)
        note = f"Nothing is recorded; the conversation goes on with the reply of {chosen.replies[0].model}."
        if index is not None:
            note = self._record(state, "preference", state.last.replies, chosen=index)
        return state.with_last(chosen, note)

    def rate(self, state: ChatState, index: int, rating: int) -> ChatState:
        """Rate a last reply: 1 for up, -1 for down.

        Raises:
            RL4DialogError: If there is none, it is not the one that is shown, it is rated like that already, or the
                rating cannot be recorded.
        """
        exchange, reply = _judged(state, index)
        if reply.correction is not None:
            raise ConfigError("this reply is corrected: what is shown is your text, and the rating would be of another")
        if reply.rating == rating:
            raise ConfigError(f"this reply is rated {_RATINGS[rating]} already")
        note = self._record(state, "rating", [reply], rating=rating)
        return state.with_last(exchange.with_reply(index, replace(reply, rating=rating)), note)

    def correct(self, state: ChatState, index: int, correction: str) -> ChatState:
        """Say what a last reply should have been, and go on with that.

        Raises:
            RL4DialogError: If there is no reply, it is not the one that is shown, the text is none that can be said or
                nothing new, or it cannot be recorded.
        """
        exchange, reply = _judged(state, index)
        correction = correction.strip()
        if not correction:
            raise ConfigError("a correction cannot be empty")
        for model in self.models:
            model.dialogue_format.check_said(correction)
        if correction in (reply.text, reply.correction):
            raise ConfigError("a correction must be another text than the one that is there")
        note = self._record(state, "correction", [reply], correction=correction)
        exchange = exchange.with_reply(index, replace(reply, correction=correction))
        return state.with_last(replace(exchange, chosen=index), note)

    def undo(self, state: ChatState) -> ChatState:
        """Take the last exchange back; what was recorded about it stays recorded."""
        if state.last is None:
            return replace(state, note="There is nothing to take back.")
        return replace(state, exchanges=state.exchanges[:-1], note=f"Taken back: {state.last.text}")

    def reset(self, state: ChatState) -> ChatState:
        """Forget what was said; persona and temperature stay."""
        return replace(state, exchanges=(), note="The conversation begins again.")

    # -- replies ------------------------------------------------------------------------------------------------------

    def _changed(self, state: ChatState, persona: str, temperature: float | None) -> ChatState:
        """The state with the settings that hold from now on."""
        note = ""
        if temperature is not None:
            if isinstance(temperature, bool) or not 0 < temperature < math.inf:
                raise ConfigError(f"the temperature must be a number above 0, not {shown(temperature)}")
            greedy = [model.name for model in self.models if not _samples(model)]
            note = f"The temperature changes nothing for {' and '.join(greedy)}: no sampling there." if greedy else ""
        return replace(state, persona=persona.strip() or None, temperature=temperature, note=note)

    def _replies(self, exchange: Exchange, n_asked: int, temperature: float | None) -> Iterator[Exchange]:
        """The exchange after every token; two models take turns."""
        streams = {}
        for index, (model, reply) in enumerate(zip(self.models, exchange.replies, strict=True)):
            kwargs = {} if temperature is None else {"temperature": temperature}
            streams[index] = model.stream(reply.prompt, self._seed_of(n_asked, index), **kwargs)
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
        # Two of the same model do not say the same.
        return derive_seed(self._seed, "chat", n_asked, *([index] if index else []))

    def _examined(self, state: ChatState, exchange: Exchange, talk: Conversation) -> ChatState:
        """The state with rewards and details of the last replies."""
        told = set(state.told)
        for index, (model, reply) in enumerate(zip(self.models, exchange.replies, strict=True)):
            if self._show_reward:
                meta_info = talk.meta_info(exchange.text, model.dialogue_format)
                known = [missing for i, missing in told if i == index]
                found = reward_in_words(model, reply.prompt, reply.text, meta_info, known)
                reply = replace(reply, reward="; ".join(filter(None, (found.text, found.why))))
                told |= {(index, found.missing)} if found.missing else set()
            try:
                reply = replace(reply, details=model.token_details(reply.prompt, reply.token_ids))
            except RL4DialogError as error:
                reply = replace(reply, no_details=str(error))
            exchange = exchange.with_reply(index, reply)
        return replace(state.with_last(exchange), told=frozenset(told))

    # -- feedback -----------------------------------------------------------------------------------------------------

    def _record(self, state: ChatState, kind: str, replies: Sequence[Reply], **verdict: Any) -> str:
        """Append a judgement of the last exchange to the file; what to tell the user then."""
        assert state.last is not None
        before = replace(state, exchanges=state.exchanges[:-1]).turns
        judged = [JudgedReply(reply.model, reply.text) for reply in replies]
        append_feedback(
            self._feedback, Feedback(kind, [*before, state.last.text], judged, persona=state.last.persona, **verdict)
        )
        return f"The {kind} was appended to {self._feedback}."


def _samples(model: ChatModel) -> bool:
    return GenerationSettings.from_kwargs(model.generation_kwargs).do_sample


def _judged(state: ChatState, index: int) -> tuple[Exchange, Reply]:
    """The last exchange, and its reply that is judged."""
    if state.last is None:
        raise ConfigError("there is no reply to judge yet")
    if not state.last.shows(index):
        raise ConfigError(f"what is shown is {state.last.origin(index)}, which is judged there")
    return state.last, state.last.replies[index]
