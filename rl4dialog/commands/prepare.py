"""``rl4dialog prepare``: fill the cache in advance, for a run or with a public dataset or model."""

from __future__ import annotations

import argparse

from rl4dialog.commands.configs import add_config_arguments, read_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.pretrained import BUILTIN

HELP = "cache what a config needs: model, warm start, intent classifier, encoded log; or a public dataset or model"
PAGE = "docs/configs.md"
EXAMPLES = (
    "rl4dialog prepare --config_path config.yml",
    "rl4dialog prepare builtin/smollm2-135m-instruct",
    "rl4dialog prepare daily_dialog --path ~/data/dailydialog",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        nargs="?",
        help="what to cache: the dataset chitchat, daily_dialog or dstc9, or a model such as "
        "builtin/smollm2-135m-instruct",
    )
    parser.add_argument("--path", help="folder with the files of the dataset (default: download them)")
    add_config_arguments(parser, required=False)


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
    from rl4dialog.training.building.preparation import fill_cache

    config = read_config(args)
    if isinstance(config, TextConfig):
        fill_cache(config)
    else:
        print("nothing to prepare: this run has no language model")
    return 0


def _refuse_path(args: argparse.Namespace) -> None:
    if args.path is not None:
        raise ConfigError("--path is the folder of a dataset, and has no meaning here")
