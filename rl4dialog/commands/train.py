"""``rl4dialog train``: train a model from a config file."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from rl4dialog.commands.options import add_config_arguments, read_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.process_memory import keep_freed_memory, return_freed_memory

if TYPE_CHECKING:
    from rl4dialog.core.config import RunConfig
    from rl4dialog.runs.tracking import Tracker
    from rl4dialog.training.checkpoint import Checkpoint

HELP = "train a model from a config file"
PAGE = "docs/runs.md"
EXAMPLES = (
    "rl4dialog train --config_path config.yml --experiment_name first",
    "rl4dialog train --config_path config.yml --experiment_name first --resume auto",
    "rl4dialog train --config_path config.yml --set alg.args.n_epochs=3 --seeds 0 1 2",
    "rl4dialog train --config_path config.yml --dry_run",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    add_folder_arguments(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace an existing run of the same name")
    parser.add_argument(
        "--resume",
        nargs="?",
        const="always",
        choices=("always", "auto"),
        help="resume the run from its latest checkpoint; auto: start a new run if there is none",
    )
    parser.add_argument(
        "--seeds",
        nargs="+",
        type=int,
        metavar="SEED",
        help="train once per seed, one after another, and report means and standard errors",
    )
    parser.add_argument(
        "--dry_run",
        action="store_true",
        help="check the config, build tokenizer, data, rewards and metrics, print the plan, and stop",
    )


def add_folder_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the names of folders, and the experiment tracker that RL4LMs selects by a flag."""
    parser.add_argument("--project_name", default="rl4dialog_exps", help="name of the project folder")
    parser.add_argument("--experiment_name", default="rl4dialog_experiment", help="name of the run folder")
    parser.add_argument("--entity_name", help="Weights & Biases entity")
    parser.add_argument("--base_path_to_store_results", default=os.getcwd(), help="parent folder of project folders")
    parser.add_argument(
        "--log_to_wandb", action="store_true", help="also log to Weights & Biases; same as wandb in logging.outputs"
    )


def run(args: argparse.Namespace) -> int:
    from rl4dialog.functional.distributed import all_gather_object
    from rl4dialog.runs.provenance import recorded_start
    from rl4dialog.runs.run_folder import run_path
    from rl4dialog.text.chat_template import fix_start_time, start_time
    from rl4dialog.training.processes import is_launched, join_processes, leave_processes

    if args.seeds and not args.dry_run:
        return _train_with_seeds(args)
    root = run_path(args.base_path_to_store_results, args.project_name, args.experiment_name)
    fix_start_time(recorded_start(root) if args.resume is not None else None)
    if is_launched() and not args.dry_run:
        join_processes(lambda: _prepare_in_a_process_of_its_own(args))
        fix_start_time(all_gather_object(start_time())[0])
    try:
        return _train_in_this_process(args)
    finally:
        leave_processes()


def _train_with_seeds(args: argparse.Namespace) -> int:
    from rl4dialog.experiments.seeds import train_with_seeds
    from rl4dialog.training.processes import is_launched

    if is_launched():
        raise ConfigError("--seeds starts its runs one after another; run it without a launcher")
    project = Path(args.base_path_to_store_results).expanduser().absolute() / args.project_name
    chosen = (args.config_path, args.overrides, args.variant, args.seeds)
    return train_with_seeds(*chosen, args.argv, project, args.experiment_name)


def _prepare_in_a_process_of_its_own(args: argparse.Namespace) -> None:
    """Fill the cache in a single process: transformers' Trainer must not detect the launcher's processes."""
    from rl4dialog.text.chat_template import START_VARIABLE, start_time
    from rl4dialog.training.processes import LAUNCHER_VARIABLES

    settings = ["--config_path", args.config_path, "--variant", str(args.variant)]
    settings += [text for override in args.overrides for text in ("--set", override)]
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    environment[START_VARIABLE] = start_time().isoformat()
    code = subprocess.run([sys.executable, "-m", "rl4dialog.cli", "prepare", *settings], env=environment).returncode
    if code:
        sys.exit(code)


def _train_in_this_process(args: argparse.Namespace) -> int:
    config = read_config(args)
    if args.log_to_wandb and "wandb" not in config.logging.outputs:
        from rl4dialog.runs.experiment_trackers import check_trackers

        config.logging.outputs.append("wandb")
        check_trackers(config.logging.outputs)
    if config.saves_memory:
        return_freed_memory()
    else:
        keep_freed_memory()

    from rl4dialog.functional.distributed import is_main_process
    from rl4dialog.training.building.conditions import refuse_useless

    if args.resume is None:
        refuse_useless(config)  # before there is a run folder
    if is_main_process():
        for warning in config.warnings:
            print(f"note: {warning}", file=sys.stderr)
    if args.dry_run:
        from rl4dialog.training.plan import print_plan

        print_plan(config)
        return 0

    from rl4dialog.runs.run_folder import only_writer, run_path
    from rl4dialog.training.checkpoint import is_done
    from rl4dialog.training.interruption import StopSignals
    from rl4dialog.training.trainer import Trainer

    root = run_path(args.base_path_to_store_results, args.project_name, args.experiment_name)
    if not args.overwrite and is_done(root, config):
        if is_main_process():
            _print_result(root, config)
        return 0
    with StopSignals() as signals, only_writer(root) if is_main_process() else nullcontext():
        checkpoint = _checkpoint_to_resume(args, config, root)
        if not is_main_process():
            Trainer(config, None, checkpoint, signals).train_and_eval()
            return 0
        with _tracking(args, config, checkpoint) as tracker:
            _print_opening(config, root, checkpoint, args.overwrite)
            trainer = Trainer(config, tracker, checkpoint, signals)
            if checkpoint is not None:
                _record_start(args, config, tracker)
            trainer.train_and_eval()
    return 0


