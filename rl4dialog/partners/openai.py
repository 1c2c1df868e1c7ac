"""A partner behind an OpenAI-compatible chat endpoint."""

from __future__ import annotations

import functools
from typing import Annotated, Any

from pydantic import Field

from rl4dialog.core.arguments import Count, NonNegative, NonNegativeInt, Positive, SecretName
from rl4dialog.core.async_calls import AsyncCalls, Call
from rl4dialog.core.errors import ConfigError, EndpointError
from rl4dialog.core.http_requests import ChatEndpoint
from rl4dialog.core.types import PartnerReply
from rl4dialog.data.dialogue_format import chat_messages
from rl4dialog.data.dialogue_text import persona_in
from rl4dialog.partners.http import ServerPartner

_KEY = "env.args.partner.args"
_OWN_KEYS = ("model", "messages", "stream", "n", "seed")
_SILENCE = "..."


class OpenAIPartner(ServerPartner):
    """Asks an OpenAI-compatible chat endpoint, such as vLLM, Ollama or a hosted model, for every reply.

    Its own utterances are those of the assistant, and the agent's are those of the user. All environments of a process
    send their requests at once, up to ``concurrency``.

    Not reaching the endpoint, timeouts, answers that are no chat completion or have no text, and the HTTP statuses 408,
    409, 425, 429 and from 500 are retried; a longer wait that the endpoint asks for (``Retry-After``) applies, up to 60
    seconds. Other statuses are not. After the last attempt the conversation counts as failed
    (``env.args.partner_on_error``).

    Args:
        base_url: Address of the API, such as ``http://localhost:8000/v1``.
        model: Name of the model behind the endpoint.
        api_key_env: Name of the environment variable with the API key; by default no key is sent. The key is never
            logged or saved.
        instructions: Beginning of the system message: the partner's task, for all conversations.
        persona_key: Key of its persona in the samples' ``meta_data``: a text or a list of sentences, which follows the
            instructions in the system message. Samples without the key have none.
        opening_request: A first message of the user, if the conversation would otherwise start with the partner, as
            with ``first_speaker: partner``. Many models require one.
        max_tokens: Maximum length of a reply, in the endpoint's tokens; ``null`` sends no limit.
        generation_kwargs: Further keys of the requests, such as ``temperature``, ``top_p``, ``stop`` or
            ``max_completion_tokens``.
        send_seed: Whether to send the conversation's seed. Some endpoints refuse it. Endpoints that follow it repeat
            their replies in a repeated run.
        concurrency: Maximum number of concurrent requests of each process: of an environment worker (``env.n_workers``)
            and, in evaluations, of the main process.
        timeout_s: Time limit of each attempt, in seconds. ``reward_fn.timeout_s`` limits all attempts together.
        retries: How often a failed request is repeated.
        retry_wait_s: Seconds before the first retry, doubled for each further one.
    """

    can_open = True

    def __init__(
        self,
        base_url: str,
        model: Annotated[str, Field(pattern=r"\S")],
        api_key_env: SecretName | None = None,
        instructions: str | None = None,
        persona_key: str = "partner_persona",
        opening_request: str = "Start the conversation.",
        max_tokens: Count | None = 128,
        generation_kwargs: dict[str, Any] | None = None,
        send_seed: bool = True,
        concurrency: Count = 8,
        timeout_s: Positive = 60.0,
        retries: NonNegativeInt = 2,
        retry_wait_s: NonNegative = 1.0,
    ) -> None:
        settings = {} if max_tokens is None else {"max_tokens": max_tokens}
        for key in generation_kwargs or {}:
            if key in (*_OWN_KEYS, *settings):
                hint = "set max_tokens itself" if key in settings else "the partner sets it"
                raise ConfigError(f"{_KEY}.generation_kwargs cannot contain {key}: {hint}")
        self._settings, self._send_seed = {**settings, **(generation_kwargs or {})}, send_seed
        self._instructions, self._persona_key, self._opening_request = instructions, persona_key, opening_request
        super().__init__(AsyncCalls(concurrency, timeout_s, retries, retry_wait_s, key=_KEY))
        self._endpoint = ChatEndpoint(base_url, model, api_key_env, _KEY + ".{}", _KEY)
        self._url = self._endpoint.url

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        super().reset(meta_info, seed)
        persona = persona_in(meta_info, self._persona_key)
        self._system, self._seed = "\n\n".join(filter(None, (self._instructions, persona))), seed

    def _call(self, history: list[str]) -> Call:
        messages = chat_messages([text if text.strip() else _SILENCE for text in history], self._system)
        n = 1 if self._system else 0
        if len(messages) == n or messages[n]["role"] == "assistant":
            messages.insert(n, {"role": "user", "content": self._opening_request})
        seed = {"seed": self._seed} if self._send_seed else {}
        return functools.partial(self._text, messages, **self._settings, **seed)

    def _read(self, answer: str) -> PartnerReply:
        return PartnerReply(answer)

    async def _text(self, messages: list[dict[str, str]], **settings: Any) -> str:
        text = await self._endpoint.complete(messages, **settings)
        if not text.strip():
            raise EndpointError(
                f"{self._url} answered without text; {_KEY}.max_tokens may be too low for a model that thinks "
                f"before it answers"
            )
        return text.strip()
