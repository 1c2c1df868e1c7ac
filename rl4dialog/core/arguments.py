"""Checks the arguments that a config gives to a component against the component's signature.

A signature contains names, defaults, types, and bounds in pydantic's notation: ``Annotated[float, Field(gt=0)]``. Types
are strict: ``no``, ``'maybe'`` and 1 are not a ``bool``, and ``true`` and ``.nan`` are not numbers.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Annotated, Any, TypeVar

import regex
import typing_extensions
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from rl4dialog.core.errors import HIDDEN_INPUT, ConfigError, DataError, validation_message

T = TypeVar("T")

Count = Annotated[int, Field(ge=1, le=10**9)]
"""At least one. Upper bounds are above what has a meaning."""
NonNegativeInt = Annotated[int, Field(ge=0, le=10**9)]
Epochs = Annotated[int, Field(ge=1, le=10_000)]
Positive = Annotated[float, Field(gt=0, le=1e9)]
NonNegative = Annotated[float, Field(ge=0, le=1e9)]
LearningRate = Annotated[float, Field(gt=0, le=10)]
"""Nothing is trained with 0; ``n_iters: 0`` only evaluates."""
Fraction = Annotated[float, Field(ge=0, le=1)]
ErrorRate = Annotated[float, Field(ge=0, lt=1)]
"""Share of errors; with 1, nothing could be learned."""


def _regular_expression(pattern: str) -> str:
    try:
        for reader in (re, regex):
            reader.compile(pattern)
    except (re.error, regex.error, OverflowError, RecursionError) as error:
        raise ValueError(f"Input should be a regular expression: {error}") from error
    return pattern


Pattern = Annotated[str, AfterValidator(_regular_expression)]
"""Regular expression in the syntax of Python's ``re``, as the package ``regex`` reads it."""


def matches_all(pattern: str, flags: int = 0, *others: str, match: Callable[..., Any] = regex.search) -> bool:
    """Whether a pattern matches any text that is not empty, and the other texts, too."""
    return all(match(pattern, text, flags) for text in ("a", "Z", "0", "?", "\u00e9", *others))


def _variable_name(text: str) -> str:
    if not text.isidentifier():
        what = "the name of an environment variable, such as API_KEY, not its value"
        raise PydanticCustomError(HIDDEN_INPUT, f"Input should be {what}")
    return text


SecretName = Annotated[str, AfterValidator(_variable_name)]
"""Name of an environment variable with a secret. Anything else may be the secret itself, and is never shown."""


def parameters_of(factory: Callable[..., Any]) -> dict[str, Parameter]:
    """Return the named parameters of a class, a method or a function, with resolved annotations (none if that fails).

    If a constructor passes ``**kwargs`` on to its parents, their parameters are included. It can narrow the types of
    some of them by ``**kwargs: Unpack[SomeTypedDict]``. A class can also declare all of its parameters itself with a
    ``__signature__``, as supported by Python's ``inspect``.
    """
    if not inspect.isclass(factory) or "__signature__" in vars(factory):
        return _named(factory)
    found: dict[str, Parameter] = {}
    narrowed: dict[str, Any] = {}
    open_end: Parameter | None = None
    for cls in factory.__mro__:
        if cls is object or "__init__" not in vars(cls):
            continue
        own = _named(vars(cls)["__init__"])
        own.pop("self", None)
        if open_end is not None:
            own = {name: _optional(parameter) for name, parameter in own.items()}
        own = {name: p.replace(annotation=narrowed.get(name, p.annotation)) for name, p in own.items()}
        open_end = next((p for p in own.values() if p.kind is Parameter.VAR_KEYWORD), None)
        if open_end is not None:
            del own[open_end.name]
            narrowed = {**_typed_dict(open_end.annotation), **narrowed}
        found = {**own, **found}
        if open_end is None:
            break
    return found if open_end is None else {**found, open_end.name: open_end}


def check_values(parameters: Mapping[str, Parameter], args: Mapping[str, Any], prefix: str) -> None:
    """Check arguments against types and bounds of :func:`parameters_of`, where known; messages have the prefix."""
    found = {name: value_problem(parameters[name], value) for name, value in args.items() if name in parameters}
    if problems := [f"{prefix}{name}{problem}" for name, problem in found.items() if problem is not None]:
        raise ConfigError("; ".join(problems))


