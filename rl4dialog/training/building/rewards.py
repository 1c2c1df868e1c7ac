"""A run's reward and metrics, and the rewards of evaluation replies."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from rl4dialog.catalog import MetricRegistry, RewardFunctionRegistry
from rl4dialog.core.async_calls import AsyncCalls
from rl4dialog.core.config import TextConfig
from rl4dialog.core.config_blocks import RewardConfig
from rl4dialog.core.errors import ConfigError, RewardError
from rl4dialog.core.protocols import BaseMetric, DialogueMetric
from rl4dialog.core.registry import Registry
from rl4dialog.core.reward_parts import FinishedReplies, clip_bounds, names_needing
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import Sample
from rl4dialog.data.pool import Data
from rl4dialog.rollouts.talk import Talk
from rl4dialog.rollouts.task_rewards import RewardNormalizer
from rl4dialog.scores.intent import IntentClassifier
from rl4dialog.scores.parts import as_parts
from rl4dialog.scores.scoring import Scorer
from rl4dialog.training.building.conditions import check_rewards
from rl4dialog.training.intent_classifier import builtin_intent_classifier, is_builtin_classifier_cached
from rl4dialog.training.random_state import random_states_kept

TOTAL = "reward"
_logger = logging.getLogger(__name__)


class RewardColumns:
    """Scores evaluation replies with the run's reward.

    Values of a failed reward are NaN. If the run masks failures, this affects only the reply. If failures stop the run,
    it affects the whole evaluation, so that an unavailable judge is not called repeatedly. The caller decides whether
    the run stops at once or after saving its results.

    Attributes:
        error: Error message, if the last evaluation has no rewards and failures stop the run.
    """

    error: RewardError | None = None

    def __init__(self, scorer: Scorer, iteration: int = 1) -> None:
        self._scorer, self._iteration = scorer, iteration

    def score(self, samples: Sequence[Sample], replies: list[str], must_work: bool = False) -> dict[str, list[float]]:
        """Score replies by total and part; NaN if a reward failed, unless the run stops and it ``must_work``."""
        prompts, references = [each.prompt_or_input_text for each in samples], [each.references for each in samples]
        about = [each.meta_data or {} for each in samples], [each.id for each in samples]
        self.error = None
        try:
            with random_states_kept():
                scores = self._scorer.score(FinishedReplies(prompts, replies, references, *about), self._iteration)
        except RewardError as error:
            return self._without(error, len(replies), [part.name for part in self._scorer.parts], must_work)
        self._warn_of_failures(scores.total)
        return _columns(scores.total, scores.parts)

    def of_conversations(self, talks: Sequence[Talk], must_work: bool = False) -> dict[str, list[float]]:
        """Return the rewards that conversations earned; see :meth:`score`."""
        self.error = None
        failures = [talk.error for talk in talks if talk.error is not None and not talk.partner_failed]
        names = dict.fromkeys(name for talk in talks for name in talk.rewards)
        if failures and self._scorer.on_error != "mask":
            return self._without(RewardError(failures[0]), len(talks), names, must_work)
        totals = [math.nan if talk.error is not None else talk.total for talk in talks]
        self._warn_of_failures([total for talk, total in zip(talks, totals, strict=True) if not talk.partner_failed])
        return _columns(totals, {name: [talk.rewards.get(name, math.nan) for talk in talks] for name in names})

    def _without(self, error: RewardError, n: int, names: Iterable[str], must_work: bool) -> dict[str, list[float]]:
        """The columns of an evaluation without rewards, whose failure stops the run, at once or later."""
        if must_work:
            raise error
        self.error = error
        _logger.warning("this evaluation has no rewards: %s", error)
        return _columns([math.nan] * n, {name: [math.nan] * n for name in names})

    def _warn_of_failures(self, totals: list[float]) -> None:
        if n_failed := sum(map(math.isnan, totals)):
            _logger.warning("the reward failed for %d of the %d samples of this evaluation", n_failed, len(totals))


def _columns(total: list[float], parts: Mapping[str, list[float]]) -> dict[str, list[float]]:
    return {TOTAL: total, **{f"{TOTAL}/{name}": values for name, values in parts.items()}}


def mean_reward(columns: Mapping[str, list[float]]) -> dict[str, float]:
    """Mean total reward of the replies that have one, under its metric key."""
    known = [value for value in columns.get(TOTAL, []) if not math.isnan(value)]
    return {TOTAL: sum(known) / len(known)} if known else {}


MISSING_CLASSIFIER = object()


def build_toolkit(
    config: TextConfig, tokenizer: PreTrainedTokenizerBase, data: Data, trains_classifier: bool = True
) -> dict[str, Any]:
    """Objects that components request by name; an untrained classifier is a placeholder, to build them only."""
    toolkit: dict[str, Any] = {"tokenizer": tokenizer, "personas": data.personas}
    if config.reward_fn is not None:
        toolkit["async_calls"] = AsyncCalls(**config.reward_fn.async_calls.model_dump())
    if any(
        "classifier" in inspect.signature(registry.resolve(id)).parameters and _names_builtin_classifier(args)
        for registry, id, args, _ in metrics_and_rewards(config)
    ):
        samples, seed = data.samples("train"), derive_seed(config.seed, "classifier")
        if not trains_classifier and not is_builtin_classifier_cached(samples, seed):
            return {**toolkit, "classifier": MISSING_CLASSIFIER}
        folder = builtin_intent_classifier(samples, data.samples("val"), seed)
        toolkit["classifier"] = IntentClassifier.from_pretrained(str(folder))
    return toolkit


def offered(toolkit: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
    """Select the objects to offer to a component with these arguments, which may name a classifier."""
    left_out = () if _names_builtin_classifier(args) else ("classifier",)
    return {name: value for name, value in toolkit.items() if name not in left_out}


def _names_builtin_classifier(args: Mapping[str, Any]) -> bool:
    return str(args.get("model_name", args.get("intent_model", "builtin/"))).startswith("builtin/")


Chosen = tuple[Registry, str, dict[str, Any], str]


def metrics_and_rewards(config: TextConfig) -> Iterator[Chosen]:
    """Yield all metrics and rewards of a run, including nested ones: registry, id, arguments, path of the arguments."""
    for i, metric in enumerate(config.train_evaluation.metrics):
        yield from _with_inner(MetricRegistry, metric.id, metric.args, f"train_evaluation.metrics[{i}].args")
    if config.reward_fn is not None and config.uses_reward:
        yield from _with_inner(RewardFunctionRegistry, config.reward_fn.id, config.reward_fn.args, "reward_fn.args")


def _with_inner(registry: Registry, id: str, args: dict[str, Any], where: str) -> Iterator[Chosen]:
    yield registry, id, args, where
    inner_rewards = getattr(registry.resolve(id), "inner_rewards", lambda args, where: ())
    for inner in inner_rewards(args, where):
        yield from _with_inner(RewardFunctionRegistry, *inner)


def build_scorer(config: TextConfig, toolkit: Mapping[str, Any]) -> Scorer | None:
    """Build the run's reward, if it uses one."""
    reward = config.reward_fn
    if reward is None or not config.uses_reward:
        return None
    parts = as_parts(reward_builder(toolkit)(reward.id, reward.args), reward.id)
    check_rewards(config, parts)
    each_turn = reward.pay == "turn"
    parts = [replace(part, each_turn=each_turn) if part.each_turn is None else part for part in parts]
    return Scorer(parts, reward.on_error, toolkit["async_calls"], reward.timeout_s, toolkit["tokenizer"])


