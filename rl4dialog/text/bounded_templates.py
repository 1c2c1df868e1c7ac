"""Chat templates of any origin, which are programs, with a bound on the steps they take and the texts they build.

The sandbox of Jinja bounds a single range, but neither loops within loops nor the size of a text. Here every step of a
loop, every call of a macro and every new text or list is paid for from a budget, before the memory is allocated.
"""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer
from transformers.utils import chat_template_utils

BUDGET = 300_000_000
"""Characters that a template may build, with all intermediate texts. A whole novel has a million."""
_STEP, _ELEMENT = 1000, 100  # the price of a step of a loop, and of an element of a list, in characters
_LONGEST_S = 10.0  # of computing, for what is not paid for, such as comparisons of long texts
_GROWING = {
    *("center", "ljust", "rjust", "zfill", "expandtabs", "replace", "translate", "join", "indent", "batch", "slice"),
    *("tojson", "truncate", "wordwrap", "urlize", "xmlattr"),
}
_DYNAMIC_WIDTH = re.compile(r"\*|:[^}]*\{")
_left: ContextVar[list[float] | None] = ContextVar("left", default=None)  # of the budget, and when time is up


@functools.cache
def bound_templates() -> None:
    """Let transformers compile all templates in a :class:`BoundedEnvironment` from now on."""
    chat_template_utils._compile_jinja_template.cache_clear()
    theirs = chat_template_utils._cached_compile_jinja_template("").environment
    environment = BoundedEnvironment(theirs)
    chat_template_utils._cached_compile_jinja_template = environment.compiled


class _BoundedTemplate(Template):
    def render(self, *args: Any, **kwargs: Any) -> str:
        token = _left.set([BUDGET, time.thread_time() + _LONGEST_S])
        try:
            return super().render(*args, **kwargs)
        finally:
            _left.reset(token)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """An environment of transformers' for templates, in which everything that can grow is paid for."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, theirs: Any) -> None:
        extensions = [type(each) for each in theirs.extensions.values()]
        options = {"trim_blocks": theirs.trim_blocks, "lstrip_blocks": theirs.lstrip_blocks, "finalize": _paid}
        super().__init__(extensions=extensions, **options)
        self.globals.update({name: value for name, value in theirs.globals.items() if name != "lipsum"})
        self.filters.update({name: _paying(name, function) for name, function in theirs.filters.items()})

    def compiled(self, source: str) -> Template:
        tree = _Counted().visit(self.parse(source))
        tree.set_environment(self)
        return _BoundedTemplate.from_code(self, self.compile(tree), self.make_globals(None), None)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            _pay(_size(left) + _size(right))
        elif operator == "%" and isinstance(left, str):
            _pay(_price("format", [left, *(right if isinstance(right, tuple) else [right])]))
        elif operator == "*" and isinstance(left, int) != isinstance(right, int):
            _pay(_grown(right, left) if isinstance(left, int) else _grown(left, right))
        elif isinstance(left, int) and isinstance(right, int):
            _pay(left.bit_length() * (abs(right) if operator == "**" else 1))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(owner := getattr(__obj, "__self__", None), (str, list, dict)):
            args = tuple(map(_listed, args))
            _pay(_price(__obj.__name__, [owner, *args, *kwargs.values()]))
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if (formatted := super().wrap_str_format(value)) is None:
            return None

        def paying(*args: Any, **kwargs: Any) -> str:
            _pay(_price("format", [value.__self__, *args, *kwargs.values()]))
            return formatted(*args, **kwargs)

        return paying

    def step(self) -> None:
        """A step of a loop, or a call of a macro."""
        _pay(_STEP)
        if (left := _left.get()) is not None and time.thread_time() > left[1]:
            raise SecurityError(f"it takes more than {_LONGEST_S:g} s")

    def joined(self, *parts: Any) -> str:
        return "".join(str(_paid(part)) for part in parts)

    def sliced(self, value: Any, *limits: Any) -> Any:
        return _paid(value)[slice(*limits)]


class _Counted(NodeTransformer):
    """Puts calls of the environment into a template: at each step, and for texts that are joined or cut."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._with_step(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._with_step(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("joined", node.nodes, node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        limits = [each or nodes.Const(None) for each in (node.arg.start, node.arg.stop, node.arg.step)]
        return _call("sliced", [node.node, *limits], node)

    def _with_step(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("step", [], node), lineno=node.lineno))
        return node


def _call(name: str, arguments: list[Any], at: nodes.Node) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None, lineno=at.lineno)


def _pay(price: float) -> None:
    left = _left.get() or [BUDGET]  # none while a template is compiled, which computes constants
    left[0] -= price
    if left[0] < 0:
        raise SecurityError(f"it takes more steps, or builds longer texts, than {BUDGET:,} characters pay for")


def _paid(value: Any) -> Any:
    _pay(_size(value))
    return value


def _paying(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose results are paid for; as of all filters, its first argument may be the environment."""

    @functools.wraps(function)
    def paying(*args: Any, **kwargs: Any) -> Any:
        args = tuple(map(_listed, args))
        given = args[1:] if hasattr(function, "jinja_pass_arg") else args
        _pay(_price(name, [*given, *kwargs.values()]))
        return function(*args, **kwargs)

    return paying


def _listed(value: Any) -> Any:
    """What a filter such as ``map`` passes on, as a list, which has a size."""
    return list(value) if isinstance(value, Iterator) else value


def _price(name: str, values: Sequence[Any]) -> float:
    """What a method or filter costs: those that repeat or widen texts cost the product of their arguments."""
    first, others = values[0], values[1:]
    if name == "format" and isinstance(first, str):
        sizes = (_width(each) if _DYNAMIC_WIDTH.search(first) else _size(each) for each in others)
        widths = sum(map(int, re.findall(r"\d{1,15}", first))) if "{" in first or "%" in first else 0
        return len(first) + widths + (first.count("{") + first.count("%")) * sum(sizes)
    return _grown(first, *others) if name in _GROWING else sum(map(_size, values))


def _grown(first: Any, *others: Any) -> float:
    return math.prod([_size(first), *(max(1, _width(each)) for each in others)])


def _width(value: Any) -> float:
    return abs(value) if isinstance(value, int) else _size(value)


def _size(value: Any, most: float = BUDGET) -> float:
    """Characters of a value and all that is in it, counted up to a bound."""
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, (list, tuple, set, range, Mapping)):
        return 1
    size: float = _ELEMENT * len(value)
    for each in () if isinstance(value, range) else value:
        if size > most:
            break
        size += _size(each, most - size) + (_size(value[each], most - size) if isinstance(value, Mapping) else 0)
    return size
