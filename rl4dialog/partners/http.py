"""A partner behind an HTTP server: what it sends, and how it reads the answers."""

from __future__ import annotations

import asyncio
import functools
import json
import uuid
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Literal, NotRequired

from pydantic import ConfigDict, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from rl4dialog.core.arguments import NonNegative, NonNegativeInt, Positive
from rl4dialog.core.async_calls import AsyncCalls, Call, FinalFailure, in_background
from rl4dialog.core.errors import ConfigError, DataError, EndpointError, shown, validation_message
from rl4dialog.core.files import json_value
from rl4dialog.core.http_requests import has_credentials, is_http_address, refusal, send
from rl4dialog.core.protocols import Partner
from rl4dialog.core.types import PartnerReply

_MAX_SHOWN = 200
_MAX_REQUESTS = 8  # at a time, of a process


class ServerPartner(Partner):
    """A partner behind a server: all environments of a process send their requests before the first one waits."""

    _url: str
    _session = ""  # what names the conversation in messages
    waits = True
    unrepeatable = "its server may answer the same conversation differently"

    def __init__(self, calls: AsyncCalls) -> None:
        self._calls, self._slots = calls, uuid.uuid4().hex  # copies share the limit of concurrent requests
        self._expected: tuple[list[str], Future[Any]] | None = None

    @abstractmethod
    def _call(self, history: list[str]) -> Call:
        """What asks once for the reply to a history."""

    @abstractmethod
    def _read(self, answer: Any) -> PartnerReply:
        """The reply in an answer."""

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._forget()

    def expect(self, history: list[str]) -> None:
        self._forget()
        slots = _slots(self._slots, self._calls.concurrency)
        self._expected = history, in_background(self._calls.attempt(self._call(history), slots))

    def open(self) -> PartnerReply:
        return self.reply([])

    def reply(self, history: list[str]) -> PartnerReply:
        if self._expected is None or self._expected[0] != history:
            self.expect(history)
        assert self._expected is not None
        try:
            return self._read(self._expected[1].result())
        except Exception as error:
            reason = str(error)
            if not isinstance(error, (EndpointError, ConfigError)):
                kind = "" if isinstance(error, TimeoutError) else f"{type(error).__name__}: "
                reason = f"{self._url} failed: {kind}{error}"
            return PartnerReply(failed=f"{reason} ({self._session}{self._calls.attempts(error)})")
        finally:
            self._forget()  # also if the time limit of the environment interrupts the wait

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_expected": None}  # a request belongs to one environment of one process

    def _forget(self) -> None:
        if self._expected is not None:
            self._expected[1].cancel()
        self._expected = None


@functools.cache
def _slots(name: str, n: int) -> asyncio.Semaphore:
    """The limit of concurrent requests of this name in this process."""
    return asyncio.Semaphore(n)


class HttpPartner(ServerPartner):
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

    The environments of a process ask together, up to eight at a time, over connections that stay open.

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
        self._protocol = (
            JsonProtocol(meta_keys, self.outcomes)
            if protocol == "json"
            else VisdialRlProtocol(generation_kwargs or {"inference": "greedy", "beamSize": 1})
        )
        super().__init__(AsyncCalls(_MAX_REQUESTS, timeout_s, retries, retry_wait_s, key="env.args.partner.args"))
        self._url = url
        self._outcome: Mapping[str, float] = {}

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        super().reset(meta_info, seed)
        name = uuid.uuid4().hex
        self._session, self._outcome = f"session {name}, ", {}
        self._protocol.begin(name, seed, meta_info)

    def outcome(self) -> Mapping[str, float]:
        return self._outcome

    def _call(self, history: list[str]) -> Call:
        return functools.partial(self._ask, self._protocol.request(history))

    def _read(self, answer: _Answer) -> PartnerReply:
        reply, self._outcome = answer
        return reply

    async def _ask(self, request: dict[str, Any]) -> _Answer:
        response, body = await send(self._url, **request)
        if not response.is_success:
            raise refusal(self._url, response, shown(body.decode(errors="replace"), _MAX_SHOWN))
        try:
            return self._protocol.read(body)
        except EndpointError as error:
            raise type(error)(f"{self._url} {error}") from None


_Answer = tuple[PartnerReply, Mapping[str, float]]  # of a server, with the outcome of the conversation so far


class _AnswerInJson(TypedDict):
    """An answer in the protocol ``json``."""

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)  # type: ignore[misc]
    text: str | None
    reward: NotRequired[float]
    over: NotRequired[bool]
    outcome: NotRequired[dict[str, float]]
    references: NotRequired[list[str]]


