"""A weighted sum of any rewards, each of which is logged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rl4dialog.core.errors import ConfigError, nearest_hint
from rl4dialog.core.protocols import BatchedRewardFunction
from rl4dialog.core.types import RewardPart
from rl4dialog.rewards.parts import as_parts
from rl4dialog.rewards.scoring import score_replies

_KEYS = ("id", "args", "weight", "name")


class CompositeReward(BatchedRewardFunction):
    """Sum of rewards; token-level parts run in the env workers, batched ones in the main process.

    Args:
        rewards: Blocks with ``id``, and optionally ``args``, ``weight`` (1 by default) and ``name`` for the log.
        build_part: Builds a reward from id and arguments; given by the toolkit.

    Raises:
        ConfigError: If a block is wrong, by its path.
    """

    def __init__(
        self, rewards: list[dict[str, Any]], build_part: Callable[[str, dict[str, Any]], Any] | None = None
    ) -> None:
        if build_part is None:
            from rl4dialog.catalog import RewardFunctionRegistry

            build_part = RewardFunctionRegistry.get
        if not isinstance(rewards, list) or not rewards:
            raise ConfigError("reward 'composite': 'rewards' must be a list of at least one block with an id")
        self.parts: list[RewardPart] = []
        for i, block in enumerate(rewards):
            _check_block(block, f"rewards[{i}]")
            name, weight = block.get("name", block["id"]), float(block.get("weight", 1.0))
            built = as_parts(build_part(block["id"], dict(block.get("args") or {})), name)
            for part in built:
                self.parts.append(RewardPart(self._unique(part.name), weight * part.weight, part.function))

    def __call__(
        self,
        prompt_texts: list[str],
        gen_texts: list[str],
        ref_texts: list[list[str]],
        dones: list[bool],
        meta_infos: list[dict[str, Any]] | None = None,
    ) -> list[float]:
        infos = meta_infos if meta_infos is not None else [{} for _ in gen_texts]
        ids = range(len(gen_texts))
        return score_replies(self.parts, prompt_texts, gen_texts, ref_texts, infos, ids, dones).total

    def _unique(self, name: str) -> str:
        taken = {part.name for part in self.parts}
        candidate, n = name, 1
        while candidate in taken:
            n += 1
            candidate = f"{name}_{n}"
        return candidate


def _check_block(block: Any, where: str) -> None:
    if not isinstance(block, dict) or "id" not in block:
        raise ConfigError(f"reward 'composite': {where} must be a block with an id, not {block!r}")
    for key in block:
        if key not in _KEYS:
            raise ConfigError(f"reward 'composite': unknown key {where}.{key}{nearest_hint(key, _KEYS)}")
    weight = block.get("weight", 1.0)
    if not isinstance(weight, (int, float)) or isinstance(weight, bool):
        raise ConfigError(f"reward 'composite': {where}.weight must be a number, not {weight!r}")
