"""Strict YAML: floats like 1e-6 are floats, a key stands once, and every mistake is told with its line and column."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from rl4dialog.core.errors import ConfigError, shown
from rl4dialog.core.files import read_regular

_STEP = r"[^.\[\]]+|\[\d{1,9}\]"
# Of a config, far above any sensible one; aliases can make a few lines stand for more than fits into memory.
_MAX_BYTES, _MAX_DEPTH, _MAX_VALUES = 500_000, 50, 100_000


class _StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader with YAML 1.2's numbers and booleans, without dates and without overwriting of keys."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Make a value; one that its type cannot hold, such as the 13th month, is an error with a place."""
        try:
            value = super().construct_object(node, deep)  # type: ignore[no-untyped-call]
            if isinstance(value, int) and value.bit_length() > 64:
                raise ValueError("it has more than 64 bits")
            return value
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            problem = f"not a valid {node.tag.rpartition(':')[2]} ({error})"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


def _construct_mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        if not isinstance(key_node, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "a key must be a single word", key_node.start_mark)
        key = loader.construct_object(key_node, deep=True)
        if key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {key!r} stands twice in the same block", key_node.start_mark
            )
        seen.add(key)
    loader.flatten_mapping(node)
    return dict(loader.construct_pairs(node, deep=True))  # type: ignore[no-untyped-call]


# PyYAML follows YAML 1.1, where 1e-6 is a string, "on" a boolean, 1:30:00 is 5400 and 010 is 8.
_OTHERWISE = tuple(f"tag:yaml.org,2002:{name}" for name in ("bool", "float", "int", "timestamp"))
_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag not in _OTHERWISE]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:\.inf|\.Inf|\.nan|\.NaN|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+|\d[\d_]*\.[\d_]*|\.\d[\d_]*)$"
    ),
    list("-+0123456789."),
)
_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_mapping)
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"^[-+]?(?:0|[1-9][\d_]*|0b[01_]+|0x[\da-fA-F_]+)$"),
    list("-+0123456789"),
)


def load_yaml(path: str | Path) -> dict[str, Any]:
    """Read a config file.

    Raises:
        ConfigError: If the file is missing, is not text, is broken, or does not hold a mapping.
    """
    path = Path(path)
    if not path.exists():
        near = ", ".join(sorted(str(p) for p in path.parent.glob("*.y*ml"))) if path.parent.is_dir() else ""
        raise ConfigError(f"config file {path} does not exist" + (f"; beside it there are: {near}" if near else ""))
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; --config_path wants a YAML file")
    try:
        data = read_regular(path)
        if len(data) > _MAX_BYTES:
            raise ConfigError(f"{path} has {len(data):,} bytes, which no config has (at most {_MAX_BYTES:,})")
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} cannot be read as UTF-8 text: {error}") from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> dict[str, Any]:
    """Parse a config's text.

    Raises:
        ConfigError: With line and column, if it is broken; or if it does not hold a mapping.
    """
    try:
        config = _load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}, line {mark.line + 1}, column {mark.column + 1}" if mark else source
        raise ConfigError(f"{where}: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict):
        found = "nothing" if config is None else f"a {type(config).__name__}"
        raise ConfigError(f"{source} must hold a mapping with keys such as tokenizer, datapool, alg; it holds {found}")
    return config


def _load(text: str) -> Any:
    """The value that a YAML text stands for.

    Raises:
        yaml.YAMLError: If it is broken, or too deep or too large for a config.
    """
    loader = _StrictLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _measure(node, {}, 0)[0] > _MAX_VALUES:
            raise yaml.YAMLError(f"it holds more than {_MAX_VALUES:,} values, aliases included")
        return loader.construct_document(node)  # type: ignore[no-untyped-call]
    except RecursionError as error:
        raise yaml.YAMLError(f"it has more than {_MAX_DEPTH} blocks inside each other") from error
    finally:
        loader.dispose()  # type: ignore[no-untyped-call]


def _measure(node: yaml.Node, known: dict[yaml.Node, tuple[int, int]], depth: int) -> tuple[int, int]:
    """How many values a node stands for, counted wherever an alias repeats them, and how deep they go."""
    if depth > _MAX_DEPTH:  # as an alias to a block that it is in always gets
        raise RecursionError
    if node not in known:
        items = [] if isinstance(node, yaml.ScalarNode) else node.value
        inner = [part for item in items for part in (item if isinstance(item, tuple) else (item,))]
        measured = [_measure(part, known, depth + 1) for part in inner]
        known[node] = 1 + sum(size for size, _ in measured), 1 + max((height for _, height in measured), default=0)
    if depth + known[node][1] > _MAX_DEPTH + 1:
        raise RecursionError
    return known[node]


def apply_overrides(config: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Set keys by path, in place: ``alg.args.n_epochs=3``, ``reward_fn.args.rewards[0].weight=2``.

    Raises:
        ConfigError: If an override is not ``path=value``, or its path leads nowhere.
    """
    for override in overrides:
        path, equals, text = override.partition("=")
        steps = re.findall(_STEP, path)
        if not equals or not steps or len(steps) > _MAX_DEPTH or re.sub(rf"{_STEP}|\.", "", path):
            raise ConfigError(f"--set {shown(override)} is not of the form key.path=value, such as alg.args.n_epochs=3")
        try:
            value = _load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {shown(override)}: {shown(text)} is not a YAML value") from error
        parent: Any = config
        for step, following in itertools.pairwise([*steps, ""]):
            index: Any = int(step[1:-1]) if step.startswith("[") else step
            fits = isinstance(parent, list) if isinstance(index, int) else isinstance(parent, dict)
            if not fits or (isinstance(index, int) and index >= len(parent)):
                raise ConfigError(f"--set {shown(override)}: there is no {step!r} to go through in {path!r}")
            if following == "":
                parent[index] = value
            else:
                if isinstance(parent, dict) and parent.get(index) is None:
                    parent[index] = {}
                parent = parent[index]
    return config


def expand_variants(config: Any, variant: int = 0) -> tuple[Any, int]:
    """Choose one combination of the sweep blocks ``{expand: true, values: [...]}`` that RL4LMs' configs may hold.

    Args:
        config: May hold such blocks anywhere.
        variant: Number of the combination; the last block in the document turns fastest.

    Returns:
        The config with a value in place of each block, and the number of combinations.

    Raises:
        ConfigError: If there is no such variant, or a block has no values.
    """
    sizes: list[int] = []

    def visit(node: Any, choices: list[int] | None) -> Any:
        if isinstance(node, dict) and node.get("expand") is True and set(node) == {"expand", "values"}:
            values = node["values"]
            if not isinstance(values, list) or not values:
                raise ConfigError("a block with 'expand: true' needs a non-empty list of 'values'")
            if choices is None:
                sizes.append(len(values))
                return node
            return values[choices.pop(0)]
        if isinstance(node, dict):
            return {key: visit(value, choices) for key, value in node.items()}
        if isinstance(node, list):
            return [visit(value, choices) for value in node]
        return node

    visit(config, None)
    n_variants = math.prod(sizes)
    if not 0 <= variant < n_variants:
        raise ConfigError(f"--variant {variant} does not exist: the config has {n_variants} (from 0)")
    choices: list[int] = []
    for size in reversed(sizes):
        variant, choice = divmod(variant, size)
        choices.insert(0, choice)
    return visit(config, choices), n_variants