class JsonProtocol:
    """One JSON object per request and answer, with these keys of the meta data and of the outcome.

    ``request`` returns the arguments of httpx. Messages of an ``EndpointError`` of ``read`` continue a sentence that
    starts with the address.
    """

    _answers: TypeAdapter[_AnswerInJson] = TypeAdapter(_AnswerInJson)

    def __init__(self, meta_keys: Sequence[str] | None, outcomes: Sequence[str]) -> None:
        self._meta_keys, self._outcomes = meta_keys, outcomes

    def begin(self, session: str, seed: int, meta_data: Mapping[str, Any]) -> None:
        keys = meta_data if self._meta_keys is None else self._meta_keys
        if missing := [key for key in keys if key not in meta_data]:
            raise DataError(
                f"partner 'http' sends meta_data[{missing[0]!r}] of each sample (meta_keys), which is missing; the "
                f"keys are: {', '.join(map(str, meta_data)) or 'none'}"
            )
        sent = {key: meta_data[key] for key in keys}
        _to_json(sent, "sends the meta_data of each sample as JSON", "name those to send in meta_keys")
        self._about: dict[str, Any] = {"session": session, "seed": seed, "meta_data": sent}

    def request(self, history: Sequence[str]) -> dict[str, Any]:
        body = json.dumps({**self._about, "history": list(history)})
        return {"content": body.encode(), "headers": {"Content-Type": "application/json"}}

    def read(self, body: bytes) -> _Answer:
        value = _from_json(body)
        try:
            answer = self._answers.validate_python(value)
        except ValidationError as error:
            keys = list(_AnswerInJson.__annotations__)
            problem = validation_message(error.errors(), value, keys)
            raise FinalFailure(f"returned an invalid answer{problem}") from None
        outcome = answer.get("outcome", {})
        if missing := [key for key in self._outcomes if key not in outcome]:
            raise FinalFailure(
                f"returned the outcome {shown(outcome)}, without {missing[0]!r} of the argument outcomes"
            )
        info = {"references": answer["references"]} if "references" in answer else {}
        reward, leaves = answer.get("reward", 0.0), answer.get("over", False)
        return PartnerReply(answer["text"], reward=reward, info=info, leaves=leaves), outcome


class VisdialRlProtocol:
    """The server of visdial-rl that ILQL's visual dialogue task asks (routes ``/step_rank`` and ``/step``).

    A request has the form fields ``history``, ``caption``, ``img_features`` and ``generation_kwargs``, all but the
    caption in JSON. The answer is the JSON list ``[text, reward]``. The reward is the progress of the server's guesser
    in this round: of the percentile rank of the picture, or of the squared distance to its features.

    The fields were read in the public code of the server and of ILQL; a real server was not tried.
    """

    _answers: TypeAdapter[tuple[str, float]] = TypeAdapter(
        tuple[str, float], config=ConfigDict(strict=True, allow_inf_nan=False)
    )

    def __init__(self, generation_kwargs: Mapping[str, Any]) -> None:
        self._generation_kwargs = json.dumps(dict(generation_kwargs))

    def begin(self, session: str, seed: int, meta_data: Mapping[str, Any]) -> None:
        if not isinstance(features := meta_data.get("img_features"), (list, tuple)):
            raise DataError(
                f"partner 'http' with protocol: visdial_rl needs samples with a list of numbers in "
                f"meta_data['img_features'], not {shown(features)}"
            )
        self._features = _to_json(list(features), "sends meta_data['img_features'] as JSON", "use plain numbers")

    def request(self, history: Sequence[str]) -> dict[str, Any]:
        caption, *said = history
        speakers = ("question", "answer")
        spoken = [{"speaker": speakers[i % 2], "text": text} for i, text in enumerate(said)]
        return {
            "data": {
                "history": json.dumps(spoken),
                "caption": caption,
                "img_features": self._features,
                "generation_kwargs": self._generation_kwargs,
            }
        }

    def read(self, body: bytes) -> _Answer:
        value = _from_json(body)
        try:
            text, reward = self._answers.validate_python(tuple(value) if isinstance(value, list) else value)
        except ValidationError as error:
            problem = validation_message(error.errors(), value)
            raise FinalFailure(f"returned an invalid answer{problem}; it must be [text, reward]") from None
        if not text.strip():  # the roles in later requests follow from the order of the utterances
            raise FinalFailure("returned an answer without words")
        return PartnerReply(text, reward=reward), {}


def _to_json(value: Any, what: str, fix: str) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"partner 'http' {what}, which is not possible ({error}); {fix}") from error


def _from_json(body: bytes) -> Any:
    try:
        return json_value(body)
    except (ValueError, RecursionError):
        raise EndpointError(f"did not answer with JSON, but with {shown(body.decode(errors='replace'))}") from None
