"""What a command is, and options that several commands share: configs and models."""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.features import features, merged
from rl4dialog.core.registry import import_object
from rl4dialog.core.yaml_loader import packaged_yaml

if TYPE_CHECKING:
    from rl4dialog.core.config import RunConfig
    from rl4dialog.inference.loading import Agent, LoadedPolicy
    from rl4dialog.inference.simulation import WithoutModel

_logger = logging.getLogger(__name__)
# Keys that only the training of a language model reads.
_OF_TRAINING = (
    *("alg.kl_div.", "alg.training_args.", "alg.args.learning_rate", "alg.args.n_epochs", "alg.args.batch_size"),
    *("callbacks", "logging.", "env.n_envs", "env.n_workers", "env.vec_env"),
    *("train_evaluation.eval_every", "train_evaluation.save_every", "train_evaluation.keep_"),
)
_EITHER = "pass either --run with a run folder, or --model with --config_path"

SPLITS = ("train", "val", "test")
Option = tuple[str, dict[str, Any]]
GROUPS: dict[str, dict[str, dict[str, Any]]] = merged(
    packaged_yaml(Path(__file__).with_name("commands.yaml")), *(each.command_texts for each in features().values())
)
"""Texts of the commands, by group and name."""
MADE: dict[str, Command] = {}
"""The commands of the modules that were imported, by name."""


@dataclass
class Command:
    """A command with its texts, its options, and its work, which returns an exit code if that is not 0."""

    name: str
    help: str
    page: str
    examples: Sequence[str]
    options: Sequence[Option]
    run: Callable[[Namespace], int | None]
    place: int = 0
    """Place in the short help; 0 for none."""
    after: str = ""
    """Command after which it is proposed: ``init``, with ``--config_path``, or ``train``, with ``--run``."""
    is_resumable: bool = False
    """Whether a rerun continues it, so that a signal is no failure at any moment."""


def command(*options: Option, name: str = "") -> Callable[[Callable[[Namespace], int | None]], Command]:
    """Make a command of the function that does its work, which by default gives it its name."""

    def made(run: Callable[[Namespace], int | None]) -> Command:
        known = name or run.__name__.replace("_", "-")
        texts = next(of_group[known] for of_group in GROUPS.values() if known in of_group)
        MADE[known] = Command(known, **texts, options=options, run=run)
        return MADE[known]

    return made


def option(name: str, help: str, **settings: Any) -> Option:
    """Arguments of argparse's ``add_argument``; a default is added to the help, and says the type if it is a number.

    With ``at_least``, the option is a number, for :func:`check_numbers`.
    """
    if isinstance(default := settings.get("default"), int) or "at_least" in settings:
        settings["type"] = int
    shown = f" (default: {default})" if isinstance(default, (int, str, Path)) else ""
    return name, {"help": help + shown, **settings}


def flag(name: str, help: str) -> Option:
    return option(name, help, action="store_true")


def check_numbers(command: Command, args: Namespace) -> None:
    for name, settings in command.options:
        value, least = getattr(args, name.removeprefix("--"), None), settings.get("at_least")
        if value is not None and least is not None and value < least:
            raise ConfigError(f"{name} must be at least {least}, not {value}")


def check_log(path: Path) -> None:
    if path.suffix != ".jsonl":
        raise ConfigError(f"--output must be a .jsonl file, not {path}")


def split_option(default: str, meaning: str) -> Option:
    return option("--split", meaning, default=default, choices=SPLITS)


def output_option(meaning: str) -> Option:
    return option("--output", meaning, type=Path, required=True)


def set_option(metavar: str, meaning: str, nargs: int | str = "+") -> Option:
    """``--set``, stored as ``overrides``; one at a time where a positional argument may follow."""
    return option("--set", meaning, dest="overrides", action="extend", nargs=nargs, default=[], metavar=metavar)


def sampling_option(example: str) -> Option:
    """``--generation_kwargs``, stored as ``sampling``."""
    meaning = f"override a sampling setting of the evaluations, such as {example}"
    return option("--generation_kwargs", meaning, dest="sampling", nargs="+", default=[], metavar="KEY=VALUE")


SEED = option("--seed", "random seed", default=0)

# -- configs ----------------------------------------------------------------------------------------------------------

_SET = set_option("KEY=VALUE", "override a config key, such as alg.args.n_epochs=3; takes several, and can be repeated")
_VARIANT = option("--variant", "index of a combination of the config's 'expand' blocks", default=0)
CONFIG = (option("--config_path", "YAML config file of the run", required=True), _SET, _VARIANT)
OPTIONAL_CONFIG = (option("--config_path", "YAML config file of the run"), _SET, _VARIANT)


