"""The console command ``rl4dialog``; the scripts are doors to the same functions."""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl4dialog.core.allocator import keep_freed_memory, return_freed_memory
from rl4dialog.core.errors import RL4DialogError

if TYPE_CHECKING:
    from rl4dialog.core.config import RunConfig

KINDS = ("datapools", "rewards", "metrics", "post-processors", "policies", "algorithms")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``rl4dialog``."""
    parser = argparse.ArgumentParser(
        prog="rl4dialog", description="Reinforcement learning for dialogue language models"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _add_train_arguments(commands.add_parser("train", help="train a model from a config file"))
    prepare = commands.add_parser("prepare", help="do in advance what a run keeps in the cache: classifier, warm start")
    _add_config_arguments(prepare)
    lister = commands.add_parser("list", help="list what a config can name, with its arguments")
    lister.add_argument("kind", nargs="?", choices=KINDS, help="all of them if left out")
    lister.add_argument("--markdown", action="store_true", help="as the page docs/catalog.md")
    lister.add_argument("--imports", nargs="*", default=[], help="modules or files that register more")
    lister.add_argument("--debug", action="store_true", help="show tracebacks")
    args = parser.parse_args(argv)
    return _run({"train": _train, "prepare": _prepare, "list": _list}[args.command], args)


def train_main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``scripts/train_text_generation.py``."""
    parser = argparse.ArgumentParser(description="Train a text-generation model from a config file")
    _add_train_arguments(parser)
    return _run(_train, parser.parse_args(argv))


def classifier_main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``scripts/train_intent_classifier.py``."""
    parser = argparse.ArgumentParser(description="Train an intent classifier from a labelled dialogue pool")
    parser.add_argument("--datapool", default="small_talk", help="id of the datapool")
    parser.add_argument("--datapool_args", default="{}", help="its arguments, as YAML or JSON")
    parser.add_argument("--model_name", default="builtin/tiny-bert", help="built-in, a folder or a hub id")
    parser.add_argument("--output_dir", required=True, help="where the classifier is saved")
    parser.add_argument("--n_epochs", type=float, default=None)
    parser.add_argument("--learning_rate", type=float, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return _run(_train_classifier, parser.parse_args(argv))


def _train_classifier(args: argparse.Namespace) -> int:
    from rl4dialog.catalog import DataPoolRegistry
    from rl4dialog.core.yaml_loader import parse_yaml
    from rl4dialog.training.intent_classifier import ACTS, train_intent_classifier

    pool_args = parse_yaml(args.datapool_args, "--datapool_args")
    train, val = (
        [sample for sample, _ in DataPoolRegistry.get(args.datapool, {**pool_args, "split": split})]
        for split in ("train", "val")
    )
    result = train_intent_classifier(
        train,
        val,
        args.output_dir,
        seed=args.seed,
        model_name=args.model_name,
        n_epochs=args.n_epochs,
        learning_rate=args.learning_rate,
    )
    print(f"accuracy on val: {result['accuracy']:.4f}; rows gold, columns predicted ({', '.join(ACTS)}):")
    for row in result["confusion"]:
        print("  " + " ".join(f"{count:6d}" for count in row))
    print(f"saved to {args.output_dir}")
    return 0


def _add_config_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config_path", required=True, help="YAML file of the run")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key of the config, such as alg.args.n_epochs=3; may be repeated",
    )
    parser.add_argument("--variant", type=int, default=0, help="which combination of the config's 'expand' blocks")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def _add_train_arguments(parser: argparse.ArgumentParser) -> None:
    _add_config_arguments(parser)
    parser.add_argument("--project_name", default="rl4dialog_exps", help="folder of the project's runs")
    parser.add_argument("--experiment_name", default="rl4dialog_experiment", help="folder of this run")
    parser.add_argument("--entity_name", default=None, help="Weights & Biases entity")
    parser.add_argument("--base_path_to_store_results", default=os.getcwd(), help="where project folders live")
    parser.add_argument("--log_to_wandb", action="store_true", help="also log to Weights & Biases")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing run of the same name")
    parser.add_argument("--dry_run", action="store_true", help="check everything, print the plan, and stop")


def _run(command: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a command; what a user can mend is told in one paragraph."""
    # Tokenizers were used before the env workers fork; their warning is of no use to a user.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    # Our own bars tell what takes long; one for every reading of weights is noise.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.filterwarnings("ignore", category=FutureWarning)
    try:
        return command(args)
    except RL4DialogError as error:
        if args.debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if args.debug:
            raise
        where = getattr(args, "run_path", None)
        print(f"\ninterrupted; what was written is in {where}" if where else "\ninterrupted", file=sys.stderr)
        return 130


