"""Questions to a judge behind an OpenAI-compatible endpoint, with a cache on disk."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, MutableMapping

from rl4dialog.core.http_requests import ChatEndpoint
from rl4dialog.rewards.answer_cache import keep_answer, kept_answer, question_key


class JudgeEndpoint:
    """Asks a model single questions, at temperature 0.

    Args:
        base_url: Address of the API; ``/chat/completions`` is added.
        model: Name of the model.
        api_key_env: Name of the environment variable with the API key, if one is needed.
        max_tokens: Maximum length of an answer, in tokens.
        cache: Whether to keep answers on disk.
    """

    def __init__(self, base_url: str, model: str, api_key_env: str | None, max_tokens: int, cache: bool) -> None:
        self._endpoint = ChatEndpoint(base_url, model, api_key_env, "{} of the judge", "reward_fn.async_calls")
        self._model, self._max_tokens, self._cache = model, max_tokens, cache
        self._being_asked: MutableMapping[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def ask(self, question: str, read: Callable[[str], float]) -> float:
        """Ask for a number, unless the answer is cached. Concurrent equal questions are asked once.

        Args:
            question: The question.
            read: Reads the number from an answer, or raises. Answers that it cannot read are not cached.

        Raises:
            EndpointError: If the endpoint cannot be reached, or returns an error or something that is not an answer.
        """
        messages = [{"role": "user", "content": question}]
        settings = {"temperature": 0, "max_tokens": self._max_tokens}
        if not self._cache:
            return read(await self._endpoint.complete(messages, **settings))
        key = question_key([self._endpoint.url, {"model": self._model, "messages": messages, **settings}])
        async with self._being_asked.setdefault(key, asyncio.Lock()):
            if (kept := kept_answer(key, str)) is not None:
                return read(kept)
            answer = await self._endpoint.complete(messages, **settings)
            number = read(answer)
            keep_answer(key, answer)
            return number
