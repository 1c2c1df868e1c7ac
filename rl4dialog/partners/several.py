"""Several partners in one run, of which each conversation has one: in the environments, or in the main process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any, NotRequired

import numpy as np
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from rl4dialog.core.arguments import Positive
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.protocols import Partner, PartnerService
from rl4dialog.envs.conversation import OneOf


class PartnerBlock(TypedDict):
    """An entry of ``partners`` in a config."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]
    id: str
    args: NotRequired[dict[str, Any]]
    name: NotRequired[Annotated[str, Field(pattern=r"^[\w.-]+$")]]


def names_of(partners: Sequence[PartnerBlock]) -> list[str]:
    """Names of partners: their own, or ids, with a number if others have the same id."""
    ids = [each.get("name", each["id"]) for each in partners]
    names = [
        f"{id}_{number}" if "name" not in each and ids.count(id) > 1 else id
        for number, (each, id) in enumerate(zip(partners, ids, strict=True))
    ]
    if len({*names}) < len(names):
        raise ConfigError(f"partner 'several': two partners have the same name (names: {', '.join(names)})")
    return names


class SeveralPartners(PartnerService):
    """Several partners, of which each conversation has one, by name in records and metrics.

    It is drawn with the seed of the conversation, so that the conversations of a group, which RLOO and GRPO compare,
    have the same one, and so have evaluations before and after training.

    Args:
        partners: The partners: ``id``, ``args`` as for the partner alone, and perhaps ``name``; by default the id.
        weights: How often each of them is drawn, as positive numbers relative to each other; by default equally often.
        built: The partners, built by the run.
    """

    def __init__(
        self,
        partners: Annotated[list[PartnerBlock], Field(min_length=2)],
        weights: list[Positive] | None = None,
        built: Sequence[Partner | PartnerService] = (),
    ) -> None:
        if weights is not None and len(weights) != len(partners):
            raise ConfigError(f"partner 'several': {len(partners)} partners need as many weights, not {len(weights)}")
        self._names, self._weights = names_of(partners), weights or [1.0] * len(partners)
        self._partners = built
        self.members = [each if isinstance(each, PartnerService) else None for each in built]
        self._services = {n: each for n, each in zip(self._names, self.members, strict=bool(built)) if each is not None}
        self.needs_initial_weights = any(each.needs_initial_weights for each in self._services.values())
        if learners := [name for name, each in self._services.items() if each.learns]:
            raise ConfigError(f"partner 'several': {learners[0]} cannot learn, too; remove learns: both")

    @property
    def in_lockstep(self) -> bool:  # type: ignore[override]
        return any(each.in_lockstep for each in self._services.values())

    @property
    def side(self) -> OneOf:
        inside = [each.side if isinstance(each, PartnerService) else each for each in self._partners]
        return OneOf(self._names, self._weights, inside)

    def answers(self, observations: dict[str, np.ndarray]) -> list[Sequence[int] | None]:
        raise NotImplementedError("its members are asked")

    @contextmanager
    def remembering_prompts(self) -> Iterator[None]:  # type: ignore[override]
        with ExitStack() as stack:
            for each in self._services.values():
                stack.enter_context(each.remembering_prompts())
            yield

    def begin_run(self, policy: Any, initial: Any = None) -> None:
        for each in self._services.values():
            each.begin_run(policy, initial)

    def begin_iteration(self, iteration: int) -> None:
        for each in self._services.values():
            each.begin_iteration(iteration)

    def logged(self) -> Mapping[str, Sequence[float]]:
        return {f"{key}/{n}": values for n, each in self._services.items() for key, values in each.logged().items()}

    def state_dict(self) -> dict[str, Any]:
        return {name: each.state_dict() for name, each in self._services.items()}

    def tensors(self) -> dict[str, Any]:
        return {f"{n}/{key}": value for n, each in self._services.items() for key, value in each.tensors().items()}

    def load_state(self, state: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        for name, each in self._services.items():
            own = {k.removeprefix(f"{name}/"): value for k, value in tensors.items() if k.startswith(f"{name}/")}
            each.load_state(state[name], own)
