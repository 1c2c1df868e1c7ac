"""Commands before a run: ``doctor`` checks it, and ``prepare`` fills the cache."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path

from rl4dialog.commands.options import add_config_arguments, add_run_argument, read_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.pretrained import BUILTIN


class Doctor:
    """``rl4dialog doctor``."""

    HELP = "check the model, data, reward and machine of a config before training, or the published model of a run"
    PAGE = "docs/troubleshooting.md"
    EXAMPLES = (
        "rl4dialog doctor --config_path config.yml",
        "rl4dialog doctor --config_path config.yml --quick",
        "rl4dialog doctor --run runs/my_project/my_run",
    )

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_config_arguments(parser, required=False)
        add_run_argument(parser, required=False)
        parser.add_argument(
            "--base_path_to_store_results", default=os.getcwd(), help="parent folder of project folders"
        )
        parser.add_argument("--quick", action="store_true", help="leave out all checks that need the language model")
        parser.add_argument("--all", action="store_true", help="show passed and skipped checks in full, too")

    @staticmethod
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


class Prepare:
    """``rl4dialog prepare``."""

    HELP = "cache what a config needs: model, warm start, intent classifier, encoded log; or a public dataset or model"
    PAGE = "docs/configs.md"
    EXAMPLES = (
        "rl4dialog prepare --config_path config.yml",
        "rl4dialog prepare builtin/smollm2-135m-instruct",
        "rl4dialog prepare daily_dialog --path ~/data/dailydialog",
    )

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "name",
            nargs="?",
            help="what to cache: the dataset chitchat, daily_dialog or dstc9, or a model such as "
            "builtin/smollm2-135m-instruct",
        )
        parser.add_argument("--path", help="folder with the files of the dataset (default: download them)")
        add_config_arguments(parser, required=False)

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        if (args.name is None) == (args.config_path is None):
            raise ConfigError("rl4dialog prepare needs either a name, or --config_path with the config of a run")
        if args.name is not None and args.name.startswith(BUILTIN):
            from rl4dialog.core.pretrained import prepare_model

            _refuse_path(args)
            print(prepare_model(args.name))
            return 0
        if args.name is not None:
            from rl4dialog.data.public_datasets import prepare_dataset

            print(prepare_dataset(args.name, args.path))
            return 0
        _refuse_path(args)

        from rl4dialog.core.config import TextConfig
        from rl4dialog.training.assembly import fill_cache

        config = read_config(args)
        if isinstance(config, TextConfig):
            fill_cache(config)
        else:
            print("nothing to prepare: this run has no language model")
        return 0


def _refuse_path(args: argparse.Namespace) -> None:
    if args.path is not None:
        raise ConfigError("--path is the folder of a dataset, and has no meaning here")
