"""Values of config keys to try: ``--grid KEY=A,B`` and ``--search KEY=KIND:...``."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rl4dialog.core.errors import ConfigError, nearest_hint, shown
from rl4dialog.core.yaml_loader import parse_yaml

Kind = Literal["choice", "int", "float", "log"]
Values = dict[str, str]
"""A value by key, as a YAML text."""


@dataclass(frozen=True)
class Dimension:
    """The values of a config key, as YAML texts: choices, or both ends of a range (``log``: logarithmic scale)."""

    key: str
    kind: Kind
    values: tuple[str, ...]


def parse_grid(texts: Sequence[str]) -> list[Dimension]:
    """Parse the values of ``--grid``, such as ``alg.kl_div.coeff=0.01,0.1``."""
    return _distinct("--grid", [_choices("--grid", text, *_split("--grid", text, "0.01,0.1")) for text in texts])


def parse_search(texts: Sequence[str]) -> list[Dimension]:
    """Parse the values of ``--search``, such as ``alg.args.learning_rate=log:1e-5:1e-3``."""
    return _distinct("--search", [_parse_search(text) for text in texts])


def combinations(dimensions: Sequence[Dimension]) -> list[Values]:
    """All combinations of choices and of whole numbers; the last key varies fastest."""
    keys = [dimension.key for dimension in dimensions]
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*map(_all_values, dimensions))]


def check_values(read_config: Callable[[Sequence[str]], Any], candidates: Sequence[Values]) -> None:
    """Check the config with values, before the first run, by a function that reads it with overrides."""
    for values in candidates:
        overrides = [f"{key}={value}" for key, value in values.items()]
        try:
            read_config(overrides)
        except ConfigError as error:
            raise ConfigError(f"with {' '.join(overrides)}: {error}") from error


def extremes(dimensions: Sequence[Dimension]) -> list[Values]:
    """Some combinations that contain every choice and both ends of every range."""
    n = max(len(dimension.values) for dimension in dimensions)
    return [{d.key: d.values[min(i, len(d.values) - 1)] for d in dimensions} for i in range(n)]


def shown_values(values: Values) -> list[str]:
    """Values for the console: numbers with four digits."""
    return [f"{float(text):.4g}" if re.fullmatch(r"-?[\d.]+(e-?\d+)?", text) else text for text in values.values()]


def _parse_search(text: str) -> Dimension:
    key, spec = _split("--search", text, "log:1e-5:1e-3")
    kind, _, rest = spec.partition(":")
    kinds = get_args(Kind)
    if kind not in kinds:
        raise ConfigError(f"--search {shown(text)}: {kind!r} is none of {', '.join(kinds)}{nearest_hint(kind, kinds)}")
    if kind == "choice":
        return _choices("--search", text, key, rest)
    try:
        number = int if kind == "int" else float
        low, high = map(number, rest.split(":"))
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError
    except ValueError:
        what = "whole numbers" if kind == "int" else "numbers"
        raise ConfigError(f"--search {shown(text)}: {kind} needs two {what}, as in {kind}:1:4") from None
    if low >= high:
        raise ConfigError(f"--search {shown(text)}: the range is reversed or empty; write {kind}:{high}:{low}")
    if kind == "log" and low <= 0:
        raise ConfigError(f"--search {shown(text)}: a logarithmic range must be above 0")
    return Dimension(key, kind, (repr(low), repr(high)))  # type: ignore[arg-type]


def _choices(flag: str, text: str, key: str, values: str) -> Dimension:
    try:
        found = parse_yaml(f"values: [{values}]", text)["values"]
    except ConfigError as error:
        raise ConfigError(f"{flag} {shown(text)}: {values!r} is not a list of YAML values") from error
    texts = tuple(json.dumps(value, ensure_ascii=False) for value in found)
    if not texts:
        raise ConfigError(f"{flag} {shown(text)} has no values")
    if len(set(texts)) < len(texts):
        raise ConfigError(f"{flag} {shown(text)} contains a value twice")
    return Dimension(key, "choice", texts)


def _split(flag: str, text: str, example: str) -> tuple[str, str]:
    key, equals, spec = text.partition("=")
    if not key or not equals or not spec:
        raise ConfigError(f"{flag} {shown(text)} is not of the form KEY={example}")
    if key == "seed":
        raise ConfigError(f"{flag} {shown(text)}: a seed is nothing to select; --seeds trains every trial with several")
    return key, spec


def _distinct(flag: str, dimensions: list[Dimension]) -> list[Dimension]:
    keys = [dimension.key for dimension in dimensions]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"{flag} contains {key} twice")
    return dimensions


def _all_values(dimension: Dimension) -> Sequence[str]:
    if dimension.kind == "choice":
        return dimension.values
    if dimension.kind != "int":
        cure = "list values with choice, or use another sampler"
        raise ConfigError(f"--sampler grid: {dimension.key} is a range of numbers; {cure}")
    low, high = map(int, dimension.values)
    return [str(number) for number in range(low, high + 1)]
