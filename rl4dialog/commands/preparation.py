"""Commands before a training: ``doctor`` and ``prepare``."""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path

from rl4dialog.commands.options import OPTIONAL_CONFIG, OPTIONAL_RUN, command, flag, option, read_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.pretrained import BUILTIN


@command(
    "doctor",
    "check the model, data, reward and machine of a config before training, or the published model of a run",
    "docs/troubleshooting.md",
    "rl4dialog doctor --config_path config.yml",
    "rl4dialog doctor --config_path config.yml --quick",
    "rl4dialog doctor --run runs/my_project/my_run",
    options=[
        *OPTIONAL_CONFIG,
        OPTIONAL_RUN,
        option("--base_path_to_store_results", "parent folder of project folders", default="."),
        flag("--quick", "leave out all checks that need the language model"),
        flag("--all", "show passed and skipped checks in full, too"),
    ],
)
def doctor(args: Namespace) -> int:
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
    findings = examine(Subject(read_config(args), Path(args.base_path_to_store_results), args.quick), args.debug)
    print_findings(findings, show_all=args.all)
    if has_failed(list(findings.values())):
        return 1
    of_training = [each for each in args.argv[1:] if each not in ("--quick", "--all")]  # with the same overrides
    print(f"Next: rl4dialog train {shlex.join(of_training)}")
    return 0


@command(
    "prepare",
    "cache what a config needs: model, warm start, intent classifier, encoded log; or a public dataset or model",
    "docs/configs.md",
    "rl4dialog prepare --config_path config.yml",
    "rl4dialog prepare builtin/smollm2-135m-instruct",
    "rl4dialog prepare daily_dialog --path ~/data/dailydialog",
    options=[
        option(
            "name",
            "dataset (chitchat, daily_dialog, dstc9) or model (builtin/smollm2-135m-instruct) to cache",
            nargs="?",
        ),
        option("--path", "folder with the files of the dataset (default: download them)"),
        *OPTIONAL_CONFIG,
    ],
)
def prepare(args: Namespace) -> None:
    if (args.name is None) == (args.config_path is None):
        raise ConfigError("rl4dialog prepare needs either a name, or --config_path with the config of a run")
    if args.name is not None and not args.name.startswith(BUILTIN):
        from rl4dialog.data.public_datasets import prepare_dataset

        print(prepare_dataset(args.name, args.path))
        return
    if args.path is not None:
        raise ConfigError("--path is the folder of a dataset, and has no meaning here")
    if args.name is not None:
        from rl4dialog.core.pretrained import prepare_model

        print(prepare_model(args.name))
        return

    from rl4dialog.core.config import TextConfig
    from rl4dialog.training.assembly import fill_cache

    config = read_config(args)
    if isinstance(config, TextConfig):
        fill_cache(config)
    else:
        print("nothing to prepare: this run has no language model")
