"""Options that several commands share: configs, models, judgements and addresses; and what they select."""

from __future__ import annotations

import argparse
import functools
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.feedback import check_feedback_file
from rl4dialog.core.files import json_object

if TYPE_CHECKING:
    from rl4dialog.core.config import RunConfig
    from rl4dialog.inference.loading import LoadedPolicy
    from rl4dialog.inference.turn_level_agent import TurnLevelAgent

_logger = logging.getLogger(__name__)
# Keys that only the training of a language model reads.
_OF_TRAINING = (
    *("alg.kl_div.", "alg.training_args.", "alg.args.learning_rate", "alg.args.n_epochs", "alg.args.batch_size"),
    *("callbacks", "logging.", "env.n_envs", "env.n_workers", "env.vec_env"),
    *("train_evaluation.eval_every", "train_evaluation.save_every", "train_evaluation.keep_"),
)

SPLITS = ("train", "val", "test")
write_verbatim = functools.partial(print, end="", flush=True)


def check_at_least(args: argparse.Namespace, **lowest: int) -> None:
    """Check the numbers that are given."""
    for name, least in lowest.items():
        value = getattr(args, name)
        if value is not None and value < least:
            raise ConfigError(f"--{name} must be at least {least}, not {value}")


# -- configs ----------------------------------------------------------------------------------------------------------


