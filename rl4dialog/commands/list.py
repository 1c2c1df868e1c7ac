"""``rl4dialog list``: list the components available to configs."""

from __future__ import annotations

import textwrap
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rl4dialog.commands.options import command, flag, option
from rl4dialog.core.errors import ConfigError, nearest_hint

if TYPE_CHECKING:
    from rl4dialog.core.registry import Registry

_WIDTH = 100
KINDS = {
    "datapools": "DataPoolRegistry",
    "rewards": "RewardFunctionRegistry",
    "partners": "PartnerRegistry",
    "metrics": "MetricRegistry",
    "post-processors": "PostProcessorRegistry",
    "policies": "PolicyRegistry",
    "algorithms": "AlgorithmRegistry",
    "offline-algorithms": "OfflineAlgorithmRegistry",
    "callbacks": "CallbackRegistry",
    "info-functions": "InfoFnRegistry",
    "environments": "EnvRegistry",
    "tasks": "TaskRegistry",
    "nlus": "NluRegistry",
    "nlgs": "NlgRegistry",
    "speakers": "SpeakerRegistry",
    "estimators": "EstimatorRegistry",
    "turn-level-algorithms": "TurnAlgorithmRegistry",
    "turn-level-policies": "TurnPolicyRegistry",
    "turn-level-rewards": "TurnRewardRegistry",
    "turn-level-warm-starts": "TurnWarmStartRegistry",
}  # kind of component, and its registry in the catalog


@command(
    "list",
    "list the components available to configs, with their arguments, or explain one",
    "docs/catalog.md",
    "rl4dialog list rewards",
    "rl4dialog list ppo",
    options=[
        option(
            "name",
            f"kind of component to list (default: all): {', '.join(KINDS)}; or an id to explain, such as ppo",
            nargs="?",
            metavar="KIND_OR_ID",
        ),
        flag("--markdown", "print as Markdown, for docs/catalog.md"),
        flag("--schema", "print all config keys as Markdown, for docs/yaml.md"),
        flag("--commands", "print all commands as Markdown, for docs/cli.md"),
        option("--imports", "modules or files that register custom components", nargs="*", default=[]),
    ],
)
def list_components(args: Namespace) -> None:
    if args.schema:
        from rl4dialog.core.reference_pages import schema_page

        print(schema_page(), end="")
        return
    if args.commands:
        from rl4dialog.commands.parser import command_page

        print(command_page(), end="")
        return

    from rl4dialog import catalog
    from rl4dialog.core.plugins import load_entry_points, load_imports

    load_entry_points()
    load_imports(args.imports, Path.cwd())
    registries = {kind: getattr(catalog, name) for kind, name in KINDS.items()}
    if args.name is not None and args.name not in KINDS:
        _explain(args.name, registries)
        return
    kinds = {kind: registries[kind] for kind in ([args.name] if args.name else KINDS)}
    if args.markdown:
        from rl4dialog.core.reference_pages import catalog_page

        print(catalog_page(kinds), end="")
        return
    for kind, registry in kinds.items():
        print(f"{kind}:")
        width = max(map(len, registry.ids()), default=0)
        for id in registry.ids():
            summary, arguments = registry.describe(id)
            print(f"  {id:<{width}}  {summary}")
            if args.name:
                indent = " " * (width + 4)
                print(textwrap.fill(f"({arguments})", _WIDTH, initial_indent=indent, subsequent_indent=indent + " "))
    more = "" if args.name else "; rl4dialog list KIND has arguments"
    print(f"\nrl4dialog list ID explains one, such as ppo{more}")


def _explain(id: str, registries: Mapping[str, Registry]) -> None:
    found = [registry for registry in registries.values() if id in registry]
    if not found:
        known = [*KINDS, *(each for registry in registries.values() for each in registry.ids())]
        raise ConfigError(f"unknown kind or id {id!r}{nearest_hint(id, known)} (rl4dialog list prints all)")
    for registry in found:
        print(f"{registry.kind} {id}\n")
        for paragraph in registry.explain(id).split("\n\n"):
            print(textwrap.indent(paragraph, "  ") + "\n")
        arguments = registry.arguments(id)
        print("  Arguments:" if arguments else "  No arguments.")
        for text, meaning in arguments.items():
            print(f"    {text}")
            if meaning:
                print(textwrap.fill(meaning, _WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8))
        print()
