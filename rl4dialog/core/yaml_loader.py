"""Strict YAML: 1e-6 is a float, duplicate keys are errors, and every error has a line and a column."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from rl4dialog.core.errors import ConfigError, shown
from rl4dialog.core.files import read_regular

_STEP = r"[^.\[\]]+|\[\d{1,9}\]"
# Limits far above any real config; with aliases, a few lines can expand to more than fits into memory.
_MAX_BYTES, _MAX_DEPTH, _MAX_VALUES = 500_000, 50, 100_000


class _StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader with YAML 1.2's numbers and booleans, without dates and without duplicate keys."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Construct a value; an invalid one, such as a 13th month, is an error with a position."""
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
        problem = "a key must be a single word"
        if isinstance(key_node, yaml.ScalarNode):
            key = loader.construct_object(key_node, deep=True)
            if key not in seen:
                seen.add(key)
                continue
            problem = f"duplicate key {key!r} in the same block"
        raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
    loader.flatten_mapping(node)
    return dict(loader.construct_pairs(node, deep=True))  # type: ignore[no-untyped-call]


# PyYAML follows YAML 1.1, where 1e-6 is a string, "on" is a boolean, 1:30:00 is 5400 and 010 is 8.
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
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][\d_]*|0b[01_]+|0x[\da-fA-F_]+)$"), list("-+0123456789")
)


def load_yaml(path: str | Path) -> dict[str, Any]:
    """Read a config file; ``task_configs/...`` is a shipped one, if there is no such file here."""
    path = shipped_path(Path(path))
    if not path.exists():
        near = ", ".join(sorted(str(p) for p in path.parent.glob("*.y*ml"))) if path.parent.is_dir() else ""
        raise ConfigError(f"config file {path} does not exist" + (f"; other files there: {near}" if near else ""))
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; --config_path needs a YAML file")
    try:
        data = read_regular(path)
        if len(data) > _MAX_BYTES:
            raise ConfigError(f"{path} has {len(data):,} bytes, too many for a config (at most {_MAX_BYTES:,})")
        return parse_yaml(data.decode("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} cannot be read as UTF-8 text: {error}") from error


def shipped_path(path: Path) -> Path:
    """The file that comes with the package, if the path names one and there is none of that name here."""
    if path.exists() or path.parts[:1] != ("task_configs",):
        return path
    package = Path(__file__).parents[1]  # with the configs in it, or next to it in the repository
    return next((parent / path for parent in (package, package.parent) if (parent / path).is_file()), path)


def parse_yaml(text: str, source: str) -> dict[str, Any]:
    """Parse a config's text, a mapping; an error has line and column."""
    try:
        config = _load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}, line {mark.line + 1}, column {mark.column + 1}" if mark else source
        raise ConfigError(f"{where}: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict):
        found = "nothing" if config is None else f"a {type(config).__name__}"
        raise ConfigError(f"{source} must contain a mapping, with lines such as `key: value`; it contains {found}")
    return config


def _load(text: str) -> Any:
    """Load the value of a YAML text, unless it is too deep or too large for a config."""
    loader = _StrictLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _measure(node, {}, 0)[0] > _MAX_VALUES:
            raise yaml.YAMLError(f"it has more than {_MAX_VALUES:,} values, including aliases")
        return loader.construct_document(node)  # type: ignore[no-untyped-call]
    except RecursionError as error:
        raise yaml.YAMLError(f"it has more than {_MAX_DEPTH} nested blocks") from error
    finally:
        loader.dispose()  # type: ignore[no-untyped-call]


def _measure(node: yaml.Node, known: dict[yaml.Node, tuple[int, int]], depth: int) -> tuple[int, int]:
    """Number of values in a node, with repetitions by aliases, and its depth."""
    if depth > _MAX_DEPTH:  # always true for an alias to an enclosing block
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
    """Set keys by path, in place: ``reward_fn.args.rewards[0].weight=2``; an index may be one past the end."""
    for override in overrides:
        path, equals, text = override.partition("=")
        steps, given = re.findall(_STEP, path), f"--set {shown(override)}"
        if not equals or not steps or len(steps) > _MAX_DEPTH or re.sub(rf"{_STEP}|\.", "", path):
            raise ConfigError(f"{given} is not of the form key.path=value, such as alg.args.n_epochs=3")
        try:
            value = _load(text)
        except yaml.YAMLError as error:
            reason = error.problem if isinstance(error, yaml.MarkedYAMLError) else error
            raise ConfigError(f"{given}: {shown(text)} is not a YAML value: {reason}") from error
        parent: Any = config
        for number, step in enumerate(steps, start=1):
            index: Any = int(step[1:-1]) if step.startswith("[") else step
            fits = isinstance(parent, list if isinstance(index, int) else dict)
            if fits and index == len(parent):
                parent.append({})
            if not fits or (isinstance(index, int) and index >= len(parent)):
                raise ConfigError(f"{given}: {step!r} does not exist in {path!r}")
            if number == len(steps):
                parent[index] = value
            else:
                if isinstance(parent, dict) and parent.get(index) is None:
                    parent[index] = {}
                parent = parent[index]
    return config


def expand_variants(config: Any, variant: int = 0) -> tuple[Any, int]:
    """Select one combination of the sweep blocks ``{expand: true, values: [...]}`` of RL4LMs' configs.

    The last block in the document varies fastest. Returns the config with each block replaced by a value, and the
    number of combinations.
    """
    blocks: list[list[Any]] = []

    def visit(node: Any, choose: Callable[[Any], Any]) -> Any:
        if isinstance(node, dict) and node.get("expand") is True and set(node) == {"expand", "values"}:
            if not isinstance(node["values"], list) or not node["values"]:
                raise ConfigError("a block with 'expand: true' needs a non-empty list of 'values'")
            return choose(node["values"])
        if isinstance(node, dict):
            return {key: visit(value, choose) for key, value in node.items()}
        return [visit(value, choose) for value in node] if isinstance(node, list) else node

    visit(config, blocks.append)
    n_variants = math.prod(map(len, blocks))
    if not 0 <= variant < n_variants:
        raise ConfigError(f"--variant {variant} does not exist: the config has {n_variants} variants, counted from 0")
    chosen: list[Any] = []
    for values in reversed(blocks):
        variant, choice = divmod(variant, len(values))
        chosen.append(values[choice])
    return visit(config, lambda _: chosen.pop()), n_variants


def differing(one: Any, other: Any) -> list[tuple[str, Any, Any]]:
    """The dotted keys of two blocks whose values differ, with both values."""
    before, now = flatten(one), flatten(other)
    keys = dict.fromkeys([*before, *now])
    return [(key, before.get(key), now.get(key)) for key in keys if before.get(key) != now.get(key)]


def flatten(block: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted keys; lists, and empty inner mappings, are values."""
    if not isinstance(block, Mapping) or (prefix and not block):
        return {prefix: block}
    flat: dict[str, Any] = {}
    for key, value in block.items():
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def packaged_yaml(path: Path) -> dict[str, Any]:
    """A table of the package."""
    text, loader = path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(text, Loader=loader)  # type: ignore[no-any-return]
