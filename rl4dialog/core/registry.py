"""A lazy registry for all components that a config can name.

An entry is a class, a function, or a string ``"module:Name"`` that is imported on first use.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from rl4dialog.core.arguments import check_values, parameters_of
from rl4dialog.core.errors import ConfigError, nearest_hint


class Registry:
    """Ids of one kind of component, and how to build them.

    Args:
        kind: Singular name for messages, for example ``"reward function"``.
        entries: Predefined ids, as ``"module:Name"``.
        constructor: Name of the class method that builds an instance; by default the class itself is called.
        adapter: Function applied to every component before it is used, as ``"module:function"``.
        provided: Arguments that a run passes to every component that accepts them; not shown to users.
        needs_all: Whether functions get all their arguments from the config. Otherwise, those without a default are
            passed when a function is called.
        listed: Name of the list of ids; by default from the kind, such as ``offline-algorithms``.
    """

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, str],
        constructor: str | None = None,
        adapter: str | None = None,
        provided: Collection[str] = (),
        needs_all: bool = False,
        listed: str = "",
    ) -> None:
        self.kind, self.provided = kind, frozenset(provided)
        self.listed = listed or f"{kind.lower().replace(' ', '-')}s"
        self._entries: dict[str, Any] = dict(entries)
        self._constructor, self._adapter, self._needs_all = constructor, adapter, needs_all

    def add(self, id: str, component: Any) -> None:
        """Register a class, a function or a ``"module:Name"`` string under an id, replacing any earlier one."""
        if not isinstance(id, str) or not id:
            raise ConfigError(f"the id of a {self.kind} must be a non-empty string, not {id!r}")
        if not callable(component) and not (isinstance(component, str) and ":" in component):
            wanted = "a class, a function or a 'module:Name' string"
            raise ConfigError(f"{self.kind} {id!r} must be {wanted}, not {component!r}")
        self._entries[id] = component

    def register(self, id: str, component: Any = None) -> Callable[..., Any]:
        """Register a class or function under an id: the decorated one, or the second argument, as OpenRL does."""
        if component is None:
            return functools.partial(self.register, id)
        self.add(id, component)
        return component  # type: ignore[no-any-return]

    def ids(self) -> list[str]:
        """All known ids, sorted."""
        return sorted(self._entries)

    def __contains__(self, id: object) -> bool:
        return id in self._entries

    def resolve(self, id: str) -> Any:
        """The class or function of an id."""
        if id not in self._entries:
            known = f"{nearest_hint(id, self._entries)} (known: {', '.join(self.ids())})"
            custom = "To use a custom one, list its module under 'imports:' (see docs/your_own)."
            raise ConfigError(f"unknown {self.kind} {id!r}{known}. {custom}")
        entry = self._entries[id]
        if isinstance(entry, str):
            try:
                entry = import_object(entry)
            except (ImportError, AttributeError) as error:
                raise ConfigError(f"{self.kind} {id!r} cannot be imported from {entry}: {error}") from error
        if self._adapter is not None:
            entry = import_object(self._adapter)(entry)
        self._entries[id] = entry
        return entry

    def check(self, id: str, args: Mapping[str, Any] | None = None, where: str | None = None) -> None:
        """Check id and arguments without building the component; messages begin with the path ``where``, if given."""
        component = self.resolve(id)
        self._bind(id, self._factory(component), dict(args or {}), dict.fromkeys(self.provided), where)

    def get(self, id: str, args: Mapping[str, Any] | None = None, **injected: Any) -> Any:
        """Build a component with arguments from the config: an instance of the class; or the function, with them bound.

        Arguments injected by the toolkit (a tokenizer, a classifier, ...) are passed only to parameters of these names
        that the config does not set.
        """
        component = self.resolve(id)
        factory = self._factory(component)
        arguments = self._bind(id, factory, dict(args or {}), injected)
        if not inspect.isclass(component):
            return functools.partial(component, **arguments) if arguments else component
        return factory(**arguments)

    def without_effect(self, id: str, args: Mapping[str, Any]) -> Iterator[str]:
        """Yield a line for each given argument that a component's attribute ``no_effect`` names, with its reason."""
        ignored: Mapping[str, str] = getattr(self.resolve(id), "no_effect", {})
        for name in args:
            if name in ignored:
                reason = f": {ignored[name]}" if ignored[name] else ""
                yield f"{self.kind} {id!r}: {name} has no effect{reason}"

    def defaults(self, id: str) -> dict[str, Any]:
        """Return the default values of an id's arguments, without required ones."""
        parameters = parameters_of(self._factory(self.resolve(id)))
        return {name: p.default for name, p in parameters.items() if p.default is not inspect.Parameter.empty}

    def takes(self, id: str, name: str) -> bool:
        """Whether an id has an argument of this name."""
        return name in parameters_of(self._factory(self.resolve(id)))

    def describe(self, id: str) -> tuple[str, str]:
        """Return the first line of an id's docstring, and its arguments as text."""
        return summary(self.resolve(id)), ", ".join(self.arguments(id))

    def explain(self, id: str) -> str:
        """Return the text of an id's docstring."""
        return explanation(self.resolve(id))

    def arguments(self, id: str) -> dict[str, str]:
        """Return the descriptions of an id's arguments from its docstring, by argument with default."""
        component = self.resolve(id)
        factory = self._factory(component)
        meanings = {**argument_meanings(component), **argument_meanings(factory)}
        return {
            _as_text(parameter): meanings.get(name, "")
            for name, parameter in parameters_of(factory).items()
            if name not in self.provided
            and not (self._is_called_later(component) and parameter.default is parameter.empty)
        }

    def _is_called_later(self, component: Any) -> bool:
        """Whether a component is a function that gets arguments without a default when it is called."""
        return inspect.isfunction(component) and self._constructor is None and not self._needs_all

    def _factory(self, component: Any) -> Callable[..., Any]:
        if self._constructor is not None and inspect.isclass(component):
            return getattr(component, self._constructor)
        return component

    def _bind(
        self, id: str, factory: Any, args: dict[str, Any], injected: Mapping[str, Any], where: str | None = None
    ) -> dict[str, Any]:
        prefix, what = f"{where}." if where else f"{self.kind} {id!r}: ", f"{self.kind} {id!r}"
        parameters = parameters_of(factory)
        named = {name: p for name, p in parameters.items() if p.kind is not inspect.Parameter.VAR_KEYWORD}
        accepted = [name for name in named if name not in self.provided]
        unknown = [name for name in args if name not in named]
        if unknown and len(named) == len(parameters):
            hint, known = nearest_hint(unknown[0], accepted), ", ".join(accepted) or "none"
            raise ConfigError(f"{prefix}{unknown[0]}: {what} has no argument {unknown[0]!r}{hint} (accepted: {known})")
        check_values(parameters, args, prefix)
        if self._is_called_later(factory):
            return args
        given = {**{name: value for name, value in injected.items() if name in named}, **args}
        for name, parameter in named.items():
            if parameter.default is parameter.empty and name not in given:
                known = ", ".join(accepted)
                raise ConfigError(f"{prefix}{name}: {what} needs the argument {name!r} (accepted: {known})")
        return given


