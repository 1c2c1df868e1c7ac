"""The tools of a conversation, and how calls are read, answered, counted and written in chat templates."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from rl4dialog.catalog import ToolRegistry
from rl4dialog.core.arguments import Count, Positive
from rl4dialog.core.errors import ConfigError, PartnerError, RL4DialogError, nearest_hint, raised
from rl4dialog.core.partner_replies import clean_text
from rl4dialog.core.protocols import Toolbox
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.time_limit import TimeIsUp, time_limit
from rl4dialog.core.types import Call, Frame, PartnerReply
from rl4dialog.features.tools.calls import WORD, CallError, Tool, checked, json_schema, read_text
from rl4dialog.features.tools.right_calls import Gold, call_outcome, gold_call
from rl4dialog.features.tools.templates import CallMarkup, call_markup, read_json

_logger = logging.getLogger(__name__)
_told: set[str] = set()  # what was logged in this process


class ToolEntry(TypedDict, total=False):
    """A tool in YAML."""

    id: str
    args: dict[str, Any]


class Calls(Toolbox):
    """Tools that the agent calls by name: ``call book_ride name=Ann; place=the museum``.

    An utterance is a call if its first word is ``call``, and the second one names a function or there is an ``=``.
    Calls that cannot be read, unknown functions and slots, missing and wrong values are answered by an error, which
    starts with ``error:``. So is a call of a tool that raises an exception or takes too long. Too long answers are cut.

    Of chat templates with the roles of tools, the agent's calls have the form: the JSON of one call, with the markup
    around it. With other templates, calls are text.

    Its outcomes are the number of ``calls``, of those answered by an error (``failed_calls``), and of tools that did
    not work or whose answers were cut (``tool_faults``). If samples have a ``gold_call``, it compares the last call:
    ``right_slots`` is the share of right slots, and ``right_call`` 1 if all are.

    Args:
        tools: List of ``{id, args}``.
        ends_after: Functions of which a call without an error ends the conversation; ``all`` for each of them.
        timeout_s: Longest time that a tool may take, in seconds.
        max_characters: Maximum length of an answer.
        listed: Whether a chat template that can list the tools in the prompt does so.
    """

    outcomes = ("calls", "failed_calls", "tool_faults", "right_slots", "right_call")

    def __init__(
        self,
        tools: Annotated[list[ToolEntry], Field(min_length=1)],
        ends_after: list[str] | Literal["all"] | None = None,
        timeout_s: Positive = 5.0,
        max_characters: Count = 500,
        listed: bool = True,
        pool_args: Mapping[str, Any] | None = None,
    ) -> None:
        self._timeout_s, self._max_characters = timeout_s, max_characters
        self._tools: dict[str, Tool] = {}
        for entry in tools:
            for name, tool in _functions_of(entry, pool_args):
                if name in self._tools:
                    raise ConfigError(f"toolbox 'calls': two tools have a function {name!r}")
                self._tools[name] = tool
        self._names = {name.casefold(): name for name in self._tools}
        self._ends_after = [*self._tools] if ends_after == "all" else [*(ends_after or ())]
        for name in self._ends_after:
            if name not in self._tools:
                hint = nearest_hint(name, self._tools)
                raise ConfigError(f"toolbox 'calls': ends_after: there is no function {name!r}{hint}")
        self._listed = listed
        self._markup: CallMarkup | None = None
        self._calls, self._n_faults = list[Call](), 0
        self._gold: Gold | None = None

    def prepare(self, template: Any, frame: Frame) -> None:
        self._markup, why = call_markup(template, frame)
        self.frame = self._markup.frame if self._markup is not None else None
        if self._markup is None:
            _say_once(f"the chat template of {template.name} {why}, so calls of tools and their answers are text")
        elif self._listed:
            template.tools = [json_schema(name, tool.functions[name]) for name, tool in self._tools.items()]

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._calls, self._n_faults, self._gold = [], 0, gold_call(meta_info)
        for name, tool in self._tools.items():
            try:
                tool.reset(meta_info, derive_seed(seed, "tool", name))
            except RL4DialogError:
                raise
            except Exception as error:
                raise PartnerError(f"the tool of {name!r} cannot begin a conversation: {raised(error)}") from error

    def takes(self, said: str) -> bool:
        words = said.split(None, 2)
        if words[:1] == [WORD]:
            return len(words) == 1 or words[1].casefold() in self._names or "=" in said
        return self._markup is not None and self._markup.is_call(said)

    def read(self, said: str) -> Call:
        try:
            return Call(*self._read(said))
        except CallError as error:
            return Call("", problem=error.problem)

    def _read(self, said: str) -> tuple[str, dict[str, Any]]:
        is_text = said.split(None, 1)[:1] == [WORD]
        return read_text(said) if is_text else read_json(said)

    def answer(self, said: str, is_cut: bool = False) -> PartnerReply:
        name, arguments, problem = "", dict[str, Any](), ""
        try:
            if is_cut:
                raise CallError("unreadable", "the call was cut at the length limit")
            name, arguments = self._read(said)
            name, arguments = self._checked(name, arguments)
            text = self._result(name, lambda: self._tools[name].call(name, dict(arguments)))
        except CallError as error:
            problem, text = error.problem, f"error: {error}"[: self._max_characters]
        call = Call(name, arguments, text, problem)
        self._calls.append(call)
        return PartnerReply(text, leaves=not problem and name in self._ends_after, call=call)

    def fault(self, said: str) -> str:
        try:
            self._checked(*self._read(said))
        except CallError as error:
            return str(error)
        return ""

    def _checked(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Name and arguments of a call as the tool declares them."""
        if name.casefold() not in self._names:
            known = f"{nearest_hint(name, self._tools)} (known: {', '.join(self._tools)})"
            raise CallError("unknown tool", f"there is no {name!r}{known}")
        name = self._names[name.casefold()]
        return name, checked(name, self._tools[name].functions[name], arguments)

    def outcome(self) -> Mapping[str, float]:
        return {**call_outcome(self._calls, self._gold), "tool_faults": float(self._n_faults)}

    def written(self, said: str) -> tuple[str, str, str]:
        call = self.read(said) if self._markup is not None and self.takes(said) else None
        if self._markup is None or call is None or call.problem:
            return super().written(said)
        name, arguments = call.name, call.arguments
        with suppress(CallError):  # numbers as such
            name, arguments = self._checked(name, arguments)
        return self._markup.write(name, arguments)

    def _result(self, name: str, call: Callable[[], Any]) -> str:
        """What a tool returned, cut at the limit."""
        try:
            found = _within(self._timeout_s, call)
        except TimeIsUp:
            raise self._fault(name, f"took more than {self._timeout_s:g} s", "takes too long") from None
        except (Exception, SystemExit) as error:
            raise self._fault(name, f"raised {raised(error)}", "failed") from error
        if not isinstance(found, str):
            raise self._fault(name, f"returned a {type(found).__name__} and no text", "failed")
        if len(found) > self._max_characters:
            self._fault(name, f"returned {len(found):,} characters, cut to {self._max_characters:,}", "cut")
            found = found[: self._max_characters]
        return clean_text(found) or "(nothing)"

    def _fault(self, name: str, what: str, problem: str) -> CallError:
        self._n_faults += 1
        _say_once(f"the tool of {name!r} {what}", f"{name} {problem}")
        return CallError(problem, f"{name} {problem}")