def build_reward_columns(config: TextConfig, scorer: Scorer | None) -> RewardColumns | None:
    """Build the scorer of evaluation replies, if the run scores them and its reward can score texts."""
    if scorer is None or not config.train_evaluation.score_predictions:
        return None
    if names := names_needing(scorer.parts, "tokens"):
        _logger.warning("evaluations have no metric 'reward': they score texts, but %s needs a reply's tokens", names)
        return None
    return RewardColumns(scorer, max(config.train_evaluation.n_iters or 1, 1))


def build_reward_normalizer(config: RewardConfig) -> RewardNormalizer | None:
    """Build the normalizer that is applied before the KL penalty, if any."""
    if config.normalize == "none" and config.clip is None:
        return None
    return RewardNormalizer(config.normalize, None if config.clip is None else clip_bounds(config.clip))


def reward_builder(toolkit: Mapping[str, Any]) -> Callable[[str, dict[str, Any]], Any]:
    """Return a function that builds a reward from id and arguments, and passes itself to composite rewards."""

    def build(id: str, args: dict[str, Any]) -> Any:
        return RewardFunctionRegistry.get(id, args, **offered(toolkit, args), build_part=build)

    return build


def build_metrics(config: TextConfig, toolkit: Mapping[str, Any]) -> list[BaseMetric | DialogueMetric]:
    build, metrics = reward_builder(toolkit), []
    for i, chosen in enumerate(config.train_evaluation.metrics):
        metric = MetricRegistry.get(chosen.id, chosen.args, **offered(toolkit, chosen.args), build_part=build)
        if chosen.append_to_texts:
            if isinstance(metric, DialogueMetric):
                where = f"train_evaluation.metrics[{i}].append_to_texts"
                raise ConfigError(f"{where}: {chosen.id} measures whole conversations, not texts; remove it")
            metric.append_to_texts = chosen.append_to_texts
        metrics.append(metric)
    return metrics