def value_problem(parameter: Parameter, value: Any) -> str | None:
    """Describe what is wrong with a value: the path within it and the reason. ``None`` if it is valid."""
    adapter = adapter_of(parameter.annotation)
    if adapter is None or (value is parameter.default and not isinstance(value, float)):
        return None
    try:
        try:
            text = json.dumps(value)
        except (TypeError, ValueError):  # an object from a Python caller, which YAML cannot contain
            adapter.validate_python(value)
        else:  # JSON has no tuples, so lists are accepted for them
            adapter.validate_json(text)
    except ValidationError as error:
        return validation_message(error.errors(), value, _keys_of(parameter.annotation))
    return None


def parsed(kind: type[T], value: Any, place: str) -> T:
    """A value from a file as an object of a pydantic class or a dataclass; errors name the place and the path in it."""
    adapter = adapter_of(kind)
    assert adapter is not None
    try:
        found: T = adapter.validate_python(value)
        return found
    except ValidationError as error:
        problem = validation_message(error.errors(), value, _keys_of(kind)).lstrip(".: ")
        raise DataError(f"{place}: {problem}") from error
    except DataError as error:  # of the class's own checks
        raise DataError(f"{place}: {error}") from error


def _keys_of(annotation: Any) -> list[str]:
    if typing_extensions.is_typeddict(annotation):
        return list(annotation.__annotations__)
    if dataclasses.is_dataclass(annotation):
        return [field.name for field in dataclasses.fields(annotation)]
    return [key for part in typing_extensions.get_args(annotation) for key in _keys_of(part)]


@functools.cache
def _cached_adapter(annotation: Any) -> TypeAdapter[Any] | None:
    try:
        try:
            return TypeAdapter(annotation, config=ConfigDict(strict=True, allow_inf_nan=False))
        except Exception:  # a type with its own config accepts no other
            return TypeAdapter(annotation)
    except Exception:  # pydantic raises several exception types, and users' annotations can be anything
        return None


def adapter_of(annotation: Any) -> TypeAdapter[Any] | None:
    """Return the validator of a type; ``None`` without an annotation, or if pydantic does not support it."""
    if annotation is Parameter.empty:
        return None
    try:
        return _cached_adapter(annotation)
    except TypeError:  # not hashable
        return _cached_adapter.__wrapped__(annotation)


def resolve_annotations(function: Callable[..., Any]) -> dict[str, Parameter]:
    """Return the parameters of a function, with string annotations replaced by the types that they refer to."""
    inner = inspect.unwrap(getattr(function, "__func__", function))
    names = getattr(inner, "__globals__", None) or vars(sys.modules.get(getattr(inner, "__module__", ""), typing))
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = parameter.annotation
        if isinstance(annotation, str):
            holder = types.SimpleNamespace(__annotations__={"it": annotation})
            try:
                annotation = typing_extensions.get_type_hints(holder, names, include_extras=True)["it"]
            except Exception:  # a name that is imported only for type checkers, or any other expression
                annotation = Parameter.empty
        found[name] = parameter.replace(annotation=annotation)
    return found


def _named(function: Callable[..., Any]) -> dict[str, Parameter]:
    return {n: p for n, p in resolve_annotations(function).items() if p.kind is not Parameter.VAR_POSITIONAL}


def _optional(parameter: Parameter) -> Parameter:
    """Make a parent's parameter optional, because the child may pass it itself."""
    is_required = parameter.default is Parameter.empty and parameter.kind is not Parameter.VAR_KEYWORD
    return parameter.replace(default=None) if is_required else parameter


def _typed_dict(annotation: Any) -> dict[str, Any]:
    """Types by name from ``Unpack[SomeTypedDict]``."""
    if typing_extensions.get_origin(annotation) is not typing_extensions.Unpack:
        return {}
    return typing_extensions.get_type_hints(typing_extensions.get_args(annotation)[0], include_extras=True)