def _functions_of(entry: ToolEntry, pool_args: Mapping[str, Any] | None) -> list[tuple[str, Tool]]:
    """A tool of the config, by the name of each of its functions."""
    if "id" not in entry:
        raise ConfigError("toolbox 'calls': each of the tools needs an id")
    try:
        tool = ToolRegistry.get(entry["id"], entry.get("args", {}), pool_args=pool_args)
    except RL4DialogError:
        raise
    except Exception as error:
        raise ConfigError(f"tool {entry['id']!r} cannot be built: {raised(error)}") from error
    functions = getattr(tool, "functions", None)
    if not isinstance(tool, Tool) or not isinstance(functions, Mapping) or not functions:
        wanted = "a subclass of Tool of rl4dialog.features.tools.calls, with functions"
        raise ConfigError(f"tool {entry['id']!r} is a {type(tool).__name__}; it must be {wanted}")
    return [(name, tool) for name in functions]


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """Result of a function; `TimeIsUp` if it takes too long. In a thread, nothing can interrupt it, so it runs on."""
    if threading.current_thread() is threading.main_thread():
        with time_limit(seconds):
            return call()
    result: Future[Any] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return result.result(seconds)
    except TimeoutError:
        raise TimeIsUp from None


def _say_once(message: str, key: str = "") -> None:
    if (key or message) not in _told:
        _told.add(key or message)
        _logger.warning(message)