def _load_config(args: argparse.Namespace) -> RunConfig:
    """The config with all that it imports, checked."""
    from rl4dialog.core.config import load_config
    from rl4dialog.core.plugins import load_entry_points, load_imports

    config = load_config(args.config_path, args.overrides, args.variant)
    load_entry_points()
    load_imports(config.imports, Path(args.config_path).resolve().parent)

    from rl4dialog.training.builders import check_components

    check_components(config)
    return config


def _prepare(args: argparse.Namespace) -> int:
    from rl4dialog.training import builders

    builders.fill_cache(_load_config(args))
    return 0


def _prepare_in_a_process_of_its_own(args: argparse.Namespace) -> None:
    """What transformers' Trainer does for the cache must not see that there are several processes."""
    from rl4dialog.training.processes import LAUNCHER_VARIABLES

    settings = ["--config_path", args.config_path, "--variant", str(args.variant)]
    settings += [text for override in args.overrides for text in ("--set", override)]
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    code = subprocess.run([sys.executable, "-m", "rl4dialog.cli", "prepare", *settings], env=environment).returncode
    if code:
        sys.exit(code)


def _train(args: argparse.Namespace) -> int:
    from rl4dialog.training.processes import is_launched, join_processes, leave_processes

    if is_launched() and not args.dry_run:
        join_processes(lambda: _prepare_in_a_process_of_its_own(args))
    try:
        return _train_in_this_process(args)
    finally:
        leave_processes()


def _train_in_this_process(args: argparse.Namespace) -> int:
    config = _load_config(args)
    saves_memory = config.alg.policy is not None and getattr(config.alg.policy.args, "gradient_checkpointing", False)
    return_freed_memory() if saves_memory else keep_freed_memory()

    from rl4dialog.functional.distributed import is_main_process

    if not is_main_process():
        from rl4dialog.training.on_policy import OnPolicyTrainer

        OnPolicyTrainer(config).train_and_eval()
        return 0
    for warning in config.warnings:
        print(f"note: {warning}", file=sys.stderr)
    if args.dry_run:
        from rl4dialog.training.plan import print_plan

        print_plan(config)
        return 0

    from rl4dialog.training.run_folder import RunFolder
    from rl4dialog.training.tracking import Tracker

    folder = RunFolder(
        args.base_path_to_store_results, args.project_name, args.experiment_name, overwrite=args.overwrite
    )
    args.run_path = folder.root
    tracker = Tracker(
        folder,
        config.model_dump(mode="json"),
        args.project_name,
        args.experiment_name,
        args.entity_name,
        args.log_to_wandb,
    )
    try:
        trainer: Any
        if config.alg.id == "supervised":
            from rl4dialog.training.supervised_trainer import SupervisedTrainer

            trainer = SupervisedTrainer(config, tracker)
        else:
            from rl4dialog.training.on_policy import OnPolicyTrainer

            trainer = OnPolicyTrainer(config, tracker)
        trainer.train_and_eval()
    except BaseException:
        tracker.close(exit_code=1)
        raise
    tracker.close()
    return 0


def _list(args: argparse.Namespace) -> int:
    from rl4dialog import catalog
    from rl4dialog.core.plugins import load_entry_points, load_imports

    load_entry_points()
    load_imports(args.imports, Path.cwd())
    registries = {
        "datapools": catalog.DataPoolRegistry,
        "rewards": catalog.RewardFunctionRegistry,
        "metrics": catalog.MetricRegistry,
        "post-processors": catalog.PostProcessorRegistry,
        "policies": catalog.PolicyRegistry,
        "algorithms": catalog.AlgorithmRegistry,
    }
    kinds = {kind: registries[kind] for kind in ([args.kind] if args.kind else KINDS)}
    components = {kind: [(id, *found.describe(id)) for id in found.ids()] for kind, found in kinds.items()}
    if args.markdown:
        _print_markdown(components)
        return 0
    for kind, rows in components.items():
        print(f"{kind}:")
        for id, summary, arguments in rows:
            print(f"  {id:<28} {summary}\n  {'':<28} ({arguments})")
    return 0


def _print_markdown(components: dict[str, list[tuple[str, str, str]]]) -> None:
    print("# What a config can name\n")
    print("`rl4dialog list --markdown` writes this page from the docstrings. Arguments without a value must be given.")
    for kind, rows in components.items():
        print(f"\n## {kind.capitalize()}\n\n| id | what it is | arguments |\n|---|---|---|")
        for id, summary, arguments in rows:
            print(f"| `{id}` | {summary} | {f'`{arguments}`' if arguments else ''} |")


if __name__ == "__main__":
    sys.exit(main())
