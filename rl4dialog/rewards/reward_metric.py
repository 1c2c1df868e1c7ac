"""The adapter from a reward to a metric."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rl4dialog.core.async_calls import AsyncCalls
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.protocols import BaseMetric, MetricResult
from rl4dialog.core.reward_parts import FinishedReplies, names_needing
from rl4dialog.metrics.checks import check_lengths
from rl4dialog.rewards.parts import as_parts
from rl4dialog.rewards.scoring import Scorer


class RewardMetric(BaseMetric):
    """A reward's score of the texts, as ``reward/<id>``; for a composite also its parts, as ``reward/<part>``.

    Each text is scored as the last one of its episode. Scheduled weights are those of the first iteration.

    Args:
        id: Id of the reward.
        args: Its arguments.
        build_part: Builds a reward from id and arguments; passed by the toolkit.
        async_calls: Settings for awaiting coroutines; passed by the toolkit.

    Raises:
        ConfigError: If the reward comes from the partner of a conversation.
    """

    def __init__(
        self,
        id: str,
        args: dict[str, Any] | None = None,
        build_part: Callable[[str, dict[str, Any]], Any] | None = None,
        async_calls: AsyncCalls | None = None,
    ) -> None:
        if build_part is None:
            from rl4dialog.catalog import RewardFunctionRegistry

            build_part = RewardFunctionRegistry.get
        parts = as_parts(build_part(id, dict(args or {})), id)
        for part in parts:
            if getattr(part.function, "needs_partner", False):
                raise ConfigError(
                    f"metric 'reward' scores single replies, but reward {part.name!r} comes from the partner of a "
                    f"conversation; use the metric 'conversation'"
                )
        self.needs_references = bool(names_needing(parts, "references"))
        self._id, self._scorer = id, Scorer(parts, async_calls=async_calls or AsyncCalls())

    @classmethod
    def inner_rewards(cls, args: Mapping[str, Any], where: str) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Yield id, arguments and path of the arguments of the reward in this metric's arguments."""
        yield args["id"], dict(args.get("args") or {}), f"{where}.args"

    def compute(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None = None,
        model: Any = None,
        split_name: str | None = None,
    ) -> MetricResult:
        check_lengths(generated_texts, prompt_texts, reference_texts, meta_infos)
        n = len(generated_texts)
        scores = self._scorer.score(FinishedReplies(prompt_texts, generated_texts, reference_texts, meta_infos or []))
        found = {**scores.parts, self._id: scores.total}
        return {f"reward/{name}": (values, sum(values) / n) for name, values in found.items()}
