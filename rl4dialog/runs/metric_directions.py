"""Whether higher or lower values of a metric are better, by its key.

Numbers that are neither, such as lengths, have no direction. A custom metric has the one that the run's config gives
it, in ``keep_best`` or a callback.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

Direction = Literal["higher", "lower"]

# The first pattern that matches counts.
_DIRECTIONS: tuple[tuple[str, Direction], ...] = (
    ("reward", "higher"),
    ("reward/*", "higher"),
    ("*/return", "higher"),
    ("*/success", "higher"),
    ("success_in_domain/*", "higher"),
    ("conversation/reward_model", "higher"),
    ("conversation/rank", "lower"),
    ("conversation/malformed", "lower"),
    ("conversation/invalid_move", "lower"),
    ("conversation/unparsed", "lower"),
    ("conversation/acts_per_turn", "lower"),
    *((f"conversation/{key}", "higher") for key in ("complete", "match", "inform_f1")),
    ("lexical/ter", "lower"),
    ("lexical/*", "higher"),
    ("semantic/*", "higher"),
    ("table_to_text/*", "higher"),
    ("intent/accuracy", "higher"),
    ("consistency/persona_contradiction", "lower"),
    ("consistency/*", "higher"),
    ("persona_ranking/*", "higher"),
    ("goal_followed", "higher"),
    ("synthetic/*", "higher"),
    ("fluency_metrics/*", "lower"),
    ("diversity_metrics/self_bleu", "lower"),
    ("diversity_metrics/seq-rep-*", "lower"),
    ("diversity_metrics/distinct-*", "higher"),
    ("diversity_metrics/entropy-*", "higher"),
    ("conversation_diversity/distinct-*", "higher"),
    ("conversation_diversity/*", "lower"),
    ("rudeness/polite", "higher"),
    ("rudeness/*", "lower"),
    ("shortest_path/illegal", "lower"),
    ("shortest_path/*", "higher"),
    ("task/turns_of_success", "lower"),
    ("task/acts_per_turn", "lower"),
    *((f"task/{key}", "higher") for key in ("complete", "match", "book", "inform_*", "goals_followed")),
    *((f"task/{key}", "higher") for key in ("p@*", "r@*", "mrr", "potential")),
    ("loss/*", "lower"),
    ("*/log_loss", "lower"),
    ("*/calibration_error", "lower"),
    ("agreement/mse", "lower"),
    ("agreement/*", "higher"),
    ("preference/accuracy", "higher"),
    ("q_rank", "higher"),
)


def direction(key: str, config: Mapping[str, Any] | None = None) -> Direction | None:
    """Return which values of a metric are better; ``None`` if neither are.

    Args:
        key: Key of the metric.
        config: Config of a run, which may name the direction, or weight a part of the reward negatively.
    """
    for declared in _declared(config or {}):
        if declared.get("metric") == key:
            return "lower" if declared.get("mode") == "min" else "higher"
    if key in {f"reward/{name}" for name in _charged(config or {})}:
        return "lower"
    return next((found for pattern, found in _DIRECTIONS if fnmatchcase(key, pattern)), None)


def _declared(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What a config says of metrics: ``{metric: ..., mode: min}``."""
    keep_best = _mapping(config.get("train_evaluation")).get("keep_best")
    yield {"metric": keep_best} if isinstance(keep_best, str) else _mapping(keep_best)
    callbacks = config.get("callbacks")
    for callback in callbacks if isinstance(callbacks, list) else ():
        yield _mapping(_mapping(callback).get("args"))


def _charged(config: Mapping[str, Any]) -> Iterator[str]:
    """Names of the parts of a composite reward with a negative weight. Their logged values are unweighted."""
    parts = _mapping(_mapping(config.get("reward_fn")).get("args")).get("rewards")
    for part in map(_mapping, parts if isinstance(parts, list) else ()):
        weight = part.get("weight")
        if isinstance(weight, int | float) and weight < 0:
            yield str(part.get("name") or part.get("id"))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
