"""``rl4dialog doctor``: check a run before it starts."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path

from rl4dialog.commands.configs import add_config_arguments, read_config
from rl4dialog.commands.models import add_run_argument
from rl4dialog.core.errors import ConfigError

HELP = "check the model, data, reward and machine of a config before training, or the published model of a run"
PAGE = "docs/troubleshooting.md"
EXAMPLES = (
    "rl4dialog doctor --config_path config.yml",
    "rl4dialog doctor --config_path config.yml --quick",
    "rl4dialog doctor --run runs/my_project/my_run",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser, required=False)
    add_run_argument(parser, required=False)
    parser.add_argument("--base_path_to_store_results", default=os.getcwd(), help="parent folder of project folders")
    parser.add_argument("--quick", action="store_true", help="leave out all checks that need the language model")
    parser.add_argument("--all", action="store_true", help="show passed and skipped checks in full, too")


def run(args: argparse.Namespace) -> int:
    from rl4dialog.training.doctor.examination import examine, has_failed, print_findings
    from rl4dialog.training.doctor.subject import Subject

    if (args.config_path is None) == (args.run_path is None):
        raise ConfigError("pass --config_path to check a config, or --run to check the model of a run")
    if args.run_path is not None:
        from rl4dialog.inference.saved_adapters import merged_adapters

        if args.overrides or args.variant:
            raise ConfigError("--set and --variant change a config, so they have no effect with --run; remove them")
        found = {"merged_adapters": merged_adapters(Path(args.run_path).expanduser())}
        print_findings(found, show_all=True)
        return int(has_failed(list(found.values())))
    subject = Subject(read_config(args), Path(args.base_path_to_store_results), args.quick)
    findings = examine(subject, args.debug)
    print_findings(findings, show_all=args.all)
    if has_failed(list(findings.values())):
        return 1
    of_training = [each for each in args.argv[1:] if each not in ("--quick", "--all")]  # with the same overrides
    print(f"Next: rl4dialog train {shlex.join(of_training)}")
    return 0
