"""What the partner ``http`` sends to a server, and how it reads the answers."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired

from pydantic import ConfigDict, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from rl4dialog.core.errors import DataError, shown, validation_message
from rl4dialog.core.files import json_value
from rl4dialog.core.types import PartnerReply


class FailedAttempt(Exception):
    """A request without a valid answer.

    Args:
        message: The reason, as the rest of a sentence that starts with the address.
        is_final: Whether another attempt would not help.
        at_least_s: Shortest wait before it, for which the server asked.
    """

    def __init__(self, message: str, is_final: bool = False, at_least_s: float = 0.0) -> None:
        super().__init__(message)
        self.is_final, self.at_least_s = is_final, at_least_s


@dataclass(frozen=True)
class Answer:
    """A server's answer.

    Attributes:
        reply: The partner's reply.
        outcome: What the partner makes of the conversation so far.
    """

    reply: PartnerReply
    outcome: Mapping[str, float] = field(default_factory=dict)


class Protocol(ABC):
    """Requests and answers of one kind of server."""

    @abstractmethod
    def begin(self, session: str, seed: int, meta_data: Mapping[str, Any]) -> None:
        """Start a conversation.

        Args:
            session: Name of the conversation.
            seed: Seed for the partner's random numbers.
            meta_data: The sample's ``meta_data``.

        Raises:
            DataError: If the meta data cannot be sent.
        """

    @abstractmethod
    def request(self, history: Sequence[str]) -> dict[str, Any]:
        """Return the arguments of httpx for a request.

        Args:
            history: All utterances so far, oldest first.
        """

    @abstractmethod
    def read(self, body: bytes) -> Answer:
        """Read an answer.

        Raises:
            FailedAttempt: If it is no answer of this protocol.
        """


class _AnswerInJson(TypedDict):
    """An answer in the protocol ``json``."""

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)  # type: ignore[misc]
    text: str | None
    reward: NotRequired[float]
    over: NotRequired[bool]
    outcome: NotRequired[dict[str, float]]
    references: NotRequired[list[str]]


class JsonProtocol(Protocol):
    """One JSON object per request and answer.

    Args:
        meta_keys: Keys of the meta data to send; ``None`` for all.
        outcomes: Keys that the outcome in every answer must have.
    """

    _answers: TypeAdapter[_AnswerInJson] = TypeAdapter(_AnswerInJson)

    def __init__(self, meta_keys: Sequence[str] | None, outcomes: Sequence[str]) -> None:
        self._meta_keys, self._outcomes = meta_keys, outcomes

    def begin(self, session: str, seed: int, meta_data: Mapping[str, Any]) -> None:
        keys = meta_data.keys() if self._meta_keys is None else self._meta_keys
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

    def read(self, body: bytes) -> Answer:
        value = _from_json(body)
        try:
            answer = self._answers.validate_python(value)
        except ValidationError as error:
            keys = list(_AnswerInJson.__annotations__)
            problem = validation_message(error.errors(), value, keys)
            raise FailedAttempt(f"returned an invalid answer{problem}", is_final=True) from None
        outcome = answer.get("outcome", {})
        if missing := [key for key in self._outcomes if key not in outcome]:
            raise FailedAttempt(
                f"returned the outcome {shown(outcome)}, without {missing[0]!r} of the argument outcomes", is_final=True
            )
        info = {"references": answer["references"]} if "references" in answer else {}
        reply = PartnerReply(
            answer["text"], reward=answer.get("reward", 0.0), info=info, leaves=answer.get("over", False)
        )
        return Answer(reply, outcome)


class VisdialRlProtocol(Protocol):
    """The server of visdial-rl that ILQL's visual dialogue task asks (routes ``/step_rank`` and ``/step``).

    A request has the form fields ``history``, ``caption``, ``img_features`` and ``generation_kwargs``, all but the
    caption in JSON. The answer is the JSON list ``[text, reward]``. The reward is the progress of the server's guesser
    in this round: of the percentile rank of the picture, or of the squared distance to its features.

    The fields were read in the public code of the server and of ILQL; a real server was not tried.

    Args:
        generation_kwargs: Settings of the answer bot.
    """

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

    def read(self, body: bytes) -> Answer:
        value = _from_json(body)
        try:
            text, reward = _VISDIAL_ANSWERS.validate_python(tuple(value) if isinstance(value, list) else value)
        except ValidationError as error:
            problem = validation_message(error.errors(), value)
            raise FailedAttempt(
                f"returned an invalid answer{problem}; it must be [text, reward]", is_final=True
            ) from None
        if not text.strip():  # the roles in later requests follow from the order of the utterances
            raise FailedAttempt("returned an answer without words", is_final=True)
        return Answer(PartnerReply(text, reward=reward))


_VISDIAL_ANSWERS: TypeAdapter[tuple[str, float]] = TypeAdapter(
    tuple[str, float], config=ConfigDict(strict=True, allow_inf_nan=False)
)


def _to_json(value: Any, what: str, fix: str) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"partner 'http' {what}, which is not possible ({error}); {fix}") from error


def _from_json(body: bytes) -> Any:
    try:
        return json_value(body)
    except (ValueError, RecursionError):
        raise FailedAttempt(f"did not answer with JSON, but with {shown(body.decode(errors='replace'))}") from None
