"""``rl4dialog prepare``: fill the cache in advance, for a run or with a public dataset."""

from __future__ import annotations

import argparse

from rl4dialog.commands.configs import add_config_arguments, read_config
from rl4dialog.core.errors import ConfigError

HELP = "build and cache the warm start and the intent classifier of a config, or cache a public dataset"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", nargs="?", help="public dataset to cache: chitchat, daily_dialog or dstc9")
    parser.add_argument("--path", help="folder with the files of the dataset (default: download them)")
    add_config_arguments(parser, required=False)


def run(args: argparse.Namespace) -> int:
    if (args.dataset is None) == (args.config_path is None):
        raise ConfigError("rl4dialog prepare needs either a dataset, or --config_path with the config of a run")
    if args.dataset is not None:
        from rl4dialog.data.public_datasets import prepare_dataset

        print(prepare_dataset(args.dataset, args.path))
        return 0
    if args.path is not None:
        raise ConfigError("--path is the folder of a dataset, and has no meaning with --config_path")

    from rl4dialog.core.config import TextConfig
    from rl4dialog.training.building.language_model import fill_cache

    config = read_config(args)
    if isinstance(config, TextConfig):
        fill_cache(config)
    else:
        print("nothing to prepare: this run has no language model")
    return 0
