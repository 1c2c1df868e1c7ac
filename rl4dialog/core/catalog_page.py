"""The page of everything that a config can name, written from the docstrings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rl4dialog.core.registry import Registry

_HEAD = """# Catalog

`rl4dialog list --markdown` writes this page of everything that a config can name. Arguments without a value must be
given. Those at the end of a list, without an explanation, belong to what it is based on: the metric of a reward,
sacrebleu, or stable-baselines3's algorithm."""


def catalog_page(kinds: Mapping[str, Registry]) -> str:
    """Markdown with a table for every kind, and its arguments below.

    Args:
        kinds: The registries, by the plural that is their heading.
    """
    return "\n".join([_HEAD, *(line for kind, registry in kinds.items() for line in _section(kind, registry))]) + "\n"


def _section(kind: str, registry: Registry) -> Iterator[str]:
    yield f"\n## {kind.capitalize()}\n\n| id | what it is |\n|---|---|"
    for id in registry.ids():
        yield f"| `{id}` | {registry.describe(id)[0]} |"
    for id in registry.ids():
        arguments = registry.arguments(id)
        if not arguments:
            continue
        yield f"\n### {registry.kind.capitalize()} `{id}`\n"
        for text, meaning in arguments.items():
            if meaning:
                yield f"- `{text}`: {meaning}"
        others = [f"`{text}`" for text, meaning in arguments.items() if not meaning]
        if others:
            yield f"- {', '.join(others)}"