def _checkpoint_to_resume(args: argparse.Namespace, config: RunConfig, root: Path) -> Checkpoint | None:
    from rl4dialog.functional.distributed import all_gather_object, is_main_process
    from rl4dialog.training.checkpoint import find_run
    from rl4dialog.training.processes import has_checkpoints

    if args.resume is not None and args.overwrite:
        raise ConfigError("--overwrite replaces a run and --resume continues it; pass only one of them")
    if args.resume is not None and not has_checkpoints():
        raise ConfigError("--resume does not support DeepSpeed; use a launcher config without it")
    if args.overwrite or not has_checkpoints():
        return None
    return all_gather_object(find_run(root, config, args.resume) if is_main_process() else None)[0]  # type: ignore[no-any-return]


def _print_result(root: Path, config: RunConfig) -> None:
    """Print the result of a complete run, and what would change it."""
    from rl4dialog.runs.run_folder import read_players, read_references, read_result
    from rl4dialog.runs.summary import print_summary

    more = "increase train_evaluation.n_iters to continue training, or " if config.has_rollouts else ""
    print(f"the run in {root} is complete; {more}pass --overwrite to train it again")
    test = read_result(root).get("test", {})
    labels = ("before training", "after training")
    before, after = (test.get(key, {}) for key in ("before", "after"))
    print_summary(before, after, read_references(root), [], root, labels=labels, players=read_players(root))


def _print_opening(config: RunConfig, root: Path, checkpoint: Checkpoint | None, overwrite: bool) -> None:
    """Print what is trained, where the results will be, and how to stop."""
    from stable_baselines3.common.utils import get_device

    from rl4dialog.core.yaml_loader import flatten

    found = flatten(config.model_dump(mode="json"))
    models = (found.get(key) for key in ("alg.policy.args.model_name", "alg.model_name", "env.id"))
    subject = next(name for name in models if name)
    n_iters = found.get("train_evaluation.n_iters")
    length = f", {n_iters} iterations" if n_iters else ""
    how = "resumed after iteration {}; --overwrite would start again"
    resumed = "" if checkpoint is None else f", {how.format(checkpoint.iteration)}"
    device = get_device(found.get("alg.args.device", "auto"))
    print(
        f"{config.alg.id} on {subject}, {device}, seed {config.seed}{length}{resumed}\n"
        f"Run folder: {root}\n"
        f"Ctrl-C saves and stops; the same command{' without --overwrite' if overwrite else ''} continues.",
        file=sys.stderr,
    )


@contextmanager
def _tracking(args: argparse.Namespace, config: RunConfig, checkpoint: Checkpoint | None = None) -> Iterator[Tracker]:
    """Yield the tracker of a new run, or of a run resumed from a checkpoint; the trainer opens it once it is ready."""
    from rl4dialog.runs.run_folder import RunFolder, check_not_replaced, run_path
    from rl4dialog.runs.tracking import Tracker
    from rl4dialog.training.checkpoint import has_trained
    from rl4dialog.training.processes import has_checkpoints

    names = (args.base_path_to_store_results, args.project_name, args.experiment_name)
    resolved = config.model_dump(mode="json")
    # A run folder without a checkpoint is the start of the same run, or never got to train.
    overwrite = args.overwrite or has_checkpoints() or not has_trained(run_path(*names))
    if overwrite and checkpoint is None:
        check_not_replaced(run_path(*names), resolved)
    folder = RunFolder(*names, overwrite=overwrite, resume=checkpoint is not None)
    args.run_path = folder.root
    with folder.keeping_replaced():
        tracker = Tracker(
            folder,
            resolved,
            args.project_name,
            args.experiment_name,
            args.entity_name,
            resume=checkpoint is not None,
            run_ids=checkpoint.state.get("tracker_run_ids", {}) if checkpoint is not None else {},
            outputs=config.logging.outputs,
        )
        try:
            if checkpoint is None:
                _record_start(args, config, tracker)
            yield tracker
        except BaseException:
            tracker.close(exit_code=1)
            raise
        tracker.close()


def _record_start(args: argparse.Namespace, config: RunConfig, tracker: Tracker) -> None:
    from rl4dialog.runs.provenance import record_start

    record_start(tracker.run_folder, args.config_path, args.argv, config.seed, config.imports)
