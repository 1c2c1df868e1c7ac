"""HTTP: requests that may fail and be repeated, chat completions of a language model, and API keys.

`post` makes single attempts, with one client per event loop that keeps connections open. `AsyncCalls` has time limits
and retries. API keys come from environment variables and are in no config, message or file.
"""

from __future__ import annotations

import asyncio
import json
import os
import urllib.parse
import weakref
from collections.abc import Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from rl4dialog.core.async_calls import MAX_RETRY_AFTER_S, FinalFailure, Overloaded
from rl4dialog.core.errors import ConfigError, EndpointError

if TYPE_CHECKING:
    import httpx

MAX_ANSWER_BYTES = 4 * 2**20
_MAX_SHOWN = 200

_clients: MutableMapping[Any, httpx.AsyncClient] = weakref.WeakKeyDictionary()


def is_http_address(url: str) -> bool:
    """Whether a text is an address of HTTP or HTTPS, with a host and a possible port."""
    try:
        parts = urllib.parse.urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # for half an IPv6 address, or a port that is not one
        return False


def has_credentials(url: str) -> bool:
    """Whether an address contains a user name or a password."""
    parts = urllib.parse.urlsplit(url)
    return bool(parts.username or parts.password)


def is_overload(status: int) -> bool:
    """Whether an HTTP status asks for fewer requests, or for the same one later."""
    return status in (429, 503)


def is_temporary(status: int) -> bool:
    """Whether the same request may succeed later: timeouts, overload, and failures of the server."""
    return is_overload(status) or status in (408, 409, 425) or status >= 500


def retry_after_s(header: str) -> float:
    """The seconds in a ``Retry-After`` header, up to a minute; 0 for a date, or without one."""
    return min(float(header), MAX_RETRY_AFTER_S) if header.isdecimal() else 0.0


def read_api_key(variable: str, key: str) -> str:
    """The API key in an environment variable, which the setting `key` names."""
    found = os.environ.get(variable, "").strip()  # a file's line end would be an invalid header
    if not found:
        raise ConfigError(f"{key} is {variable!r}, but this environment variable is not set")
    if not (found.isascii() and found.isprintable()):
        raise ConfigError(f"the environment variable {variable} of {key} has characters that no API key has")
    return found


class Unreachable(EndpointError):
    """A server that cannot be reached, or breaks off."""


async def send(
    url: str, secret: str | None = None, method: str = "POST", **request: Any
) -> tuple[httpx.Response, bytes]:
    """Send a request once, with arguments of httpx, and without a time limit: that of the coroutine applies.

    Returns the response and its body. Raises :class:`Unreachable`, or a final failure if the answer is too large, or
    compressed: a few compressed bytes could fill the memory. No message contains the secret.
    """
    import httpx

    loop = asyncio.get_running_loop()
    if loop not in _clients:
        # Many servers close idle connections after 5 s; a request in this moment would be lost.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=2.0)
        _clients[loop] = httpx.AsyncClient(timeout=None, limits=limits, headers={"Accept-Encoding": "identity"})
    body = bytearray()
    try:
        async with _clients[loop].stream(method, url, **request) as response:
            encoding = response.headers.get("Content-Encoding", "identity")
            async for part in response.aiter_raw():
                body += part
                if encoding != "identity":
                    what = f"the Content-Encoding {encoding[:20]!r}; answers must not be compressed"
                    raise FinalFailure(f"{url} answered with {what}")
                if len(body) > MAX_ANSWER_BYTES:
                    raise FinalFailure(f"{url} answered with more than {MAX_ANSWER_BYTES} bytes")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = f"{type(error).__name__}: {_short(str(error), secret)}"
        raise Unreachable(f"{url} cannot be reached: {reason}") from None
    return response, bytes(body)


def refusal(url: str, response: httpx.Response, what: str, hint: str = "") -> EndpointError:
    """An error for an HTTP status, with what else was answered. Temporary ones can be retried."""
    message = f"{url} answered with HTTP status {response.status_code}: {what}{hint}"
    if not is_temporary(response.status_code):
        return FinalFailure(message)
    return Overloaded(message, retry_after_s(response.headers.get("Retry-After", "")))


class ChatEndpoint:
    """An OpenAI-compatible endpoint and the model behind it. Its API key, if it has one, is in an environment variable.

    Messages name settings by the key, with ``{}`` in place of ``base_url`` and so on; `calls_key` has ``retries``.
    """

    def __init__(self, base_url: str, model: str, api_key_env: str | None, key: str, calls_key: str) -> None:
        name = key.format("base_url")
        if not is_http_address(base_url):
            raise ConfigError(f"{name} must be an address such as http://localhost:8000/v1")
        if has_credentials(base_url) or urllib.parse.urlsplit(base_url).query:
            raise ConfigError(f"{name} must not contain credentials or a query; set api_key_env instead")
        self.url, self._model, self._api_key_env = f"{base_url.rstrip('/')}/chat/completions", model, api_key_env
        self._key, self._calls_key = key, calls_key
        self._api_key()

    async def complete(self, messages: Sequence[Mapping[str, str]], **settings: Any) -> str:
        """The text of a completion, with further keys of the request such as ``temperature``."""
        api_key, base_url = self._api_key(), self._key.format("base_url")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        body = {"model": self._model, "messages": list(messages), **settings}
        try:
            response, received = await send(self.url, api_key, json=body, headers=headers)
        except Unreachable as error:
            raise EndpointError(f"{error}; check {base_url}") from None
        text = _short(received.decode(errors="replace"), api_key)
        if response.status_code != 200:
            raise refusal(self.url, response, repr(text), self._hint(response.status_code))
        try:
            answer = json.loads(received)["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            answer = None
        if not isinstance(answer, str):
            what = f"{self.url} did not answer with a chat completion: {text!r}"
            raise EndpointError(f"{what}; check {base_url}, which usually ends in /v1")
        return _masked(answer, api_key)

    def _api_key(self) -> str | None:
        variable = self._api_key_env
        return None if variable is None else read_api_key(variable, self._key.format("api_key_env"))

    def _hint(self, status: int) -> str:
        if is_overload(status):
            return f"; lower {self._calls_key}.concurrency, or increase {self._calls_key}.retries"
        if is_temporary(status):
            return f"; {self._calls_key}.retries sets the number of retries"
        if status in (401, 403):
            name = self._key.format("api_key_env")
            where = f"environment variable {self._api_key_env}, {name}" if self._api_key_env else f"{name} is not set"
            return f"; check the API key ({where})"
        return f"; check {self._key.format('base_url')} and {self._key.format('model')}"


def _masked(text: str, secret: str | None) -> str:
    """A text without the key, which some servers repeat."""
    return text.replace(secret, "***") if secret else text


def _short(text: str, secret: str | None) -> str:
    return _masked(text, secret)[:_MAX_SHOWN]
