"""Requests for chat completions in OpenAI's format: what they may contain, and the prompt that they ask for.

Settings that the server does not support are refused unless they have the value that changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from rl4dialog.core.errors import DataError, RL4DialogError, shown, validation_message
from rl4dialog.core.files import json_value
from rl4dialog.policies.generation import NOT_IN_CONVERSATIONS, GenerationSettings
from rl4dialog.serving.chat_model import ChatModel
from rl4dialog.serving.conversation import Conversation

_INSTRUCTIONS = ("system", "developer")
_MAX_CHOICES = 16
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
    """An error in OpenAI's format.

    Args:
        message: What is wrong.
        status: HTTP status.
        param: Key of the request.
        code: A short name of the error.
    """

    def __init__(self, message: str, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self._param, self._code = status, param, code

    def body(self) -> dict[str, Any]:
        """Return the answer's JSON."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self._param, "code": self._code}}


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it contains one half of a surrogate pair, which is no character") from None
    return text


_Text = Annotated[str, AfterValidator(_encodable)]


class _TextPart(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    type: Literal["text"]
    text: _Text


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    role: Literal["system", "developer", "user", "assistant"]
    content: _Text | list[_TextPart]
    name: str | None = None
    refusal: None = None

    @property
    def text(self) -> str:
        content = self.content
        return content if isinstance(content, str) else "".join(part.text for part in content)


class _StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)
    include_usage: bool = False


_Stop = Annotated[str, StringConstraints(min_length=1)]


class _Body(BaseModel):
    """The keys that the server reads."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    model: str
    messages: list[_Message] = Field(min_length=1)
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    stop: _Stop | list[_Stop] | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    n: int | None = Field(default=None, ge=1, le=_MAX_CHOICES)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)


@dataclass(frozen=True)
class ChatRequest:
    """A valid request.

    Attributes:
        prompt: The prompt in the model's dialogue format.
        n_prompt_tokens: Number of its tokens.
        n: Number of replies.
        stream: Whether to send the replies token by token.
        include_usage: Whether a stream ends with the numbers of tokens.
        stop: Texts before which a reply ends.
        seed: Random seed of the sampling, if there is one.
        generation_kwargs: Overrides of the model's sampling settings.
    """

    prompt: str
    n_prompt_tokens: int
    n: int
    stream: bool
    include_usage: bool
    stop: tuple[str, ...]
    seed: int | None
    generation_kwargs: dict[str, Any]


def parse_request(body: bytes, model: ChatModel, name: str) -> ChatRequest:
    """Parse and check a request for a chat completion.

    Args:
        body: The request's body.
        model: The model.
        name: Its name in requests.

    Raises:
        ApiError: If the request is invalid or cannot be answered.
    """
    asked = _validated(_object(body))
    if asked.model != name:
        raise ApiError(
            f"unknown model {asked.model!r}; this server has {name!r}", param="model", code="model_not_found"
        )
    if asked.stream_options is not None and not asked.stream:
        raise ApiError("stream_options works only with stream: true", param="stream_options")
    stop = (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ())
    kwargs = _generation_kwargs(asked)
    try:
        GenerationSettings.from_kwargs({**model.generation_kwargs, **kwargs}, only_sampling=NOT_IN_CONVERSATIONS)
        prompt = _prompt(asked.messages, model)
        n_prompt_tokens = model.n_prompt_tokens(prompt)
    except RL4DialogError as error:
        raise ApiError(str(error), param="messages" if isinstance(error, DataError) else None) from error
    includes = asked.stream_options is not None and asked.stream_options.include_usage
    return ChatRequest(prompt, n_prompt_tokens, asked.n or 1, bool(asked.stream), includes, stop, asked.seed, kwargs)


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json_value(body)
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
    kwargs: dict[str, Any] = {}
    if asked.temperature is not None:
        kwargs["do_sample"] = asked.temperature > 0
        if asked.temperature > 0:
            kwargs["temperature"] = asked.temperature
    if asked.top_p is not None:
        kwargs["top_p"] = asked.top_p
    if asked.max_tokens is not None and asked.max_completion_tokens is not None:
        raise ApiError("set either max_tokens or max_completion_tokens", param="max_tokens")
    limit = asked.max_tokens or asked.max_completion_tokens
    if limit is not None:
        kwargs["max_new_tokens"] = limit
    return kwargs


def _prompt(messages: list[_Message], model: ChatModel) -> str:
    """Write the prompt as chats do; the system message is the persona, without one the model's own.

    Raises:
        ApiError: If the roles are not those of a conversation in which it is the assistant's turn.
        DataError: If a text contains markup, or the chat template rejects the messages.
    """
    first = messages[0]
    persona = first.text if first.role in _INSTRUCTIONS else None
    said = messages if persona is None else messages[1:]
    for n_later, message in enumerate(reversed(said)):
        wanted = "assistant" if n_later % 2 else "user"
        if message.role != wanted:
            raise ApiError(
                f"messages[{len(messages) - 1 - n_later}].role is {message.role!r} and must be {wanted!r}: after at "
                f"most one system message at the beginning, user and assistant alternate, and the user comes last",
                param="messages",
            )
    if not said:
        raise ApiError("messages need at least one message of the user", param="messages")
    *turns, last = (message.text for message in said)
    for text in turns:
        model.dialogue_format.check_said(text)
    persona = model.persona if persona is None else persona
    return Conversation(persona or None, turns).prompt(last, model.dialogue_format)
