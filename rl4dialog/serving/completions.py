"""Answers to requests for chat completions in OpenAI's format, whole and as server-sent events.

One reply is generated at a time, in a separate thread; other requests wait for their turn. An answer that is cancelled,
because its client left, ends after the token in progress.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from rl4dialog.core.errors import RL4DialogError
from rl4dialog.core.seeding import derive_seed
from rl4dialog.policies.streaming import PartialReply
from rl4dialog.serving.api_request import ApiError, ChatRequest
from rl4dialog.serving.chat_model import ChatModel

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Piece:
    """A reply so far.

    Attributes:
        text: Its text, which later pieces continue.
        n_tokens: Number of its tokens.
        finish_reason: ``stop`` if the model or a stop text ended it, ``length`` for the length limit, ``None`` if it
            is not complete.
    """

    text: str
    n_tokens: int
    finish_reason: str | None = None


def stopped(parts: Iterator[PartialReply], stop: Sequence[str]) -> Iterator[Piece]:
    """End a reply before the first stop text, and hold back what may be the beginning of one.

    Args:
        parts: The reply, token by token.
        stop: The stop texts.
    """
    for part in parts:
        found = [part.text.find(text) for text in stop if text in part.text]
        if found:
            yield Piece(part.text[: min(found)].rstrip(), len(part.token_ids), "stop")
            return
        if part.finished:
            yield Piece(part.text, len(part.token_ids), "stop" if part.ended else "length")
            return
        n_held_back = max((_n_begun(part.text, each) for each in stop), default=0)
        yield Piece(part.text[: len(part.text) - n_held_back].rstrip(), len(part.token_ids))


def _n_begun(text: str, stop: str) -> int:
    """Length of the longest end of a text with which a stop text begins, found as by Knuth, Morris and Pratt (1977)."""
    characters = [*stop, None, *text[max(len(text) - len(stop) + 1, 0) :]]
    borders = [0]  # of each beginning: length of the longest shorter one that also ends it
    for character in characters[1:]:
        n = borders[-1]
        while n and characters[n] != character:
            n = borders[n - 1]
        borders.append(n + (characters[n] == character))
    return borders[-1]


class Completions:
    """Answers requests with one model, one after the other.

    Args:
        model: The model.
        name: Its name in answers.
    """

    def __init__(self, model: ChatModel, name: str) -> None:
        self._model, self._name = model, name
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="replies")

    async def whole(self, request: ChatRequest) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            ApiError: If the model fails.
        """
        choices, n_tokens = [], 0
        async with self._turn:
            for index in range(request.n):
                piece = Piece("", 0)
                async with aclosing(self._pieces(request, index)) as pieces:
                    async for piece in pieces:  # noqa: B007 (the last one counts)
                        pass
                message = {"role": "assistant", "content": piece.text, "refusal": None}
                choices.append(
                    {"index": index, "message": message, "finish_reason": piece.finish_reason, "logprobs": None}
                )
                n_tokens += piece.n_tokens
        return {**self._head("chat.completion"), "choices": choices, "usage": _usage(request, n_tokens)}

    async def events(self, request: ChatRequest) -> AsyncIterator[str]:
        """Yield the answer to a request as server-sent events. An error is an event, too.

        The reply is generated as fast as possible, so that a client that reads slowly does not hold up the others.
        """
        events: asyncio.Queue[str | None] = asyncio.Queue()

        async def generate() -> None:
            try:
                async for event in self._events(request):
                    events.put_nowait(event)
            finally:
                events.put_nowait(None)

        generating = asyncio.create_task(generate())
        try:
            while (event := await events.get()) is not None:
                yield event
            await generating
        finally:
            generating.cancel()

    async def _events(self, request: ChatRequest) -> AsyncIterator[str]:
        head = self._head("chat.completion.chunk")
        n_tokens = 0

        def event(index: int, delta: dict[str, str], finish_reason: str | None = None) -> str:
            choice = {"index": index, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
            return _event({**head, "choices": [choice]})

        try:
            async with self._turn:
                for index in range(request.n):
                    yield event(index, {"role": "assistant", "content": ""})
                    sent, piece = "", Piece("", 0)
                    async with aclosing(self._pieces(request, index)) as pieces:
                        async for piece in pieces:
                            # A decoder may revise earlier text; then nothing more is sent until the end.
                            if piece.text.startswith(sent) and piece.text != sent:
                                yield event(index, {"content": piece.text[len(sent) :]})
                                sent = piece.text
                    if piece.text != sent:
                        raise ApiError("the tokenizer revised text that was already sent; use stream: false", 500)
                    yield event(index, {}, piece.finish_reason)
                    n_tokens += piece.n_tokens
        except ApiError as error:
            yield _event(error.body())
            return
        if request.include_usage:
            yield _event({**head, "choices": [], "usage": _usage(request, n_tokens)})
        yield "data: [DONE]\n\n"

    async def _pieces(self, request: ChatRequest, index: int) -> AsyncGenerator[Piece, None]:
        """Generate a reply in the thread, a token at a time."""
        seed = request.seed
        if seed is not None and index:
            seed = derive_seed(seed, "choice", index)
        pieces = stopped(self._model.stream(request.prompt, seed, **request.generation_kwargs), request.stop)
        loop = asyncio.get_running_loop()
        while True:
            try:
                piece = await loop.run_in_executor(self._thread, next, pieces, None)
            except RL4DialogError as error:
                raise ApiError(str(error), 500) from error
            except Exception as error:
                _logger.exception("a reply failed")
                raise ApiError(f"{type(error).__name__}: {error}", 500) from error
            if piece is None:
                return
            yield piece

    def _head(self, kind: str) -> dict[str, Any]:
        """Keys of all objects of an answer."""
        return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": self._name}


def _usage(request: ChatRequest, n_tokens: int) -> dict[str, int]:
    n_prompt = request.n_prompt_tokens
    return {"prompt_tokens": n_prompt, "completion_tokens": n_tokens, "total_tokens": n_prompt + n_tokens}


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
