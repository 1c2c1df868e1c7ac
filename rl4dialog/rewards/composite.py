"""A weighted sum of rewards, which are also logged separately."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from rl4dialog.core.async_calls import AsyncCalls
from rl4dialog.core.errors import ConfigError, nearest_hint
from rl4dialog.core.protocols import BatchedRewardFunction
from rl4dialog.core.reward_parts import FinishedReplies, RewardPart, clip_bounds
from rl4dialog.rewards.parts import as_parts
from rl4dialog.rewards.schedules import Weight, multiply, parse_weight
from rl4dialog.rewards.scoring import Scorer

_KEYS = ("id", "args", "weight", "name", "clip", "pay")
_PAYS = ("end", "turn")


class CompositeReward(BatchedRewardFunction):
    """Sum of rewards; token-level parts run in the env workers, batched and async ones in the main process.

    In the main process, each part is first clipped and then weighted. Logged values are neither clipped nor weighted.

    Args:
        rewards: Blocks with ``id``, and optionally ``args``, ``weight`` (default 1; a number or a schedule, see
            :func:`~rl4dialog.rewards.schedules.parse_weight`), ``clip`` (a positive number, or the minimum and maximum
            of each payment), ``pay`` (``end`` to score only the last reply of a conversation, ``turn`` to score every
            one; see ``reward_fn.pay``) and ``name`` for the logs.
        build_part: Builds a reward from id and arguments; passed by the toolkit.
        async_calls: Settings for awaiting coroutines; passed by the toolkit.

    Raises:
        ConfigError: If a block is invalid; the message contains its path.
    """

    def __init__(
        self,
        rewards: list[dict[str, Any]],
        build_part: Callable[[str, dict[str, Any]], Any] | None = None,
        async_calls: AsyncCalls | None = None,
    ) -> None:
        if build_part is None:
            from rl4dialog.catalog import RewardFunctionRegistry

            build_part = RewardFunctionRegistry.get
        self._async_calls = async_calls or AsyncCalls()
        self.parts: list[RewardPart] = []
        for block, (id, args, _) in zip(rewards, self.inner_rewards({"rewards": rewards}), strict=True):
            weight, bounds = _weight_and_clip(block, id)
            reward = build_part(id, args)
            if bounds is not None and hasattr(reward, "parts"):
                raise ConfigError(
                    f"reward 'composite': {id!r} is itself a composite, whose parts are added one by one; put clip "
                    f"into its blocks instead"
                )
            for part in as_parts(reward, block.get("name", id)):
                name, product = self._unique(part.name), multiply(weight, part.weight)
                each_turn = block["pay"] == "turn" if "pay" in block else part.each_turn
                self.parts.append(
                    replace(part, name=name, weight=product, clip=bounds or part.clip, each_turn=each_turn)
                )

    @classmethod
    def inner_rewards(
        cls, args: Mapping[str, Any], where: str = "reward 'composite'"
    ) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Yield id, arguments and path of the arguments of each reward in a composite's arguments.

        Raises:
            ConfigError: If a block is invalid; the message contains its path.
        """
        rewards = args.get("rewards")
        if not isinstance(rewards, list) or not rewards:
            raise ConfigError(f"{where}.rewards must be a list of at least one block with an id")
        for i, block in enumerate(rewards):
            _check_block(block, f"{where}.rewards[{i}]")
            yield block["id"], dict(block.get("args") or {}), f"{where}.rewards[{i}].args"

    def __call__(
        self,
        prompt_texts: list[str],
        gen_texts: list[str],
        ref_texts: list[list[str]],
        dones: list[bool],
        meta_infos: list[dict[str, Any]] | None = None,
    ) -> list[float]:
        replies = FinishedReplies(prompt_texts, gen_texts, ref_texts, meta_infos or [], dones=dones)
        return Scorer(self.parts, async_calls=self._async_calls).score(replies).total

    def _unique(self, name: str) -> str:
        taken = {part.name for part in self.parts}
        candidate, n = name, 1
        while candidate in taken:
            n += 1
            candidate = f"{name}_{n}"
        return candidate


def _check_block(block: Any, where: str) -> None:
    if not isinstance(block, dict) or "id" not in block:
        raise ConfigError(f"{where} must be a block with an id, not {block!r}")
    for key in block:
        if key not in _KEYS:
            raise ConfigError(f"unknown key {where}.{key}{nearest_hint(key, _KEYS)}")
    if not isinstance(block.get("args") or {}, dict):
        raise ConfigError(f"{where}.args must be a block, not {block['args']!r}")
    if block.get("pay", "end") not in _PAYS:
        raise ConfigError(f"{where}.pay must be {' or '.join(_PAYS)}, not {block['pay']!r}")
    _weight_and_clip(block, where)


def _weight_and_clip(block: dict[str, Any], where: str) -> tuple[Weight, tuple[float, float] | None]:
    try:
        weight = parse_weight(block.get("weight", 1.0))
    except ValueError as error:
        raise ConfigError(f"{where}.weight {error}") from error
    try:
        return weight, clip_bounds(block["clip"]) if block.get("clip") is not None else None
    except ValueError as error:
        raise ConfigError(f"{where}.clip {error}") from error
