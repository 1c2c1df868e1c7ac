"""The page of all keys of a run's YAML file, written from the schema; what components take is in the catalog."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rl4dialog.core.config import KINDS

_HEAD = """# YAML reference

`rl4dialog list --schema` writes this page from the schema that every config is checked by before anything loads. A key
without a default must be given. What stands under the `args` of a component is in the [catalog](catalog.md); configs by
example are in [configs](configs.md)."""
_BOUNDS = {Ge: "at least {}", Gt: "above {}", Le: "at most {}", Lt: "below {}"}
_PLAIN = {int: "whole number", float: "number", str: "text", bool: "true, false", Any: "any"}


def schema_page() -> str:
    """Markdown with a table for every block of the YAML file, of all kinds of runs, in the order of the schema."""
    sections = [f"## {path or 'Top level'}\n\n{_table(fields)}" for path, fields in _blocks(KINDS, "")]
    return "\n\n".join([_HEAD, *sections]) + "\n"


def _blocks(models: Iterable[type[BaseModel]], path: str) -> Iterator[tuple[str, dict[str, FieldInfo]]]:
    """The keys of a block and of those within it. Lists of components are no blocks of their own."""
    fields: dict[str, FieldInfo] = {}
    inner: dict[str, dict[type[BaseModel], None]] = {}
    for model in models:
        for name, field in model.model_fields.items():
            fields.setdefault(name, field)
            if (block := _block_of(field.annotation)) is not None:
                inner.setdefault(name, {})[block] = None
    yield path, fields
    for name, blocks in inner.items():
        yield from _blocks(blocks, f"{path}.{name}".lstrip("."))


def _table(fields: Mapping[str, FieldInfo]) -> str:
    rows = ["| key | type | default | what it is |", "|---|---|---|---|"]
    for name, field in fields.items():
        description = " ".join((field.description or "").replace("``", "`").split())
        rows.append(f"| `{name}` | {_cell(_type_of(field))} | {_default_of(field)} | {_cell(description)} |")
    return "\n".join(rows)


def _type_of(field: FieldInfo) -> str:
    bounds = [_BOUNDS[type(bound)].format(_limit(bound)) for bound in field.metadata if type(bound) in _BOUNDS]
    return ", ".join([_type_name(field.annotation), *bounds])


def _limit(bound: Any) -> str:
    (value,) = (getattr(bound, name) for name in ("ge", "gt", "le", "lt") if hasattr(bound, name))
    return f"{value:,}"


def _type_name(annotation: Any) -> str:
    arguments = [argument for argument in get_args(annotation) if argument is not type(None)]
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_type_name, arguments))
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is list:
        (item,) = arguments
        return "list of `{id, args}`" if _block_of(item) else f"list of {_type_name(item)}"
    if origin is dict or _block_of(annotation):
        return "block"
    return _PLAIN[annotation]


def _default_of(field: FieldInfo) -> str:
    if field.is_required():
        return ""
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "its defaults"
    if value is None or isinstance(value, bool):
        return f"`{str(value).lower()}`".replace("none", "null")
    return f"`{value}`"


def _block_of(annotation: Any) -> type[BaseModel] | None:
    """The block that a key holds, which may also be left out."""
    if get_origin(annotation) in (Union, types.UnionType):
        return next(filter(None, map(_block_of, get_args(annotation))), None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
