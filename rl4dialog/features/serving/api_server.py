"""An OpenAI-compatible server for one model: chat completions, whole and as server-sent events, and the list of models.

Settings that the server does not support are refused unless they have the value that changes nothing. Requests are read
in one thread, and one reply at a time is generated in another; other requests wait for their turn. An answer that is
cancelled, because its client left, ends after the token in progress.
"""

from __future__ import annotations

import asyncio
import copy
import hmac
import json
import logging
import re
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from rl4dialog.core.errors import DataError, RL4DialogError, shown, validation_message
from rl4dialog.core.files import json_value
from rl4dialog.core.registry import optional_module
from rl4dialog.core.seeding import derive_seed
from rl4dialog.data.messages import read_messages, render_messages
from rl4dialog.data.rows import Row, is_empty
from rl4dialog.features.serving.chat import ChatAgent
from rl4dialog.features.serving.replies import PartialReply
from rl4dialog.features.serving.server import Address, App, PageGuard
from rl4dialog.policies.generation import MIN_TEMPERATURE, NOT_IN_CONVERSATIONS, GenerationSettings
from rl4dialog.text.prompts import written_calls

# A request with more characters per token of the longest prompt, and more at all, is refused before it is tokenized.
_FAR_BEYOND, _SHORT = 64, 20_000
_MAX_CHOICES, _MAX_STOPS, _MAX_STOP_LENGTH = 16, 4, 1000  # 4 is OpenAI's
# Keys about bookkeeping, and keys with the values that change nothing.
_IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls")
_WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": (),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": (),
    "tool_choice": ("none", "auto"),
    "functions": (),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}


class ApiError(Exception):
    """An error in OpenAI's format, with an HTTP status, a key of the request and a short name."""

    def __init__(self, message: str, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self._param, self._code = status, param, code

    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self._param, "code": self._code}}


class _StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)
    include_usage: bool = False


_Stop = Annotated[str, StringConstraints(min_length=1, max_length=_MAX_STOP_LENGTH)]
_Stops = Annotated[
    list[_Stop], Field(max_length=_MAX_STOPS), BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop)
]


class _Body(BaseModel):
    """The keys that the server reads."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    stop: _Stops | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    n: int | None = Field(default=None, ge=1, le=_MAX_CHOICES)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)


class ChatRequest(NamedTuple):
    """A valid request for `n` replies to a prompt in the model's dialogue format."""

    prompt: str
    n_prompt_tokens: int
    n: int
    stream: bool
    include_usage: bool  # whether a stream ends with the numbers of tokens
    stop: tuple[str, ...]  # texts before which a reply ends
    seed: int | None
    generation_kwargs: dict[str, Any]  # overrides of the model's sampling settings
    n_dropped: int = 0  # oldest messages that the model does not read


def parse_request(body: bytes, model: ChatAgent, name: str) -> ChatRequest:
    """Parse the body of a request for a chat completion; ApiError if it cannot be answered."""
    asked = _validated(_object(body))
    if asked.model != name:
        raise ApiError(
            f"unknown model {asked.model!r}; this server has {name!r}", param="model", code="model_not_found"
        )
    if asked.stream_options is not None and not asked.stream:
        raise ApiError("stream_options works only with stream: true", param="stream_options")
    stop = tuple(asked.stop or ())
    n_characters, limit = sum(len(str(said.get("content"))) for said in asked.messages), model.max_prompt_tokens
    if n_characters > max(_FAR_BEYOND * limit, _SHORT):
        raise _too_long(f"the messages have {n_characters:,} characters", limit)
    kwargs = _generation_kwargs(asked)
    try:
        GenerationSettings.from_kwargs({**model.generation_kwargs, **kwargs}, only_sampling=NOT_IN_CONVERSATIONS)
        row = Row({"messages": _said(asked.messages, model)}, "the request")
        messages = read_messages(row, "messages", also=("name", "tool_call_id"))
        if row.unread:
            raise row.error(f"{' and '.join(row.unread)}: unknown key, which this server does not support; remove it")
        rendered, _ = render_messages(messages, row, model.dialogue_format, model.persona or "")
        prompt = rendered if model.toolbox is None else written_calls(model.toolbox, rendered)
        read = model.read(prompt)
    except RL4DialogError as error:
        raise ApiError(str(error), param="messages" if isinstance(error, DataError) else None) from error
    n_tokens = len(read.prompt_ids)
    if read.n_cut:
        raise _too_long(f"the last message alone needs {n_tokens + read.n_cut:,} tokens", limit)
    includes = asked.stream_options is not None and asked.stream_options.include_usage
    sampled = asked.seed, kwargs
    return ChatRequest(prompt, n_tokens, asked.n or 1, bool(asked.stream), includes, stop, *sampled, read.n_dropped)


def _said(messages: list[dict[str, Any]], model: ChatAgent) -> list[dict[str, Any]]:
    """Messages in which calls of the model's tools are text, and answers to them are said by the user of a text."""
    if model.toolbox is None:
        return messages
    found = []
    for each in messages:
        if each.get("tool_calls") and isinstance(each.get("content"), str):  # as this server writes them
            each = {name: value for name, value in each.items() if name != "tool_calls"}
        found.append({**each, "role": "user"} if each.get("role") == "tool" else each)
    return found


