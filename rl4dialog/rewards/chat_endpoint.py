"""Questions to a language model behind an OpenAI-compatible endpoint, with a cache on disk."""

from __future__ import annotations

import asyncio
import os
import urllib.parse
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any

from rl4dialog.core.errors import ConfigError, RewardError
from rl4dialog.core.http_requests import has_credentials, is_http_address, is_overload, is_temporary, retry_after_s
from rl4dialog.rewards.answer_cache import keep_answer, kept_answer, question_key
from rl4dialog.rewards.async_reward import FinalFailure, Overloaded

_MAX_SHOWN = 200


class ChatEndpoint:
    """Asks a model single questions, at temperature 0.

    Args:
        base_url: Address of the API; ``/chat/completions`` is added.
        model: Name of the model.
        api_key_env: Name of the environment variable with the API key, if one is needed.
        max_tokens: Maximum length of an answer, in tokens.
        cache: Whether to keep answers on disk.

    Raises:
        ConfigError: If the address is invalid, or the environment variable is not set or contains no valid key.
    """

    def __init__(self, base_url: str, model: str, api_key_env: str | None, max_tokens: int, cache: bool) -> None:
        if not is_http_address(base_url):
            raise ConfigError("base_url of the judge must be an address such as http://localhost:8000/v1")
        if has_credentials(base_url) or urllib.parse.urlsplit(base_url).query:
            raise ConfigError("base_url of the judge must not contain credentials or a query; set api_key_env instead")
        if api_key_env is not None:
            _read_key(api_key_env)
        self._url, self._model, self._api_key_env = f"{base_url.rstrip('/')}/chat/completions", model, api_key_env
        self._max_tokens, self._cache = max_tokens, cache
        self._clients: MutableMapping[Any, Any] = weakref.WeakKeyDictionary()  # one for each event loop
        self._being_asked: MutableMapping[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def ask(self, question: str, read: Callable[[str], float]) -> float:
        """Ask for a number, unless the answer is cached. Concurrent equal questions are asked once.

        Args:
            question: The question.
            read: Reads the number from an answer, or raises. Answers that it cannot read are not cached.

        Raises:
            RewardError: If the endpoint cannot be reached, or returns an error or something that is not an answer.
        """
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": self._max_tokens,
        }
        if not self._cache:
            return read(await self._answer(body))
        key = question_key([self._url, body])
        async with self._being_asked.setdefault(key, asyncio.Lock()):
            if (kept := kept_answer(key, str)) is not None:
                return read(kept)
            answer = await self._answer(body)
            number = read(answer)
            keep_answer(key, answer)
            return number

    async def _answer(self, body: dict[str, Any]) -> str:
        import httpx

        key = _read_key(self._api_key_env) if self._api_key_env is not None else None
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            response = await self._client().post(self._url, json=body, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RewardError(
                f"{self._url} cannot be reached: {type(error).__name__}: {_short(str(error), key)}"
            ) from None
        if response.status_code != 200:
            raise self._refusal(response.status_code, response.text, key, response.headers.get("Retry-After", ""))
        try:
            answer = response.json()["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            answer = None
        if not isinstance(answer, str):
            raise RewardError(f"{self._url} did not answer with a chat completion: {_short(response.text, key)!r}")
        return _masked(answer, key)

    def _client(self) -> Any:
        """A client of the running event loop, without its own time limit: that of the coroutine applies."""
        import httpx

        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = httpx.AsyncClient(timeout=None)
        return self._clients[loop]

    def _refusal(self, status: int, text: str, key: str | None, retry_after: str) -> RewardError:
        """An error for an HTTP status. Timeouts, rate limits and failures of the server can be retried."""
        message = f"{self._url} answered with HTTP status {status}: {_short(text, key)!r}"
        if is_overload(status):
            calls = "reward_fn.async_calls"
            hint = f"; lower {calls}.concurrency, or increase {calls}.retries"
            return Overloaded(message + hint, retry_after_s(retry_after))
        if is_temporary(status):
            return RewardError(message)
        if status in (401, 403):
            where = (
                f"environment variable {self._api_key_env}" if self._api_key_env else "api_key_env, which is not set"
            )
            return FinalFailure(f"{message}; check the API key ({where})")
        return FinalFailure(message)


def _read_key(variable: str) -> str:
    """The API key in an environment variable.

    Raises:
        ConfigError: If there is none, or it cannot be sent. Its value is not shown.
    """
    key = os.environ.get(variable, "").strip()  # a file's line end would be an invalid header
    if not key:
        raise ConfigError(f"api_key_env of the judge is {variable!r}, but this environment variable is not set")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(
            f"the environment variable {variable} of the judge's api_key_env contains characters that are not "
            f"printable ASCII, so it is not an API key"
        )
    return key


def _masked(text: str, key: str | None) -> str:
    """A text without the key, which some servers repeat."""
    return text.replace(key, "***") if key else text


def _short(text: str, key: str | None) -> str:
    return _masked(text, key)[:_MAX_SHOWN]