def add_config_arguments(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Add the config file and its overrides."""
    parser.add_argument("--config_path", required=required, help="YAML config file of the run")
    _add_overrides(parser)
    _add_variant(parser)


def _add_variant(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--variant", type=int, default=0, help="index of a combination of the config's 'expand' blocks")


def _add_overrides(parser: argparse.ArgumentParser) -> None:
    add_set(parser, "KEY=VALUE", "override a config key, such as alg.args.n_epochs=3; can be repeated")


def add_set(parser: argparse.ArgumentParser, metavar: str, meaning: str) -> None:
    """Add ``--set``, stored as ``overrides``."""
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar=metavar, help=meaning)


def add_sampling(parser: argparse.ArgumentParser, example: str) -> None:
    """Add ``--generation_kwargs``, stored as ``sampling``."""
    meaning = f"override a sampling setting of the evaluations, such as {example}"
    parser.add_argument(
        "--generation_kwargs", dest="sampling", nargs="+", default=[], metavar="KEY=VALUE", help=meaning
    )


def read_config(args: argparse.Namespace) -> RunConfig:
    """Load the config and its imports, and check all components."""
    from rl4dialog.core.config import load_config

    config = load_config(args.config_path, args.overrides, args.variant)

    from rl4dialog.training.building.components import import_and_check

    import_and_check(config, args.config_path)
    return config


# -- trained models ---------------------------------------------------------------------------------------------------


def add_run_argument(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Add the run folder, stored as ``run_path``."""
    parser.add_argument("--run", dest="run_path", required=required, metavar="RUN", help="run folder")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that select a model: ``--run`` with a checkpoint, or ``--model`` with ``--config_path``."""
    add_run_argument(parser, required=False)
    add_checkpoint(parser)
    parser.add_argument("--model", help="folder or hub id of a model with its tokenizer")
    parser.add_argument("--config_path", help="YAML config file to use with --model")
    _add_variant(parser)
    _add_overrides(parser)
    add_trust(parser)


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add ``--checkpoint``."""
    parser.add_argument(
        "--checkpoint", help="checkpoint of the run: iteration, last or best (default: the final model)"
    )


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add ``--trust``."""
    what = "allow the run's config to run custom code, and to use the addresses, keys and files that it names"
    parser.add_argument("--trust", action="store_true", help=what)


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Add ``--policy``."""
    parser.add_argument(
        "--policy",
        choices=("rule", "random", "round_robin", "best_order"),
        help="policy of the environment instead of a trained one, with --run or --config_path: rule in dialogue_acts, "
        "the others in turn_goals",
    )


def load_turn_level(args: argparse.Namespace) -> TurnLevelAgent | None:
    """Load the agent that the arguments select, if it acts in an environment without text; otherwise ``None``."""
    if args.model is not None and args.policy is not None:
        raise ConfigError("--policy takes the place of a trained model; pass either --model or --policy")
    if (args.run_path is None) == (args.config_path is None) or args.model is not None:
        return None  # a model, or arguments that `load_chosen` refuses

    from rl4dialog.core.config import TurnLevelConfig
    from rl4dialog.inference.saved_run import read_run_config
    from rl4dialog.training.building.components import check_components

    if args.run_path is None:
        config = read_config(args)
    else:
        config = read_run_config(Path(args.run_path).expanduser(), args.overrides, args.trust)
    if not isinstance(config, TurnLevelConfig):
        if args.policy is not None:
            raise ConfigError("--policy is for environments that have a policy of their own: dialogue_acts, turn_goals")
        return None
    check_components(config)

    from rl4dialog.inference.turn_level_agent import TurnLevelAgent, load_turn_level_policy

    if args.policy is not None:
        return TurnLevelAgent(config, args.policy)
    if args.run_path is None:
        raise ConfigError(f"env.id: {config.env.id} needs --run with a run folder, or --policy")
    policy = load_turn_level_policy(config, Path(args.run_path).expanduser(), args.checkpoint)
    return TurnLevelAgent(config, model_name(args), policy)


def load_chosen(args: argparse.Namespace) -> LoadedPolicy:
    """Load the model that the arguments select."""
    if (args.run_path is None) == (args.model is None):
        raise ConfigError("pass either --run with a run folder, or --model with --config_path")
    if args.run_path is not None and args.config_path is not None:
        raise ConfigError("--config_path works only with --model; a run has its own config, which --set can override")
    if args.model is not None and args.config_path is None:
        raise ConfigError("--model needs --config_path: the config defines the data, metrics and sampling settings")
    if args.model is not None and args.checkpoint is not None:
        raise ConfigError("--checkpoint works only with --run; --model can be the folder of a checkpoint's model")

    from rl4dialog.inference.loading import LoadedPolicy, load_run
    from rl4dialog.inference.saved_run import read_run_config
    from rl4dialog.training.building.components import check_components

    if args.model is not None:
        return LoadedPolicy(read_config(args), args.model)
    run = Path(args.run_path).expanduser()
    config = read_run_config(run, args.overrides, args.trust)
    if unread := [override for override in args.overrides if override.startswith(_OF_TRAINING)]:
        _logger.warning("--set %s has no effect here: only the training reads it", ", ".join(unread))
    config.alg.args.pop("device", None)  # inference uses the available device, not the one of training
    check_components(config)
    return load_run(config, run, args.checkpoint)


def load_compared(args: argparse.Namespace) -> LoadedPolicy:
    """Load the model that ``--compare`` selects: a run's, or any other model, with the config of the first one."""
    folder = Path(args.compare).expanduser()
    if _is_run(folder):
        chosen = {"run_path": args.compare, "checkpoint": args.compare_checkpoint, "model": None, "config_path": None}
        return load_chosen(argparse.Namespace(**chosen, overrides=[], trust=args.trust))
    if args.compare_checkpoint is not None:
        raise ConfigError(f"--compare_checkpoint works only with a run, and {args.compare} is not a run folder")

    from rl4dialog.inference.loading import LoadedPolicy
    from rl4dialog.inference.saved_run import read_run_config

    run = args.run_path and Path(args.run_path).expanduser()
    config = read_config(args) if run is None else read_run_config(run, trust=args.trust)
    return LoadedPolicy(config, str(folder) if folder.exists() else args.compare)


def _is_run(folder: Path) -> bool:
    """Whether a folder is a run folder; a model folder has a config.json too, but with other contents."""
    from rl4dialog.runs.run_folder import CONFIG_FILE

    try:
        config = json_object((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and "alg" in config


def model_name(args: argparse.Namespace) -> str:
    """Display name of the selected model."""
    return _named(str(args.run_path or args.model), args.checkpoint)


def compared_name(args: argparse.Namespace) -> str:
    """Display name of the model that ``--compare`` selects."""
    return _named(args.compare, args.compare_checkpoint)


def _named(name: str, checkpoint: str | None) -> str:
    return name if checkpoint is None else f"{name} (checkpoint {checkpoint})"


# -- judgements of people ---------------------------------------------------------------------------------------------


def add_judging_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of replies that people judge."""
    parser.add_argument("--seed", type=int, help="random seed of the replies")
    parser.add_argument(
        "--feedback",
        type=Path,
        help="file for ratings and corrections (default: feedback.jsonl in the run folder or the current folder)",
    )


def feedback_file(args: argparse.Namespace) -> Path:
    """The feedback file given by ``--feedback``, or the default one."""
    path: Path = (args.feedback or Path(args.run_path or ".") / "feedback.jsonl").expanduser()
    check_feedback_file(path)
    return path


# -- where servers listen ---------------------------------------------------------------------------------------------


def add_address_arguments(parser: argparse.ArgumentParser, port: int) -> None:
    """Add ``--host``, ``--allow_host`` and ``--port`` with its default."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, local only)")
    parser.add_argument(
        "--allow_host",
        action="append",
        default=[],
        metavar="NAME",
        help="additional host name that the server answers to, such as a proxy's; can be repeated",
    )
    parser.add_argument("--port", type=int, default=port, help=f"port to listen on (default: {port})")


def check_address_arguments(args: argparse.Namespace) -> None:
    """Check them, before a model is loaded."""
    from rl4dialog.serving.server import PageHosts, check_address

    check_address(args.host, args.port)
    PageHosts(args.host, args.port, args.allow_host)


def warn_of_visitors(args: argparse.Namespace, what: str) -> None:
    """Say what others can do, if the address is not that of this machine only."""
    if args.host not in ("127.0.0.1", "localhost", "::1"):
        print(f"Anyone who can reach {args.host} can {what}", file=sys.stderr)
