"""Requests for chat completions in OpenAI's format: what they may contain, and the prompt that they ask for.

Settings that the server does not support are refused unless they have the value that changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from rl4dialog.core.errors import DataError, RL4DialogError, shown, validation_message
from rl4dialog.core.files import json_value
from rl4dialog.data.messages import read_messages, render_messages
from rl4dialog.data.rows import Row
from rl4dialog.policies.generation import MIN_TEMPERATURE, NOT_IN_CONVERSATIONS, GenerationSettings
from rl4dialog.serving.chat import ChatModel

_MAX_CHOICES = 16
_MAX_STOPS = 4  # of OpenAI's API
_MAX_STOP_LENGTH = 1000
# Keys about bookkeeping, and keys with the values that change nothing.
_IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls")
_WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
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


class _Message(BaseModel):
    """The keys of a message; `read_messages` decides about their values."""

    model_config = ConfigDict(extra="forbid")
    role: Any
    content: Any = None
    name: str | None = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None
    tool_call_id: Any = None


class _StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)
    include_usage: bool = False


_Stop = Annotated[str, StringConstraints(min_length=1, max_length=_MAX_STOP_LENGTH)]
_Stops = Annotated[
    list[_Stop],
    Field(max_length=_MAX_STOPS),
    BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop),
]


class _Body(BaseModel):
    """The keys that the server reads."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    model: str
    messages: list[_Message] = Field(min_length=1)
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


def parse_request(body: bytes, model: ChatModel, name: str) -> ChatRequest:
    """Parse the body of a request for a chat completion; ApiError if it cannot be answered."""
    asked = _validated(_object(body))
    if asked.model != name:
        raise ApiError(
            f"unknown model {asked.model!r}; this server has {name!r}", param="model", code="model_not_found"
        )
    if asked.stream_options is not None and not asked.stream:
        raise ApiError("stream_options works only with stream: true", param="stream_options")
    stop = tuple(asked.stop or ())
    kwargs = _generation_kwargs(asked)
    try:
        GenerationSettings.from_kwargs({**model.generation_kwargs, **kwargs}, only_sampling=NOT_IN_CONVERSATIONS)
        row = Row({"messages": [message.model_dump() for message in asked.messages]}, "the request")
        prompt, _ = render_messages(read_messages(row, "messages"), row, model.dialogue_format, model.persona or "")
        n_prompt_tokens = model.n_prompt_tokens(prompt)
    except RL4DialogError as error:
        raise ApiError(str(error), param="messages" if isinstance(error, DataError) else None) from error
    includes = asked.stream_options is not None and asked.stream_options.include_usage
    return ChatRequest(prompt, n_prompt_tokens, asked.n or 1, bool(asked.stream), includes, stop, asked.seed, kwargs)


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
        if key in _IGNORED:
            continue
        if key not in _WITHOUT_EFFECT:
            kept[key] = value
        elif value is not None and value not in _WITHOUT_EFFECT[key]:
            raise ApiError(f"{key} is not supported by this server; remove it", param=key)
    return kept


def _validated(found: dict[str, Any]) -> _Body:
    try:
        return _Body.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        problems = [problem for problem in error.errors() if problem["loc"][0] == key]
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            message = f"unknown key {key!r}; this server knows: {', '.join(_Body.model_fields)}"
        else:
            message = f"the request is invalid{validation_message(problems, found)}"
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
