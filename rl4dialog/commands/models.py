"""What all commands share that begin with a trained model: a run's, or any model with a config."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from rl4dialog.commands.configs import add_overrides, read_config
from rl4dialog.core.errors import ConfigError

if TYPE_CHECKING:
    from rl4dialog.inference.loading import LoadedPolicy


def add_run_argument(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """The run folder, as ``run_path``."""
    parser.add_argument("--run", dest="run_path", required=required, metavar="RUN", help="folder of a run")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The model: ``--run`` with a checkpoint, or ``--model`` with ``--config_path``."""
    add_run_argument(parser, required=False)
    parser.add_argument("--checkpoint", default=None, help="of the run: an iteration, last or best; by default its end")
    parser.add_argument("--model", default=None, help="folder or hub id of a model with its tokenizer")
    parser.add_argument("--config_path", default=None, help="with --model: the YAML file that says what to do with it")
    parser.add_argument("--variant", type=int, default=0, help="which combination of the config's 'expand' blocks")
    add_overrides(parser)
    add_trust(parser)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """``--trust``."""
    parser.add_argument("--trust", action="store_true", help="run the code that the run's config names, as imports do")


def load_chosen(args: argparse.Namespace) -> LoadedPolicy:
    """Load the model that the arguments name.

    Raises:
        ConfigError: If they name none, or two.
    """
    if (args.run_path is None) == (args.model is None):
        raise ConfigError("give either --run with a run folder, or --model with --config_path")
    if args.run_path is not None and args.config_path is not None:
        raise ConfigError("--config_path goes with --model; a run has a config of its own, which --set can change")
    if args.model is not None and args.config_path is None:
        raise ConfigError("--model needs --config_path: the config says what data, metrics and ways of generating are")
    if args.model is not None and args.checkpoint is not None:
        raise ConfigError("--checkpoint goes with --run; --model may be the folder of a checkpoint's model")

    from rl4dialog.inference.loading import LoadedPolicy, load_run
    from rl4dialog.inference.saved_run import read_run_config
    from rl4dialog.training.building.components import check_components

    if args.model is not None:
        return LoadedPolicy(read_config(args), args.model)
    run = Path(args.run_path).expanduser()
    config = read_run_config(run, args.overrides, args.trust)
    config.alg.args.pop("device", None)  # a trained model is used on what there is
    check_components(config)
    return load_run(config, run, args.checkpoint)


def load_compared(args: argparse.Namespace) -> LoadedPolicy:
    """Load the model that ``--compare`` names: a run's, or any other, with the config of the first one.

    Raises:
        ConfigError: If a checkpoint is asked for and it is no run's.
    """
    folder = Path(args.compare).expanduser()
    if _is_run(folder):
        return load_chosen(
            argparse.Namespace(
                run_path=args.compare,
                checkpoint=args.compare_checkpoint,
                model=None,
                config_path=None,
                overrides=[],
                trust=args.trust,
            )
        )
    if args.compare_checkpoint is not None:
        raise ConfigError(f"--compare_checkpoint goes with a run, and {args.compare} is none")

    from rl4dialog.inference.loading import LoadedPolicy
    from rl4dialog.inference.saved_run import read_run_config

    run = args.run_path and Path(args.run_path).expanduser()
    config = read_config(args) if run is None else read_run_config(run, trust=args.trust)
    return LoadedPolicy(config, str(folder) if folder.exists() else args.compare)


def _is_run(folder: Path) -> bool:
    """Whether a folder is a run's; a model's has a config.json too, but a different one."""
    from rl4dialog.runs.run_folder import CONFIG_FILE

    try:
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and "alg" in config


def model_name(args: argparse.Namespace) -> str:
    """What people call the model that the arguments name."""
    return _named(str(args.run_path or args.model), args.checkpoint)


def compared_name(args: argparse.Namespace) -> str:
    """What people call the model that ``--compare`` names."""
    return _named(args.compare, args.compare_checkpoint)


def _named(name: str, checkpoint: str | None) -> str:
    return name if checkpoint is None else f"{name} (checkpoint {checkpoint})"
