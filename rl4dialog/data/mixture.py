"""The datapool `mixture`: samples of several datapools, by share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NotRequired, TypeVar

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from rl4dialog.core.arguments import Count, Positive
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Dialogue, Sample
from rl4dialog.data.dialogue_format import RenderChat
from rl4dialog.data.pool import TextGenPool, check_split
from rl4dialog.data.splits import shuffled

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class PoolBlock(TypedDict):
    """An entry of ``pools`` in a config."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]
    id: str
    args: NotRequired[dict[str, Any] | None]
    share: Positive


@dataclass(frozen=True)
class PoolShare:
    """A datapool of a mixture, and its share relative to the others'."""

    name: str  # its id, with a number if others have the same id
    id: str
    args: Mapping[str, Any]
    share: float


def checked_pools(pools: Sequence[PoolBlock]) -> list[PoolShare]:
    """The entries of a mixture, without their datapools."""
    ids = [entry["id"] for entry in pools]
    names = [id if ids.count(id) == 1 else f"{id}_{number}" for number, id in enumerate(ids)]
    named = zip(names, pools, strict=True)
    return [PoolShare(name, each["id"], each.get("args") or {}, float(each["share"])) for name, each in named]


class Mixture(TextGenPool):
    """Samples of several datapools by share, such as corrections of users together with older data.

    Args:
        pools: The datapools: ``id``, ``args`` as for the datapool alone, and ``share``, a positive number. Shares are
            relative: 1 and 3 are a quarter and three quarters.
        size: Number of samples in ``train``; by default the smallest in which all pools are whole.
        seed: Random seed of the order of the samples in ``train``.
        build_pool: Builds a pool from id and arguments.
    """

    def __init__(
        self,
        pools: Mapping[str, TextGenPool],
        shares: Sequence[float] | None = None,
        size: int | None = None,
        seed: int = 0,
    ) -> None:
        self.pools, self._shares, self._size, self._seed = dict(pools), shares, size, seed
        rows = self.mixed([list(named_samples(name, pool)) for name, pool in pools.items()])
        super().__init__([sample for sample, _ in rows], [weight for _, weight in rows])
        first = next(iter(pools.values()))
        self.end_of_turn, self.dialogue_format = first.end_of_turn, first.dialogue_format
        self.has_rewards = all(pool.has_rewards for pool in pools.values())
        self.repeats_prompts = any(pool.repeats_prompts for pool in pools.values())

    @classmethod
    def prepare(
        cls,
        split: str,
        pools: Annotated[list[PoolBlock], Field(min_length=1)],
        size: Count | None = None,
        seed: int = 0,
        render_chat: RenderChat | None = None,
        build_pool: Callable[..., TextGenPool] | None = None,
    ) -> Mixture:
        """Load one split.

        Shares are those of ``train``. A pool that is too small for its share is repeated, and one that is too large
        loses its last samples; the log says so. ``val`` and ``test`` are all samples of all pools.
        """
        check_split(split)
        assert build_pool is not None
        blocks = checked_pools(pools)
        built = {
            block.name: build_pool(block.id, {**block.args, "split": split}, render_chat=render_chat)
            for block in blocks
        }
        _check_formats(built)
        if split != "train":
            return cls(built)
        if empty := [name for name, pool in built.items() if len(pool) == 0]:
            raise DataError(f"datapool 'mixture': {empty[0]} has no samples in split 'train', so it has no share")
        mixture = cls(built, [block.share for block in blocks], size, seed)
        for name, pool, n_taken in zip(built, built.values(), mixture._sizes([*map(len, built.values())]), strict=True):
            change = "all" if n_taken == len(pool) else "repeated" if n_taken > len(pool) else "the last ones left out"
            _logger.info("mixture: %d samples of %s, which has %d (%s)", n_taken, name, len(pool), change)
        return mixture

    def conversations(self) -> Iterator[Dialogue]:
        """Yield the conversations of all pools by share. They are held in memory."""
        yield from self._all(TextGenPool.conversations.__name__)

    def prompted_conversations(self) -> Iterator[Dialogue]:
        yield from self._all(TextGenPool.prompted_conversations.__name__)

    def _all(self, method: str) -> Iterable[Dialogue]:
        without = [name for name, pool in self.pools.items() if not pool.has_rewards]
        if 0 < len(without) < len(self.pools):
            raise DataError(f"datapool 'mixture': only some datapools have rewards; {without[0]} has none")
        return self.mixed([list(getattr(pool, method)()) for pool in self.pools.values()])

    def mixed(self, items: Sequence[Sequence[T]]) -> list[T]:
        """Take the items of each pool by its share, in random order; without shares, all in order."""
        sizes = self._sizes([*map(len, items)])
        taken = [own[i % len(own)] for own, n in zip(items, sizes, strict=True) for i in range(n)]
        return taken if self._shares is None else [taken[i] for i in shuffled(len(taken), f"mixture/{self._seed}")]

    def _sizes(self, lengths: Sequence[int]) -> list[int]:
        """Number of items to take of each pool."""
        if self._shares is None:
            return list(lengths)
        total = max(n / share for n, share in zip(lengths, self._shares, strict=True))
        if self._size is not None:
            total = self._size / sum(self._shares)
        return [max(round(total * share), 1) for share in self._shares]


def named_samples(name: str, pool: TextGenPool) -> Iterator[tuple[Sample, float]]:
    """The samples of a pool, with its name in their ids and meta data."""
    for sample, weight in pool:
        meta_data = {**(sample.meta_data or {}), "pool": name}
        if "conversation" in meta_data:
            meta_data["conversation"] = f"{name}/{meta_data['conversation']}"
        yield replace(sample, id=f"{name}/{sample.id}", meta_data=meta_data), weight


def _check_formats(pools: Mapping[str, TextGenPool]) -> None:
    """Raise a `DataError` if prompts have different formats; judged texts have none."""
    formats = {
        name: (pool.dialogue_format.name if pool.dialogue_format else None, pool.end_of_turn)
        for name, pool in pools.items()
        if pool.has_prompts
    }
    if len(set(formats.values())) > 1:
        listed = ", ".join(f"{name}: {format or 'none'}" for name, (format, _) in formats.items())
        raise DataError(f"datapool 'mixture': all datapools need the same dialogue format, not {listed}")
