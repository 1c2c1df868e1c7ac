"""Formats prompts with a tokenizer's chat template.

Templates can read the clock. Here it stands still at the start of the run, in UTC and English, so that the same data
give the same prompts on every machine and after every resume.
"""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rl4dialog.core.errors import DataError
from rl4dialog.core.time_limit import TimeIsUp, time_limit
from rl4dialog.text.template_trial import SECONDS, excess
from rl4dialog.text.words import WORDS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, str]

_EXAMPLE = ("Hello", "How are you?", "Fine.")
_CLOCK = "strftime_now"  # the only function of the clock that transformers gives to templates
_CHANCE = re.compile(r"\|\s*random\b|\blipsum\s*\(")

START_VARIABLE = "RL4DIALOG_START_TIME"
"""Environment variable with the time to use in place of the current one, such as ``2026-01-31T12:00:00+00:00``."""
_start: datetime | None = None


def start_time() -> datetime:
    """Time that chat templates read: the start of the run, or of the first use in a process without a run."""
    return _start or fix_start_time()


def fix_start_time(start: datetime | None = None) -> datetime:
    """Set the time that chat templates read from now on; by default :data:`START_VARIABLE` or the current time."""
    global _start
    _start = start or parse_time(os.environ.get(START_VARIABLE) or datetime.now(UTC).isoformat())
    return _start


def parse_time(text: str) -> datetime:
    """Parse a time in ISO format, which is in UTC unless it has a zone, to whole seconds in UTC."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise DataError(f"the start of a run must be a time such as 2026-01-31T12:00:00+00:00, not {text!r}") from error
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC).replace(microsecond=0)


class ChatTemplate:
    """Formats messages as a prompt for the assistant's reply."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, start: datetime | None = None) -> None:
        self._tokenizer, self._start = tokenizer, start or start_time()
        self.tools: list[dict[str, Any]] | None = None  # JSON schemas of functions that prompts list

    @property
    def name(self) -> str:
        return repr(self._tokenizer.name_or_path)

    def __call__(self, messages: list[Message], reply_comes: bool = True) -> str:
        """Format messages with ``role`` and ``content``."""
        if not self._tokenizer.chat_template:
            raise DataError(
                f"format 'chat_template' needs a tokenizer with a chat template, and {self.name} has none; choose "
                "another tokenizer.model_name, or format 'eou'"
            )
        if _CHANCE.search(str(self._tokenizer.chat_template)):
            raise DataError(f"the chat template of {self.name} writes something at random; choose another tokenizer")
        try:
            return self.render(messages, reply_comes)
        except Exception as error:  # a template is a program: TypeError, ZeroDivisionError, RecursionError, ...
            if not messages:
                raise DataError(
                    f"nothing was said before the reply, and the chat template of {self.name} needs a message; give a "
                    f"first message or one of the role system, or use format 'eou'"
                ) from error
            roles = ", ".join(message["role"] for message in messages)
            raise DataError(
                f"the chat template of {self.name} rejects messages of the roles {roles}: {error}"
            ) from error

    def render(self, messages: list[Message], reply_comes: bool) -> str:
        """Format messages, with the beginning of a reply if one comes; errors of the template are passed on."""
        template = self._tokenizer.get_chat_template()
        if needed := excess(template, json.dumps(self._tokenizer.special_tokens_map, default=str)):
            raise DataError(f"it needs {needed} for a few short messages, so it is not used")
        source = _clock(self._start) + template if self.reads_clock else None
        options: Any = {"tools": self.tools, "tokenize": False, "add_generation_prompt": reply_comes}
        try:
            with time_limit(SECONDS):
                return str(self._tokenizer.apply_chat_template(messages, chat_template=source, **options))
        except TimeIsUp:
            raise DataError(f"it takes more than {SECONDS} s") from None

    @property
    def reads_clock(self) -> bool:
        """Whether prompts can contain the time at which the run began."""
        return _CLOCK in str(self._tokenizer.chat_template)

    def end_in(self, markup: str) -> tuple[str, str | None]:
        """Split what the template writes after a reply: the text before the end, and the end.

        The end is the first special token, or else the first line; ``None`` if there is neither.
        """
        found = [(markup.find(token), -len(token), token) for token in self._special_tokens if token in markup]
        if found:
            start, _, token = min(found)
            return markup[:start], token
        line = next(iter(markup.strip().splitlines()), "").strip()
        return markup.partition(line)[0] if line else "", line or None

    @property
    def eos_token(self) -> str | None:
        return self._tokenizer.eos_token

    @cached_property
    def _special_tokens(self) -> list[str]:
        added = [str(token) for token in self._tokenizer.added_tokens_decoder.values() if token.special]
        return list(filter(None, dict.fromkeys([*self._tokenizer.all_special_tokens, *added])))

    @cached_property
    def control_tokens(self) -> tuple[str, ...]:
        """Special tokens that the template adds around messages, such as ``<|im_start|>``."""
        roles = ("user", "assistant", "user")
        written = self([{"role": role, "content": text} for role, text in zip(roles, _EXAMPLE, strict=True)])
        return tuple(token for token in self._special_tokens if token in written)


def _clock(start: datetime) -> str:
    """A macro in place of the function of the clock. Names are not taken from the locale."""
    month, day = WORDS["months"][start.month - 1], WORDS["days"][start.weekday()]
    numbers = {f"%{code}": start.strftime(f"%{code}") for code in "dmyYHIMSfjwuUWVGDFTR"}
    codes = {
        **{"%c": start.ctime(), "%x": numbers["%D"], "%X": numbers["%T"]},
        **{"%A": day, "%a": day[:3], "%B": month, "%b": month[:3], "%h": month[:3]},
        **{"%p": "AM" if start.hour < 12 else "PM", "%Z": "UTC", "%z": "+0000", "%e": f"{start.day:2}"},
        **{f"%-{code[1]}": number.lstrip("0") or "0" for code, number in numbers.items()},
        **numbers,
        "%%": "%",
    }
    replaced = "".join(f".replace({code!r}, {value!r})" for code, value in codes.items())
    # The empty expression keeps a newline at the beginning of the template, which a block would swallow.
    return f"{{% macro {_CLOCK}(format) %}}{{{{ format{replaced} }}}}{{% endmacro %}}{{{{ '' }}}}"