def _message(text: str, model: ChatAgent) -> dict[str, Any]:
    """The reply as a message; a call of a tool has its OpenAI form, and what the tool of this server answers."""
    found: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    toolbox = copy.deepcopy(model.toolbox)
    if toolbox is not None and toolbox.takes(text):
        toolbox.reset({}, 0)
        call = toolbox.read(text)
        function = {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)}
        found["tool_calls"] = [{"index": 0, "id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}]
        found["tool_answer"] = toolbox.answer(text).text
    return found


def _too_long(what: str, limit: int) -> ApiError:
    text = f"{what}, but the model reads at most {limit:,} tokens; shorten the conversation"
    return ApiError(text, param="messages", code="context_length_exceeded")


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json_value(body)
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ApiError("the body contains one half of a surrogate pair, which is no character") from None
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the body is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise ApiError(f"the body must be a JSON object, not {shown(found)}")
    kept = {}
    for key, value in found.items():
        if key in _IGNORED or (is_empty(value) and key not in _Body.model_fields):
            continue
        if key not in _WITHOUT_EFFECT:
            kept[key] = value
        elif value not in _WITHOUT_EFFECT[key]:
            raise ApiError(f"{key} is not supported by this server; remove it", param=key)
    return kept


def _validated(found: dict[str, Any]) -> _Body:
    try:
        return _Body.model_validate(found)
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0])
        problems = [problem for problem in error.errors() if problem["loc"][0] == key]
        problem = validation_message(problems, found, list(_Body.model_fields)).lstrip(".: ")
        message = f"the request is invalid: {problem}"
        raise ApiError(message, param=key) from error


def _generation_kwargs(asked: _Body) -> dict[str, Any]:
    """Sampling settings; what the request does not contain is that of the model."""
    if asked.max_tokens is not None and asked.max_completion_tokens is not None:
        raise ApiError("set either max_tokens or max_completion_tokens", param="max_tokens")
    temperature, limit = asked.temperature, asked.max_tokens or asked.max_completion_tokens
    kwargs: dict[str, Any] = {"top_p": asked.top_p, "max_new_tokens": limit}
    if temperature is not None:
        if 0 < temperature < MIN_TEMPERATURE:
            what = f"temperature must be at least {MIN_TEMPERATURE:g}, or 0 for the most likely token"
            raise ApiError(f"{what}, not {temperature:g}", param="temperature")
        kwargs |= {"do_sample": temperature > 0, "temperature": temperature or None}
    return {name: value for name, value in kwargs.items() if value is not None}


_GRACE_S = 2  # for answers in progress when the server ends
_logger = logging.getLogger(__name__)


class Piece(NamedTuple):
    """A reply so far, which later pieces continue."""

    text: str
    n_tokens: int
    finish_reason: str | None = None  # ``stop``: the model or a stop text ended it, ``length``: the limit did


def stopped(parts: Iterator[PartialReply], stop: Sequence[str]) -> Iterator[Piece]:
    """End a reply before the first stop text, and hold back what may be the beginning of one."""
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
    """Length of the longest end of a text with which a stop text begins."""
    return next(n for n in range(min(len(text), len(stop) - 1), -1, -1) if text.endswith(stop[:n]))


