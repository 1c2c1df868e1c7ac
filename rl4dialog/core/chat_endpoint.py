"""Chat completions of a language model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import json
import urllib.parse
import weakref
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from rl4dialog.core.api_keys import read_api_key
from rl4dialog.core.async_calls import FinalFailure, Overloaded
from rl4dialog.core.errors import ConfigError, EndpointError
from rl4dialog.core.http_requests import (
    UNCOMPRESSED,
    UnreadAnswer,
    check_answer,
    has_credentials,
    is_http_address,
    is_overload,
    is_temporary,
    retry_after_s,
)

_MAX_SHOWN = 200


class ChatEndpoint:
    """An endpoint and the model behind it. Copies of it are the object itself, which keeps its connections open.

    Args:
        base_url: Address of the API; ``/chat/completions`` is added.
        model: Name of the model.
        api_key_env: Name of the environment variable with the API key, if one is needed.
        key: Name of a setting in messages, with ``{}`` in place of ``base_url`` and so on.
        calls_key: Key of ``concurrency`` and ``retries`` in messages.

    Attributes:
        url: Address of the requests.
    """

    def __init__(self, base_url: str, model: str, api_key_env: str | None, key: str, calls_key: str) -> None:
        name = key.format("base_url")
        if not is_http_address(base_url):
            raise ConfigError(f"{name} must be an address such as http://localhost:8000/v1")
        if has_credentials(base_url) or urllib.parse.urlsplit(base_url).query:
            raise ConfigError(f"{name} must not contain credentials or a query; set api_key_env instead")
        self.url, self._model, self._api_key_env = f"{base_url.rstrip('/')}/chat/completions", model, api_key_env
        self._key, self._calls_key = key, calls_key
        self._clients: MutableMapping[Any, Any] = weakref.WeakKeyDictionary()  # one for each event loop
        self._api_key()

    async def complete(self, messages: Sequence[Mapping[str, str]], **settings: Any) -> str:
        """Return the text of a completion.

        Args:
            messages: Messages with ``role`` and ``content``.
            settings: Further keys of the request, such as ``temperature``.

        Raises:
            EndpointError: If the endpoint cannot be reached, or returns an error or something that is not a completion.
        """
        import httpx

        api_key = self._api_key()
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        body = {"model": self._model, "messages": list(messages), **settings}
        try:
            async with self._client().stream("POST", self.url, json=body, headers=headers) as response:
                received = bytearray()
                async for part in response.aiter_raw():
                    received += part
                    check_answer(len(received), response.headers.get("Content-Encoding", ""))
        except UnreadAnswer as error:
            raise FinalFailure(f"{self.url} {error}") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = f"{type(error).__name__}: {_short(str(error), api_key)}"
            raise EndpointError(
                f"{self.url} cannot be reached: {reason}; check {self._key.format('base_url')}"
            ) from None
        text = received.decode(errors="replace")
        if response.status_code != 200:
            raise self._refusal(response.status_code, text, api_key, response.headers.get("Retry-After", ""))
        try:
            answer = json.loads(received)["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            answer = None
        if not isinstance(answer, str):
            raise EndpointError(
                f"{self.url} did not answer with a chat completion: {_short(text, api_key)!r}; check "
                f"{self._key.format('base_url')}, which usually ends in /v1"
            )
        return _masked(answer, api_key)

    def _api_key(self) -> str | None:
        """The API key, which is not kept; ``None`` if none is needed."""
        variable = self._api_key_env
        return None if variable is None else read_api_key(variable, self._key.format("api_key_env"))

    def _client(self) -> Any:
        """A client of the running event loop, without its own time limit: that of the coroutine applies."""
        import httpx

        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = httpx.AsyncClient(timeout=None, headers=UNCOMPRESSED)
        return self._clients[loop]

    def _refusal(self, status: int, text: str, api_key: str | None, retry_after: str) -> EndpointError:
        """An error for an HTTP status. Timeouts, rate limits and failures of the server can be retried."""
        message = f"{self.url} answered with HTTP status {status}: {_short(text, api_key)!r}"
        if is_overload(status):
            hint = f"; lower {self._calls_key}.concurrency, or increase {self._calls_key}.retries"
            return Overloaded(message + hint, retry_after_s(retry_after))
        if is_temporary(status):
            return EndpointError(f"{message}; {self._calls_key}.retries sets the number of retries")
        if status in (401, 403):
            name = self._key.format("api_key_env")
            where = f"environment variable {self._api_key_env}, {name}" if self._api_key_env else f"{name} is not set"
            return FinalFailure(f"{message}; check the API key ({where})")
        return FinalFailure(f"{message}; check {self._key.format('base_url')} and {self._key.format('model')}")

    def __deepcopy__(self, memo: object) -> ChatEndpoint:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_clients": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = {**state, "_clients": weakref.WeakKeyDictionary()}


def _masked(text: str, api_key: str | None) -> str:
    """A text without the key, which some servers repeat."""
    return text.replace(api_key, "***") if api_key else text


def _short(text: str, api_key: str | None) -> str:
    return _masked(text, api_key)[:_MAX_SHOWN]
