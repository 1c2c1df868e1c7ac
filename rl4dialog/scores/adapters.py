"""A metric as a reward, in the env workers or in the main process, and a reward as a metric.

Metrics that only read a text and its references are cheap and run in parallel in the workers. The main process computes
metrics with a model, which every worker would otherwise load, and those that depend on other texts, such as CIDEr.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from rl4dialog.core.arguments import parameters_of
from rl4dialog.core.async_calls import AsyncCalls
from rl4dialog.core.errors import ConfigError, nearest_hint
from rl4dialog.core.protocols import BaseMetric, DialogueMetric, MetricResult, ObservationLike, SentenceRewardFunction
from rl4dialog.core.reward_parts import RewardPart, names_needing, weighted_sum
from rl4dialog.scores.base import Batch, BatchReward, TextMetric
from rl4dialog.scores.parts import as_parts
from rl4dialog.scores.scoring import Scorer

Key = str | Mapping[str, float] | None


class _OfMetric:
    """A reward that pays a metric's score. Subclasses name its class as ``metric``, and accept its arguments too."""

    build_metric: Callable[..., BaseMetric]
    key: Key = None  # that is used, or several with weights; by default the metric's ``key``, or its only one

    def __init_subclass__(cls, metric: type[BaseMetric] | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if metric is not None:
            cls.build_metric = metric
        if hasattr(cls, "build_metric"):
            _declare_arguments(cls)

    def __init__(self, shaping_fn: str | None = None, **metric_args: Any) -> None:
        from rl4dialog.catalog import RewardFunctionRegistry

        self.metric = type(self).build_metric(**metric_args)
        self.needs_references = getattr(self.metric, "needs_references", False)
        self._added: list[RewardPart] = []
        if shaping_fn is not None:
            self._added = as_parts(RewardFunctionRegistry.get(shaping_fn), shaping_fn)


class MetricReward(_OfMetric, SentenceRewardFunction):
    """A metric's score of the reply, computed in the env workers.

    Args:
        shaping: ``end`` pays the score at the end of the episode. ``every_token`` pays for each token the change of the
            score of the reply so far (a potential, Ng, Harada and Russell 1999), which adds up to the score of the
            whole reply; the metric is then computed once per token. In a conversation of several turns, each reply then
            earns its own score, and not only the last one.
        shaping_fn: Id of another reward that is added when the score is paid (RL4LMs).
        metric_args: Arguments of the metric.
    """

    def __init__(
        self, shaping: Literal["end", "every_token"] = "end", shaping_fn: str | None = None, **metric_args: Any
    ) -> None:
        super().__init__(shaping_fn, **metric_args)
        self._every_token = shaping == "every_token"
        if any(part.in_main_process for part in self._added):
            problem = "is scored in the main process, but this reward in the env workers"
            raise ConfigError(f"shaping_fn {shaping_fn!r} {problem}; add them with the reward 'composite' instead")
        self._last: tuple[Any, float] = None, 0.0  # the last observation, and its potential

    def score(self, prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
        return text_scores(self.metric, self.key, Batch([prompt_text], [gen_text], [ref_texts], [meta_info]))[0]

    def __call__(
        self,
        prev_observation: Any,
        action: int,
        current_observation: Any,
        done: bool,
        meta_info: dict[str, Any] | None = None,
    ) -> float:
        if not self._every_token and not done:
            return 0.0
        before = 0.0
        if self._every_token:
            known, before = self._last
            if known is not prev_observation:  # as at the start of a reply
                before = self._potential(prev_observation, meta_info) if prev_observation.context_ids else 0.0
        self._last = current_observation, self._potential(current_observation, meta_info)
        reward = self._last[1] - before
        arguments = (prev_observation, action, current_observation, done, meta_info)
        return reward + weighted_sum(self._added, {part.name: part.function(*arguments) for part in self._added})

    def _potential(self, observation: ObservationLike, meta_info: dict[str, Any] | None) -> float:
        texts = (observation.prompt_or_input_text, observation.context_text, observation.target_or_reference_texts)
        return self.score(*texts, meta_info or {})


class BatchedMetricReward(_OfMetric, BatchReward):
    """A metric's score of each reply, computed in the main process for all replies of a batch.

    Replies before the end of an episode are not scored, and earn 0.

    Args:
        shaping_fn: Id of another reward that is added (RL4LMs).
        metric_args: Arguments of the metric.
    """

    def scores(self, batch: Batch) -> list[float]:
        """Score one or more replies, each the last one of its episode."""
        return text_scores(self.metric, self.key, batch)

    def rewards(self, batch: Batch) -> list[float]:
        rewards = batch.of_last(self.scores)
        if not self._added:
            return rewards
        return [own + added for own, added in zip(rewards, Scorer(self._added).score(batch).total, strict=True)]


def text_scores(metric: BaseMetric, key: Key, batch: Batch) -> list[float]:
    """Return a metric's score of each text; if it has no scores per text, that of a corpus with only this text."""
    found = metric.compute(batch.prompt_texts, batch.gen_texts, batch.ref_texts, batch.meta_infos)
    key = key or getattr(metric, "key", None) or (next(iter(found)) if len(found) == 1 else None)
    weights = {key: 1.0} if isinstance(key, str) else dict(key or {})
    who, known = type(metric).__name__, ", ".join(found)
    if not weights:
        raise ConfigError(f"{who} has several keys; set key to one of them: {known}")
    for name in weights:
        if name not in found:
            raise ConfigError(f"{who} has no key {name!r}{nearest_hint(name, found)} ({known})")
    total = [0.0] * len(batch)
    for name, weight in weights.items():
        scores, corpus = found[name]
        if scores is None and len(batch) > 1:
            return [text_scores(metric, key, batch.chosen([row]))[0] for row in range(len(batch))]
        total = [a + weight * b for a, b in zip(total, scores if scores is not None else [corpus], strict=True)]
    return total


def _declare_arguments(cls: Any) -> None:
    """Declare a reward's arguments for ``inspect`` and the registry: its own, the metric's and the adapter's."""
    adapter = MetricReward if issubclass(cls, SentenceRewardFunction) else BatchedMetricReward
    below = cls.__mro__[: cls.__mro__.index(adapter)]
    constructors = [vars(each)["__init__"] for each in below if "__init__" in vars(each)]
    found: dict[str, inspect.Parameter] = {}
    for function in (*constructors, cls.build_metric, adapter.__init__):  # type: ignore[misc]
        parameters = parameters_of(function)
        for name, parameter in parameters.items():
            if name != "self" and parameter.kind is not parameter.VAR_KEYWORD:
                found.setdefault(name, parameter.replace(kind=parameter.KEYWORD_ONLY))
        if function in constructors and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            break  # it does not pass on other arguments
    cls.__signature__ = inspect.Signature(list(found.values()))
    cls.no_effect = {**getattr(cls.build_metric, "no_effect", {}), **getattr(cls, "no_effect", {})}


def registered_metric(id: str, args: Mapping[str, Any] | None = None) -> BaseMetric:
    """Build a metric of replies from its id and arguments."""
    from rl4dialog.catalog import MetricRegistry

    metric: BaseMetric = MetricRegistry.get(id, args)
    if isinstance(metric, DialogueMetric) and not isinstance(metric, BaseMetric):
        raise ConfigError(f"metric {id!r} measures whole conversations, so it cannot be the reward of a reply")
    return metric


class AnyMetricReward(BatchedMetricReward):
    """Any metric's score of the reply, by the metric's id.

    Args:
        key: The metric's key to use, if it has several.
        kwargs: ``id`` and ``args`` of the metric, and ``shaping_fn``.
    """

    build_metric = staticmethod(registered_metric)

    def __init__(self, key: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.key = key


class RewardMetric(TextMetric):
    """A reward's score of the texts, as ``reward/<id>``; for a composite also its parts, as ``reward/<part>``.

    Each text is scored as the last one of its episode. Scheduled weights are those of the first iteration.

    Args:
        id: Id of the reward.
        args: Its arguments.
        build_part: Builds a reward from id and arguments; passed by the toolkit.
        async_calls: Settings for awaiting coroutines; passed by the toolkit.
    """

    def __init__(
        self,
        id: str,
        args: dict[str, Any] | None = None,
        build_part: Callable[[str, dict[str, Any]], Any] | None = None,
        async_calls: AsyncCalls | None = None,
    ) -> None:
        from rl4dialog.catalog import RewardFunctionRegistry

        parts = as_parts((build_part or RewardFunctionRegistry.get)(id, dict(args or {})), id)
        for part in parts:
            if getattr(part.function, "needs_partner", False):
                problem = f"but reward {part.name!r} comes from the partner of a conversation"
                raise ConfigError(f"metric 'reward' scores single replies, {problem}; use the metric 'conversation'")
        self.needs_references = bool(names_needing(parts, "references"))
        self._id, self._scorer = id, Scorer(parts, async_calls=async_calls or AsyncCalls())

    @classmethod
    def inner_rewards(cls, args: Mapping[str, Any], where: str) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Yield id, arguments and path of the arguments of the reward in this metric's arguments."""
        yield args["id"], dict(args.get("args") or {}), f"{where}.args"

    def measure(self, batch: Batch) -> MetricResult:
        scores = self._scorer.score(batch)
        found = {**scores.parts, self._id: scores.total}
        return {f"reward/{name}": (values, sum(values) / len(batch)) for name, values in found.items()}
