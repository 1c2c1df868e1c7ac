"""Command ``train``."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from rl4dialog.commands.options import CONFIG, MADE, command, config_flags, flag, option, read_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.process_memory import keep_freed_memory, return_freed_memory

if TYPE_CHECKING:
    from rl4dialog.core.config import RunConfig
    from rl4dialog.runs.tracking import Tracker
    from rl4dialog.training.checkpoint import Checkpoint

_PATIENCE_S = 60.0
# Names of folders, and the experiment tracker that RL4LMs selects by a flag.
FOLDER = (
    option("--project_name", "name of the project folder", default="rl4dialog_exps"),
    option("--experiment_name", "name of the run folder", default="rl4dialog_experiment"),
    option("--entity_name", "Weights & Biases entity"),
    option("--base_path_to_store_results", "parent folder of project folders", default="."),
    flag("--log_to_wandb", "also log to Weights & Biases; same as wandb in logging.outputs"),
)


def folder_of(args: Namespace) -> Path:
    from rl4dialog.runs.run_folder import run_path

    return run_path(args.base_path_to_store_results, args.project_name, args.experiment_name)


@command(
    *CONFIG,
    *FOLDER,
    flag("--overwrite", "replace an existing run of the same name"),
    option(
        "--resume",
        "resume from the latest checkpoint; auto: start a new run if there is none",
        nargs="?",
        const="always",
        choices=("always", "auto"),
    ),
    option(
        "--seeds",
        "train once per seed, one after another; prints means and standard errors",
        nargs="+",
        type=int,
        metavar="SEED",
    ),
    flag("--dry_run", "check the config, build tokenizer, data, rewards and metrics, print the plan, and stop"),
)
def train(args: Namespace) -> int:
    from rl4dialog.functional.distributed import all_gather_object
    from rl4dialog.runs.provenance import recorded_start
    from rl4dialog.text.chat_template import fix_start_time, start_time
    from rl4dialog.training.processes import is_launched, join_processes, leave_processes

    if args.seeds:
        from rl4dialog.training.seeds import check_seeds, train_with_seeds

        if is_launched():
            raise ConfigError("--seeds starts its runs one after another; run it without a launcher")
        chosen = (args.config_path, args.overrides, args.variant, args.seeds)
        if not args.dry_run:
            return train_with_seeds(*chosen, args.argv, folder_of(args))
        check_seeds(*chosen)
    root = folder_of(args)
    fix_start_time(recorded_start(root) if args.resume is not None else None)
    if is_launched() and not args.dry_run:
        join_processes(lambda: _prepare_in_a_process_of_its_own(args))
        fix_start_time(all_gather_object(start_time())[0])
    try:
        _train_in_this_process(args, root)
    finally:
        leave_processes()
    return 0


def _prepare_in_a_process_of_its_own(args: Namespace) -> None:
    """Fill the cache in a single process: transformers' Trainer must not detect the launcher's processes."""
    from rl4dialog.text.chat_template import START_VARIABLE, start_time
    from rl4dialog.training.own_process import PARENT
    from rl4dialog.training.processes import LAUNCHER_VARIABLES

    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    environment |= {START_VARIABLE: start_time().isoformat(), PARENT: str(os.getpid())}  # it ends if this one is killed
    flags = [sys.executable, "-m", "rl4dialog.cli", "prepare", *config_flags(args)]
    if code := subprocess.run(flags, env=environment).returncode:
        sys.exit(code)


def _train_in_this_process(args: Namespace, root: Path) -> None:
    config = read_config(args)
    if args.log_to_wandb and "wandb" not in config.logging.outputs:
        from rl4dialog.runs.experiment_trackers import check_outputs

        config.logging.outputs.append("wandb")
        check_outputs(config.logging.outputs)
    (return_freed_memory if config.saves_memory else keep_freed_memory)()

    from rl4dialog.functional.distributed import is_main_process
    from rl4dialog.runs.provenance import import_hashes, package_versions
    from rl4dialog.training.building.conditions import refuse_useless
    from rl4dialog.training.processes import check_agreement

    check_agreement(
        lambda: {
            "version": package_versions(),
            "import": import_hashes(config.imports),
            **config.model_dump(mode="json"),
        }
    )
    if args.resume is None:
        refuse_useless(config)  # before there is a run folder
    if is_main_process():
        for warning in config.warnings:
            print(f"note: {warning}", file=sys.stderr)
    if args.dry_run:
        from rl4dialog.training.plan import print_plan

        print_plan(config)
        return

    from rl4dialog.runs.run_folder import only_writer
    from rl4dialog.training.checkpoint import is_done
    from rl4dialog.training.interruption import StopSignals
    from rl4dialog.training.own_process import is_started_by_command
    from rl4dialog.training.trainer import Trainer

    if not args.overwrite and is_done(root, config):
        if is_main_process():
            _print_result(root, config)
            print_next(root, config)
        return
    # The process of a command that was killed may still be saving its state there.
    patience_s = _PATIENCE_S if is_started_by_command() else 0.0
    with StopSignals() as signals, only_writer(root, patience_s) if is_main_process() else nullcontext():
        checkpoint = _checkpoint_to_resume(args, config, root)
        if not is_main_process():
            Trainer(config, None, checkpoint, signals).train_and_eval()
            return
        with _tracking(args, config, root, checkpoint) as tracker:
            _print_opening(config, root, checkpoint, args.overwrite)
            trainer = Trainer(config, tracker, checkpoint, signals)
            if checkpoint is not None:
                _record_start(args, config, tracker)
            trainer.train_and_eval()
    print_next(root, config)


def _checkpoint_to_resume(args: Namespace, config: RunConfig, root: Path) -> Checkpoint | None:
    from rl4dialog.functional.distributed import all_gather_object, is_main_process
    from rl4dialog.training.checkpoint import find_run

    if args.resume is not None and args.overwrite:
        raise ConfigError("--overwrite replaces a run and --resume continues it; pass only one of them")
    if args.overwrite:
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


def print_next(root: Path, config: RunConfig) -> None:
    """Print what can be done with a complete run."""
    from rl4dialog.runs.run_folder import REPORT_FILE
    from rl4dialog.training.building.texts import can_talk

    # As it can be typed here; make starts it by its path, from an environment that is not active.
    is_found = Path(sys.argv[0]).name != "rl4dialog" or shutil.which("rl4dialog")
    place = root.relative_to(Path.cwd()) if root.is_relative_to(Path.cwd()) else root
    proposed = [each.name for each in MADE.values() if each.after == "train" and can_talk(config)]
    program = "rl4dialog" if is_found else sys.argv[0]
    commands = [f"  {program} {name} --run {shlex.quote(str(place))}" for name in proposed]
    print("\n".join(["Next:", *commands, f"  open {place / REPORT_FILE} in a browser"]))


def _print_opening(config: RunConfig, root: Path, checkpoint: Checkpoint | None, overwrite: bool) -> None:
    from stable_baselines3.common.utils import get_device

    from rl4dialog.core.yaml_loader import flatten

    found = flatten(config.model_dump(mode="json"))
    models = (found.get(key) for key in ("alg.policy.args.model_name", "alg.model_name", "env.id"))
    length = f", {n_iters} iterations" if (n_iters := found.get("train_evaluation.n_iters")) else ""
    if checkpoint is not None:
        length += f", resumed after iteration {checkpoint.iteration}; --overwrite would start again"
    device = get_device(found.get("alg.args.device", "auto"))
    print(
        f"{config.alg.id} on {next(filter(None, models))}, {device}, seed {config.seed}{length}\n"
        f"Run folder: {root}\n"
        f"Ctrl-C saves and stops; the same command{' without --overwrite' if overwrite else ''} continues.",
        file=sys.stderr,
    )


@contextmanager
def _tracking(args: Namespace, config: RunConfig, root: Path, checkpoint: Checkpoint | None) -> Iterator[Tracker]:
    """Yield the tracker of a new run, or of a run resumed from a checkpoint; the trainer opens it once it is ready."""
    from rl4dialog.runs.run_folder import RunFolder, check_not_replaced
    from rl4dialog.runs.tracking import Tracker

    names, resolved = (args.project_name, args.experiment_name), config.model_dump(mode="json")
    if checkpoint is None:
        check_not_replaced(root, resolved)
    folder = RunFolder(args.base_path_to_store_results, *names, checkpoint is not None)
    args.run_path = folder.root
    with folder.keeping_replaced():
        run_ids = {} if checkpoint is None else checkpoint.state.get("tracker_run_ids", {})
        outputs = config.logging.outputs
        tracker = Tracker(folder, resolved, *names, args.entity_name, checkpoint is not None, run_ids, outputs)
        try:
            if checkpoint is None:
                _record_start(args, config, tracker)
            yield tracker
        except BaseException:
            tracker.close(exit_code=1)
            raise
        tracker.close()


def _record_start(args: Namespace, config: RunConfig, tracker: Tracker) -> None:
    from rl4dialog.runs.provenance import record_start

    record_start(tracker.run_folder, args.config_path, args.argv, config.seed, config.imports)