def import_object(entry: str) -> Any:
    """The object at ``"module:name"``."""
    module_name, _, name = entry.partition(":")
    return getattr(importlib.import_module(module_name), name)


def optional_module(name: str, extra: str, what: str, otherwise: str = "") -> Any:
    """A module of an optional package; a `ConfigError` says what needs it and how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        cure = f"pip install 'rl4dialog[{extra}]' ({error}){otherwise}"
        raise ConfigError(f"{what} needs the package {name.partition('.')[0]}: {cure}") from error


def _as_text(parameter: inspect.Parameter) -> str:
    """Format a parameter with its default, in YAML notation if that is simple."""
    if inspect.isclass(parameter.default) and parameter.default is not parameter.empty:
        parameter = parameter.replace(default=parameter.default.__name__.lower())
    return str(parameter.replace(annotation=inspect.Parameter.empty))


_ENTRY = re.compile(r"    (\w+): +(.*)")
_SECTION = re.compile(r"^(?:Args|Arguments|Attributes|Raises|Returns|Yields):\n", re.MULTILINE)
_MARKUP = (
    (re.compile(r":\w+:`~?([^`]*)`"), lambda match: f"`{match[1].rpartition('.')[2]}`"),
    (re.compile(r"``"), lambda match: "`"),
)


def summary(documented: Any) -> str:
    """First line of a docstring, as Markdown; empty if there is none."""
    return as_markdown((inspect.getdoc(documented) or "").partition("\n")[0])


def explanation(documented: Any) -> str:
    """Text of a docstring before its first section, as Markdown; empty if there is none."""
    text = inspect.getdoc(documented) or ""
    return as_markdown(_SECTION.split(text, maxsplit=1)[0].strip())


def argument_meanings(component: Any) -> dict[str, str]:
    """Argument descriptions from the docstring of a function, or of a class and its parents, as Markdown by name."""
    if not inspect.isclass(component):
        return _arguments(component)
    found: dict[str, str] = {}
    for cls in component.__mro__:
        if "__doc__" in vars(cls):
            found = {**_arguments(cls), **found}
    return found


def _arguments(documented: Any) -> dict[str, str]:
    text = inspect.cleandoc(documented.__doc__ or "")
    found: dict[str, str] = {}
    name = None
    for line in text.partition("Args:\n")[2].splitlines():
        if line and not line.startswith("    "):
            break  # the next section
        entry = _ENTRY.fullmatch(line)
        if entry:
            name, found[entry[1]] = entry[1], entry[2]
        elif name is not None:
            found[name] += f" {line.strip()}"
    return {name: as_markdown(meaning.strip()) for name, meaning in found.items()}


def as_markdown(text: str) -> str:
    """Text of a docstring with roles and code as Markdown has them."""
    for pattern, replace in _MARKUP:
        text = pattern.sub(replace, text)
    return text
