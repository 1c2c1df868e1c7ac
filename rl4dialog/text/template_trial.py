"""Chat templates of any origin, which are programs, tried in a process that has little time and memory.

The process imports Jinja only, so that it starts in tenths of a second. What a trial cannot show is whether a template
also ends for other messages, such as one that loops only after a certain word. Later renderings have a time limit in
the main thread, and no limit of memory.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from typing import Any

from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS, MIB = 5, 1024
_ROLES = ("user", "user assistant", "system user", "system user assistant user", "user assistant " * 20 + "user")


@functools.cache
def excess(template: str, special_tokens: str) -> str | None:
    """What a template needs too much of for a few conversations; the special tokens are JSON, by name."""
    command = [sys.executable, "-P", __file__, str(SECONDS)]  # without modules beside this one
    given = json.dumps([template, json.loads(special_tokens)]).encode()
    try:
        tried = subprocess.run(command, input=given, capture_output=True, timeout=10 * SECONDS)
    except subprocess.TimeoutExpired:
        return f"more than {10 * SECONDS} s"
    if tried.returncode > 0 and (said := tried.stderr.decode(errors="replace").splitlines()):
        return said[-1]
    return f"more than {SECONDS} s or {MIB:,} MiB" if tried.returncode else None


class _Generation(Extension):
    """The tag of transformers around what a model wrote."""

    tags = {"generation"}  # noqa: RUF012 (as Jinja declares it)

    def parse(self, parser: Parser) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _try(template: str, special_tokens: dict[str, Any]) -> None:
    """Render conversations, as transformers does; what a template rejects, or does wrong, is not of interest here."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = json.dumps
    environment.globals["strftime_now"] = lambda form: "28 Nov 2026"
    for roles in _ROLES:
        for reply_comes in (True, False):
            messages = [{"role": role, "content": "Hello, how are you? " * 20} for role in roles.split()]
            try:
                given = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": reply_comes}
                environment.from_string(template).render(**given, **special_tokens)
            except MemoryError:
                sys.exit(1)
            except Exception:
                continue


if __name__ == "__main__":
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[1]),) * 2)
        resource.setrlimit(resource.RLIMIT_AS, (MIB * 2**20, MIB * 2**20))
    _try(*json.load(sys.stdin))