class Completions:
    """Answers requests with one model, one after the other."""

    def __init__(self, model: ChatAgent, name: str) -> None:
        self._model, self._name = model, name
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="replies")

    async def whole(self, request: ChatRequest) -> dict[str, Any]:
        last: dict[int, Piece] = {}
        async with aclosing(self._pieces(request)) as pieces:
            async for index, piece in pieces:
                last[index] = piece
        choices = [
            _choice(index, "tool_calls" if "tool_calls" in message else piece.finish_reason, message=message)
            for index, piece in last.items()
            for message in [_message(piece.text, self._model)]
        ]
        return {**self._head("chat.completion", request), "choices": choices, "usage": _usage(request, last)}

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
        head, last, sent = self._head("chat.completion.chunk", request), dict[int, Piece](), ""

        def event(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> str:
            return _event({**head, "choices": [_choice(index, finish_reason, delta=delta)]})

        try:
            async with aclosing(self._pieces(request)) as pieces:
                async for index, piece in pieces:
                    if index not in last:
                        yield event(index, {"role": "assistant", "content": ""})
                        sent = ""
                    last[index] = piece
                    # A decoder may revise earlier text; then nothing more is sent until the end.
                    if piece.text.startswith(sent) and piece.text != sent:
                        yield event(index, {"content": piece.text[len(sent) :]})
                        sent = piece.text
                    if piece.finish_reason is not None:
                        if piece.text != sent:
                            raise ApiError("the tokenizer revised text that was already sent; use stream: false", 500)
                        whole = _message(piece.text, self._model)
                        called: dict[str, Any] = {k: whole[k] for k in ("tool_calls", "tool_answer") if k in whole}
                        yield event(index, called, "tool_calls" if called else piece.finish_reason)
        except ApiError as error:
            yield _event(error.body())
            return
        if request.include_usage:
            yield _event({**head, "choices": [], "usage": _usage(request, last)})
        yield "data: [DONE]\n\n"

    async def _pieces(self, request: ChatRequest) -> AsyncGenerator[tuple[int, Piece], None]:
        """Generate the replies in the thread, one after the other, a token at a time."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            for index in range(request.n):
                seed = request.seed
                if seed is not None and index:
                    seed = derive_seed(seed, "choice", index)
                pieces = stopped(self._model.stream(request.prompt, seed, **request.generation_kwargs), request.stop)
                try:
                    while (piece := await loop.run_in_executor(self._thread, next, pieces, None)) is not None:
                        yield index, piece
                except RL4DialogError as error:
                    raise ApiError(str(error), 500) from error
                except Exception as error:
                    _logger.exception("a reply failed")
                    raise ApiError(f"{type(error).__name__}: {error}", 500) from error

    def _head(self, kind: str, request: ChatRequest) -> dict[str, Any]:
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": self._name}
        return head | ({"dropped_messages": request.n_dropped} if request.n_dropped else {})


def _choice(index: int, finish_reason: str | None, **content: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, **content, "finish_reason": finish_reason, "logprobs": None}


def _usage(request: ChatRequest, replies: Mapping[int, Piece]) -> dict[str, int]:
    n_prompt, n_tokens = request.n_prompt_tokens, sum(piece.n_tokens for piece in replies.values())
    return {"prompt_tokens": n_prompt, "completion_tokens": n_tokens, "total_tokens": n_prompt + n_tokens}


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


class ApiGuard(PageGuard):
    """The request filter of the page for this server, which answers errors in OpenAI's format."""

    command = "rl4dialog serve"
    posted = re.compile(".*", re.DOTALL)
    headers: ClassVar[Mapping[str, str]] = {}

    def refused(self, status: int, reason: str) -> Any:
        from starlette.responses import JSONResponse

        return JSONResponse(ApiError(reason, status).body(), status, {"connection": "close"})


def load_server() -> Any:
    """Import uvicorn, and check that starlette is there."""
    optional_module("starlette", "serve", "rl4dialog serve")
    return optional_module("uvicorn", "serve", "rl4dialog serve")


def make_app(model: ChatAgent, name: str, address: Address, api_key: str | None = None) -> App:
    """The server's ASGI app; requests must send the API key if there is one."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

    completions = Completions(model, name)
    reading = ThreadPoolExecutor(max_workers=1, thread_name_prefix="requests")
    listed = {"id": name, "object": "model", "created": 0, "owned_by": "rl4dialog"}

    def failed(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            known = "POST /v1/chat/completions, GET /v1/models"
            what = f"{request.method} {request.url.path} is not supported; known: {known}"
            error = ApiError(what, error.status_code)
        assert isinstance(error, ApiError)
        return JSONResponse(error.body(), error.status)

    def check_key(request: Request) -> None:
        sent = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if api_key is not None and not hmac.compare_digest(sent.encode(), api_key.encode()):
            raise ApiError("the API key is missing or wrong", 401, code="invalid_api_key")

    async def has_left(request: Request) -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    async def chat(request: Request) -> Response:
        check_key(request)
        loop, body = asyncio.get_running_loop(), await request.body()
        asked = await loop.run_in_executor(reading, parse_request, body, model, name)
        if asked.stream:
            return StreamingResponse(completions.events(asked), media_type="text/event-stream")
        answer = asyncio.create_task(completions.whole(asked))
        left = asyncio.create_task(has_left(request))
        try:
            await asyncio.wait((answer, left), return_when=asyncio.FIRST_COMPLETED)
            # 499 is nginx's status for a client that left, so nobody receives it.
            return JSONResponse(answer.result()) if answer.done() else Response(status_code=499)
        finally:
            answer.cancel()
            left.cancel()

    async def models(request: Request) -> Response:
        check_key(request)
        return JSONResponse({"object": "list", "data": [listed]})

    async def one_model(request: Request) -> Response:
        check_key(request)
        if request.path_params["id"] != name:
            raise ApiError(f"unknown model; this server has {name!r}", 404, code="model_not_found")
        return JSONResponse(listed)

    routes = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/models", models),
        Route("/v1/models/{id:path}", one_model),
    ]
    app = Starlette(routes=routes, exception_handlers={ApiError: failed, HTTPException: failed})
    return ApiGuard(app, address)


def serve_api(
    model: ChatAgent, name: str, address: Address, write: Callable[[str], None], api_key: str | None = None
) -> None:
    """Serve a model until Ctrl-C; requests must send the API key if there is one."""
    address.check()
    uvicorn, app = load_server(), make_app(model, name, address, api_key)
    settings = {"log_level": "warning", "lifespan": "off", "timeout_graceful_shutdown": _GRACE_S}
    config = uvicorn.Config(app, host=address.host, port=address.port, **settings)
    write(f"{name} is at {address.url}/v1; press Ctrl-C to stop.\n")
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run()