def config_flags(args: Namespace) -> list[str]:
    """The options of :data:`CONFIG` as they are written."""
    overrides = [text for override in args.overrides for text in ("--set", override)]
    return ["--config_path", args.config_path, "--variant", str(args.variant), *overrides]


def read_config(args: Namespace) -> RunConfig:
    """Load the config and its imports, and check all components."""
    from rl4dialog.core.config import load_config

    config = load_config(args.config_path, args.overrides, args.variant)

    from rl4dialog.training.building.components import import_and_check

    import_and_check(config, args.config_path)
    return config


# -- trained models ---------------------------------------------------------------------------------------------------

RUN = option("--run", "run folder", dest="run_path", required=True, metavar="RUN")
CHECKPOINT = option("--checkpoint", "checkpoint of the run: iteration, last or best (default: the final model)")
TRUST = flag(
    "--trust", "allow the run's config to run custom code, and to use the addresses, keys and files that it names"
)
MODEL = (
    option("--run", "run folder", dest="run_path", metavar="RUN"),
    CHECKPOINT,
    option("--model", "folder or hub id of a model with its tokenizer"),
    option("--config_path", "YAML config file to use with --model"),
    _VARIANT,
    _SET,
    TRUST,
)
POLICY = option(
    "--policy",
    "policy of the environment, such as rule or random, instead of a trained one, with --run or --config_path",
    metavar="NAME",
)


def load_agent(args: Namespace) -> LoadedPolicy | Agent:
    """Load what the arguments select, one of which is `POLICY`: in an environment without text, what acts there."""
    config = _chosen_config(args)
    if not config.agent:
        return _language_model(args, config)
    if args.policy is None and args.run_path is None:
        raise ConfigError(f"{config.selection} needs --run with a run folder, or --policy")
    run = None if args.policy else Path(args.run_path).expanduser()
    agent: Agent = import_object(config.agent)(config, args.policy or model_name(args), run, args.checkpoint)
    return agent


def load_model(args: Namespace) -> LoadedPolicy:
    return _language_model(args, _chosen_config(args))


def load_for_players(args: Namespace) -> LoadedPolicy | WithoutModel:
    """Load a run for others who speak instead of its model, which is not loaded if only a config is given."""
    if args.run_path or args.model or not args.config_path:
        return load_model(args)

    from rl4dialog.inference.simulation import WithoutModel

    return WithoutModel(read_config(args))


def _chosen_config(args: Namespace) -> RunConfig:
    if args.model is not None:
        if vars(args).get("policy") is not None:
            raise ConfigError("--policy takes the place of a trained model; pass either --model or --policy")
        if args.run_path is not None:
            raise ConfigError(_EITHER)
        if args.config_path is None:
            raise ConfigError("--model needs --config_path: the config defines the data, metrics and sampling settings")
        if args.checkpoint is not None:
            raise ConfigError("--checkpoint works only with --run; --model can be the folder of a checkpoint's model")
    if args.run_path is None:
        if args.config_path is None or (args.model is None and "policy" not in vars(args)):
            raise ConfigError(_EITHER)
        return read_config(args)
    if args.config_path is not None:
        raise ConfigError("--config_path works only with --model; a run has its own config, which --set can override")

    from rl4dialog.inference.loading import read_run_config
    from rl4dialog.training.building.components import check_components

    config = read_run_config(Path(args.run_path).expanduser(), args.overrides, args.trust)
    if not config.agent:
        if unread := [override for override in args.overrides if override.startswith(_OF_TRAINING)]:
            _logger.warning("--set %s has no effect here: only the training reads it", ", ".join(unread))
        config.alg.args.pop("device", None)  # inference uses the available device, not the one of training
    check_components(config)
    return config


def _language_model(args: Namespace, config: RunConfig) -> LoadedPolicy:
    from rl4dialog.inference.loading import LoadedPolicy, load_run

    if vars(args).get("policy") is not None:
        raise ConfigError(
            f"--policy is for environments with policies of their own, not for a run with {config.selection}"
        )
    if args.run_path is not None:
        return load_run(config, Path(args.run_path).expanduser(), args.checkpoint)
    if args.model is None:
        raise ConfigError(_EITHER)
    return LoadedPolicy(config, args.model)


def model_name(args: Namespace) -> str:
    name = str(args.run_path or args.model)
    return name if args.checkpoint is None else f"{name} (checkpoint {args.checkpoint})"
