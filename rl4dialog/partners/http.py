"""A partner behind an HTTP server."""

from __future__ import annotations

import functools
import ssl
import time
import uuid
from collections.abc import Mapping
from typing import Any, Literal

from rl4dialog.core.arguments import NonNegative, NonNegativeInt, Positive
from rl4dialog.core.errors import ConfigError, shown
from rl4dialog.core.http_requests import (
    UNCOMPRESSED,
    UnreadAnswer,
    check_answer,
    has_credentials,
    is_http_address,
    is_temporary,
    retry_after_s,
    wait_s,
)
from rl4dialog.core.protocols import Partner
from rl4dialog.core.types import PartnerReply
from rl4dialog.partners.http_protocols import Answer, FailedAttempt, JsonProtocol, Protocol, VisdialRlProtocol

_MAX_SHOWN = 200


class HttpPartner(Partner):
    """Asks an HTTP server for every reply.

    With ``protocol: json``, a request is the POST of a JSON object ``{"session", "seed", "history", "meta_data"}``: a
    name of the conversation, the seed for random numbers, all utterances so far, and the sample's meta data. The answer
    is an object with ``text`` (``null`` to say nothing) and optionally ``reward`` (0), ``over`` (whether the
    conversation ends), ``outcome`` (numbers about the conversation so far) and ``references`` (reference replies to the
    text). With ``protocol: visdial_rl``, the server is that of visdial-rl, as ILQL's visual dialogue task uses it: the
    first utterance of a sample is its caption, and the reward is what the server returns.

    A request may be sent again after a failure, so a server should derive its answer from the history. Not reaching the
    server, timeouts, answers without valid JSON, and the HTTP statuses 408, 409, 425, 429 and from 500 are retried.
    Answers that lack something, have an invalid value, are compressed or exceed 4 MiB, and other HTTP statuses are not.
    After the last attempt the conversation counts as failed (``env.args.partner_on_error``).

    Each environment keeps its own connection, which it opens when it first asks.

    Args:
        url: Address of the requests, such as ``http://localhost:8000/reply``.
        protocol: ``json`` or ``visdial_rl``.
        timeout_s: Time limit of each attempt, in seconds. ``reward_fn.timeout_s`` limits all attempts together.
        retries: How often a failed request is repeated.
        retry_wait_s: Seconds before the first retry, doubled for each further one.
        pays: Whether the answers carry rewards, for the reward ``partner``.
        can_open: Whether the server answers an empty history with a first utterance, for ``first_speaker: partner``.
        gives_references: Whether the answers have ``references``.
        outcomes: Keys of the ``outcome`` that every answer has.
        meta_keys: Keys of the meta data to send; by default all.
        generation_kwargs: ``visdial_rl`` only: settings of the server's answer bot, by default those of ILQL.

    Raises:
        ConfigError: If the address is invalid or contains credentials, or an argument has no effect with the protocol.
        DataError: At the start of a conversation, if the meta data of the sample cannot be sent.
    """

    checks_samples = True

    def __init__(
        self,
        url: str,
        protocol: Literal["json", "visdial_rl"] = "json",
        timeout_s: Positive = 30.0,
        retries: NonNegativeInt = 2,
        retry_wait_s: NonNegative = 1.0,
        pays: bool = True,
        can_open: bool = False,
        gives_references: bool = False,
        outcomes: list[str] | None = None,
        meta_keys: list[str] | None = None,
        generation_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if not is_http_address(url):
            raise ConfigError("url of partner 'http' must be an address such as http://localhost:8000/reply")
        if has_credentials(url):
            raise ConfigError("url of partner 'http' must not contain credentials, because it is saved with the run")
        of_json = {
            "can_open": can_open or None,
            "gives_references": gives_references or None,
            "outcomes": outcomes,
            "meta_keys": meta_keys,
        }
        without_effect = of_json if protocol == "visdial_rl" else {"generation_kwargs": generation_kwargs}
        if names := [name for name, value in without_effect.items() if value is not None]:
            raise ConfigError(f"partner 'http': {', '.join(names)} cannot be set with protocol: {protocol}")
        self.pays, self.can_open, self.gives_references = pays, can_open, gives_references
        self.outcomes = tuple(outcomes or ())
        self._protocol: Protocol = (
            JsonProtocol(meta_keys, self.outcomes)
            if protocol == "json"
            else VisdialRlProtocol(generation_kwargs or {"inference": "greedy", "beamSize": 1})
        )
        self._url, self._timeout_s, self._retries, self._retry_wait_s = url, timeout_s, retries, retry_wait_s
        self._outcome: Mapping[str, float] = {}
        self._session = ""
        self._client: Any = None

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._session, self._outcome = uuid.uuid4().hex, {}
        self._protocol.begin(self._session, seed, meta_info)

    def open(self) -> PartnerReply:
        return self.reply([])

    def reply(self, history: list[str]) -> PartnerReply:
        at_least_s, n_failures = 0.0, 0
        while True:
            try:
                answer = self._ask(history)
            except FailedAttempt as failure:
                n_failures += 1
                if failure.is_final or n_failures > self._retries:
                    return PartnerReply(failed=self._message(failure, n_failures))
                at_least_s = failure.at_least_s
            else:
                self._outcome = answer.outcome
                return answer.reply
            time.sleep(wait_s(n_failures, self._retry_wait_s, at_least_s))

    def outcome(self) -> Mapping[str, float]:
        return self._outcome

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}  # a connection belongs to one environment of one process

    def _message(self, failure: FailedAttempt, n_attempts: int) -> str:
        attempts = "1 attempt" if n_attempts == 1 else f"{n_attempts} attempts"
        return f"{self._url} {failure} (session {self._session}, {attempts})"

    def _ask(self, history: list[str]) -> Answer:
        """Ask once."""
        import httpx

        if self._client is None:
            self._client = httpx.Client(timeout=self._timeout_s, headers=UNCOMPRESSED, verify=_certificates())
        deadline, body = time.monotonic() + self._timeout_s, bytearray()
        try:
            with self._client.stream("POST", self._url, **self._protocol.request(history)) as response:
                for part in response.iter_raw():
                    body += part
                    check_answer(len(body), response.headers.get("Content-Encoding", ""))
                    if time.monotonic() > deadline:  # httpx limits each read, but not their sum
                        raise httpx.ReadTimeout("")
        except UnreadAnswer as error:
            self._disconnect()
            raise FailedAttempt(str(error), is_final=True) from None
        except httpx.TimeoutException:
            self._disconnect()
            raise FailedAttempt(f"did not answer within its timeout_s of {self._timeout_s:g}") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._disconnect()
            reason = f"{type(error).__name__}: {str(error)[:_MAX_SHOWN]}"
            raise FailedAttempt(f"cannot be reached: {reason}") from None
        except BaseException:  # such as the time limit of the environment, in the middle of an answer
            self._disconnect()
            raise
        if response.is_success:
            return self._protocol.read(bytes(body))
        text = shown(body.decode(errors="replace"), _MAX_SHOWN)
        status = response.status_code
        raise FailedAttempt(
            f"answered with HTTP status {status}: {text}",
            is_final=not is_temporary(status),
            at_least_s=retry_after_s(response.headers.get("Retry-After", "")),
        )

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        client.close()


@functools.cache
def _certificates() -> ssl.SSLContext:
    """The trusted certificates; reading them takes 30 ms, which is too long to do it for each environment."""
    import httpx

    return httpx.create_ssl_context()
