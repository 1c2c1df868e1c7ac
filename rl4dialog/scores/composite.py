"""A weighted sum of rewards, which are also logged separately; weights can change over the iterations."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

from rl4dialog.core.async_calls import AsyncCalls
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.reward_parts import RewardPart, clip_bounds
from rl4dialog.core.types import is_number
from rl4dialog.scores.base import Batch, BatchReward
from rl4dialog.scores.parts import as_parts
from rl4dialog.scores.scoring import Scorer

Weight = float | Callable[[int], float]  # a number, or a function of the iteration, counted from 1


class RewardBlock(TypedDict):
    """A reward of a composite in YAML."""

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)  # type: ignore[misc]
    id: str
    args: NotRequired[dict[str, Any] | None]
    weight: NotRequired[Annotated[Any, AfterValidator(parse_weight)]]
    name: NotRequired[str]
    clip: NotRequired[Annotated[Any, AfterValidator(_parse_clip)]]
    pay: NotRequired[Literal["end", "turn"]]


class CompositeReward(BatchReward):
    """Sum of rewards; token-level parts run in the env workers, batched and async ones in the main process.

    In the main process, each part is first clipped and then weighted. Logged values are neither clipped nor weighted.

    Args:
        rewards: Blocks with ``id``, and optionally ``args``, ``weight`` (default 1; a number or a schedule, see
            :func:`~rl4dialog.scores.composite.parse_weight`), ``clip`` (a positive number, or the minimum and maximum
            of each payment), ``pay`` (``end`` to score only the last reply of a conversation, ``turn`` to score every
            one; see ``reward_fn.pay``) and ``name`` for the logs.
        build_part: Builds a reward from id and arguments; passed by the toolkit.
        async_calls: Settings for awaiting coroutines; passed by the toolkit.
    """

    def __init__(
        self,
        rewards: Annotated[list[RewardBlock], Field(min_length=1)],
        build_part: Callable[[str, dict[str, Any]], Any] | None = None,
        async_calls: AsyncCalls | None = None,
    ) -> None:
        from rl4dialog.catalog import RewardFunctionRegistry

        self._async_calls = async_calls or AsyncCalls()
        self.parts: list[RewardPart] = []
        for block, (id, args, _) in zip(rewards, self.inner_rewards({"rewards": rewards}), strict=True):
            weight, bounds = parse_weight(block.get("weight", 1.0)), _parse_clip(block.get("clip"))
            reward = (build_part or RewardFunctionRegistry.get)(id, args)
            if bounds is not None and hasattr(reward, "parts"):
                problem = f"{id!r} is itself a composite, whose parts are added one by one"
                raise ConfigError(f"reward 'composite': {problem}; put clip into its blocks instead")
            for part in as_parts(reward, block.get("name", id)):
                taken = {each.name for each in self.parts}
                names = itertools.chain([part.name], (f"{part.name}_{n}" for n in itertools.count(2)))
                name = next(name for name in names if name not in taken)
                changed = replace(part, name=name, weight=multiply(weight, part.weight))
                each_turn = block["pay"] == "turn" if "pay" in block else part.each_turn
                self.parts.append(replace(changed, clip=bounds or part.clip, each_turn=each_turn))
        if not any(part.weight for part in self.parts):
            raise ConfigError("reward 'composite': all weights are 0, so the reward is always 0")

    @classmethod
    def inner_rewards(cls, args: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, dict[str, Any], str]]:
        """Yield id, arguments and path of the arguments of each reward in a composite's arguments."""
        for i, block in enumerate(args["rewards"]):
            yield block["id"], dict(block.get("args") or {}), f"{where}.rewards[{i}].args"

    def rewards(self, batch: Batch) -> list[float]:
        return Scorer(self.parts, async_calls=self._async_calls).score(batch).total


def _parse_clip(bounds: Any) -> tuple[float, float] | None:
    return clip_bounds(bounds) if bounds is not None else None


@dataclass(frozen=True)
class Constant:
    """The same value in all iterations, which is the weight itself."""

    value: float
    schedule: Literal["constant"] = "constant"


@dataclass(frozen=True)
class Linear:
    """Linear from ``start`` in the first iteration to ``end`` in iteration ``n_iters``, constant after that."""

    start: float
    end: float
    n_iters: Annotated[int, Field(ge=2)]
    schedule: Literal["linear"] = "linear"

    def __call__(self, iteration: int) -> float:
        share = min((iteration - 1) / (self.n_iters - 1), 1.0)
        return self.start + share * (self.end - self.start)


def _from_the_first(values: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    begins = [begin for begin, _ in values]
    if begins != sorted({1, *begins}):
        raise ValueError("needs values such as [[1, 1.0], [20, 0.5]], starting with iteration 1, in order")
    return values


@dataclass(frozen=True)
class Piecewise:
    """Of ``values``, pairs of first iteration and value, the last one that has begun."""

    values: Annotated[tuple[tuple[int, float], ...], AfterValidator(_from_the_first)]
    schedule: Literal["piecewise"] = "piecewise"

    def __call__(self, iteration: int) -> float:
        return next(value for begin, value in reversed(self.values) if begin <= iteration)


@dataclass(frozen=True)
class Product:
    """The product of two weights, of which at least one changes."""

    first: Weight
    second: Weight

    def __call__(self, iteration: int) -> float:
        first, second = (each(iteration) if callable(each) else each for each in (self.first, self.second))
        return first * second


def multiply(first: Weight, second: Weight) -> Weight:
    return Product(first, second) if callable(first) or callable(second) else first * second


_SCHEDULE = TypeAdapter[Any](
    Annotated[Constant | Linear | Piecewise, Field(discriminator="schedule")],
    config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False),
)


def parse_weight(spec: Any) -> Weight:
    """Parse a weight from YAML.

    It is a number, or a block ``{schedule: constant, value: x}``, ``{schedule: linear, start: x, end: y, n_iters: n}``
    or ``{schedule: piecewise, values: [[1, x], [20, y]]}`` (pairs of first iteration and value).
    """
    if is_number(spec):
        return float(spec)
    if not isinstance(spec, Mapping):
        raise ValueError("must be a number or a block with a schedule")
    found = _SCHEDULE.validate_json(json.dumps(spec))  # JSON has no tuples, so lists are accepted for them
    return found.value if isinstance(found, Constant) else found
