"""Commands for experiments of several runs: ``sweep``, ``benchmark`` and ``reproduce``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rl4dialog.commands.options import add_config_arguments, add_set, add_trust, check_at_least, read_config
from rl4dialog.commands.train import add_folder_arguments
from rl4dialog.core.errors import ConfigError

if TYPE_CHECKING:
    from rl4dialog.core.config import RunConfig
    from rl4dialog.experiments.sweep.running import Objective, TrialSource
    from rl4dialog.experiments.sweep.space import Dimension


_N_TRIALS = 20


class Sweep:
    """``rl4dialog sweep``."""

    HELP = "train with many values of some config keys, and select the best"
    PAGE = "docs/examples.md"
    EXAMPLES = (
        "rl4dialog sweep --config_path config.yml --grid alg.kl_div.target_kl=0.05,0.1,0.2",
        "rl4dialog sweep --config_path config.yml --search alg.args.n_epochs=int:1:4 --n_trials 20 "
        "--metric lexical/meteor",
    )

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_config_arguments(parser)
        add_folder_arguments(parser)
        values = parser.add_mutually_exclusive_group(required=True)
        values.add_argument(
            "--grid",
            action="append",
            metavar="KEY=A,B",
            help="values of a key, such as alg.kl_div.coeff=0.01,0.1; repeat it to train all combinations",
        )
        values.add_argument(
            "--search",
            action="append",
            metavar="KEY=KIND:...",
            help="values for Optuna to choose from: log:1e-5:1e-3, float:0:1, int:1:4 or choice:a,b; can be repeated",
        )
        parser.add_argument("--metric", help="metric of the val split after training; required with --search")
        parser.add_argument("--direction", choices=("maximize", "minimize"), help="default: maximize")
        parser.add_argument("--max_kl", type=float, help="highest KL per token of a trial that can be the best")
        parser.add_argument(
            "--seeds", nargs="+", type=int, default=[], metavar="SEED", help="train each trial with them"
        )
        parser.add_argument("--n_jobs", type=int, default=1, help="number of runs at the same time (default: 1)")
        parser.add_argument("--n_trials", type=int, help=f"--search: number of trials (default: {_N_TRIALS})")
        parser.add_argument("--sampler", choices=("tpe", "random", "grid"), help="--search: default tpe")
        parser.add_argument("--pruner", choices=("median", "none"), help="--search: default none")

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        from rl4dialog.experiments.sweep.results import base_config, write_sweep
        from rl4dialog.experiments.sweep.running import run_trials
        from rl4dialog.runs.run_folder import run_path

        _check_arguments(args)
        config = read_config(args)
        every, n_iters = config.train_evaluation.eval_every, config.n_iters
        if args.pruner == "median" and every >= n_iters:
            raise ConfigError(
                "--pruner median compares trials in between, but the only evaluation is that after iteration "
                f"{n_iters} (train_evaluation.eval_every: {every}); lower eval_every"
            )
        objective = _objective(args, config)
        folder = run_path(args.base_path_to_store_results, args.project_name, args.experiment_name)
        source = _source(args, config, objective, folder)
        arguments = [
            *("--config_path", args.config_path, "--variant", str(args.variant)),
            *(text for override in args.overrides for text in ("--set", override)),
            *("--base_path_to_store_results", str(folder.parent), "--project_name", folder.name),
            *(["--entity_name", args.entity_name] if args.entity_name else []),
            *(["--log_to_wandb"] if args.log_to_wandb else []),
        ]
        try:
            code = run_trials(source, folder, arguments, objective, args.seeds, args.n_jobs)
        except SystemExit:
            print("interrupted; rerun the same command to continue the sweep", file=sys.stderr)
            raise
        write_sweep(
            folder, source.results(), objective, base_config(args.config_path, args.overrides, args.variant), args.seeds
        )
        return code


class Benchmark:
    """``rl4dialog benchmark``."""

    HELP = "compare algorithms over seeds by a plan, and write a page with tables and intervals"
    PAGE = "docs/comparing.md"
    EXAMPLES = ("rl4dialog benchmark plan.yml --output_path runs/comparison --n_jobs 2",)

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("plan", help="the plan, a YAML file such as task_configs/benchmarks/small_talk.yml")
        parser.add_argument(
            "--output_path", required=True, help="folder for runs, numbers and page; an existing one is continued"
        )
        parser.add_argument("--n_jobs", type=int, default=1, help="number of runs at a time (default: 1)")
        parser.add_argument(
            "--page_only",
            action="store_true",
            help="run nothing; write the page again, after a change of title or metrics",
        )
        add_set(parser, "KEY=VALUE", "override a key of the plan")

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        from rl4dialog.experiments.quality.comparison import compare
        from rl4dialog.runs.run_folder import CONFIG_FILE

        check_at_least(args, n_jobs=1)
        if args.page_only and args.n_jobs > 1:
            raise ConfigError("--n_jobs has no effect with --page_only, which runs nothing; remove one of them")
        overrides = "".join(f" \\\n    --set {text}" for text in args.overrides)
        command = f"rl4dialog benchmark {args.plan} --output_path {args.output_path} --n_jobs {args.n_jobs}{overrides}"
        output = Path(args.output_path).expanduser().absolute()
        if (output / CONFIG_FILE).exists():
            raise ConfigError(f"--output_path {output} is the folder of a run; choose a folder of its own")
        return compare(args.plan, args.overrides, output, args.n_jobs, command, args.page_only)


class Reproduce:
    """``rl4dialog reproduce``."""

    HELP = "repeat a complete run and check that the results are identical"
    PAGE = "docs/reproducing.md"
    EXAMPLES = ("rl4dialog reproduce runs/my_project/my_run",)

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("run_path", metavar="RUN", help="run folder")
        parser.add_argument("--output_path", type=Path, help="folder of the new run (default: RUN_reproduced)")
        add_trust(parser)
        parser.add_argument("--overwrite", action="store_true", help="replace an existing run in the output folder")

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        from rl4dialog.experiments.reproduction import reproduce

        return reproduce(Path(args.run_path), args.output_path, args.overwrite, args.trust)


def _check_arguments(args: argparse.Namespace) -> None:
    if args.grid:
        for name in ("n_trials", "sampler", "pruner"):
            if getattr(args, name) is not None:
                raise ConfigError(f"--{name} has a meaning only with --search; --grid trains all combinations")
    elif args.metric is None:
        raise ConfigError("--search needs --metric, such as --metric lexical/meteor: what the trials are compared by")
    if args.metric is None:
        for name in ("direction", "max_kl"):
            if getattr(args, name) is not None:
                raise ConfigError(f"--{name} has a meaning only with --metric")
    check_at_least(args, n_jobs=1, n_trials=1)
    if args.max_kl is not None and not args.max_kl > 0:
        raise ConfigError(f"--max_kl must be above 0, got {args.max_kl:g}")
    if len(set(args.seeds)) < len(args.seeds):
        raise ConfigError(f"--seeds contains a seed twice: {' '.join(map(str, args.seeds))}")


def _objective(args: argparse.Namespace, config: RunConfig) -> Objective:
    from rl4dialog.core.config import OnPolicyConfig
    from rl4dialog.experiments.sweep.running import Objective

    if not isinstance(config, OnPolicyConfig):
        if args.metric is None:
            raise ConfigError("this run has no KL to compare the reward with; pass --metric")
        if args.max_kl is not None:
            raise ConfigError("--max_kl has no meaning here: only runs on replies have a KL to the reference")
    return Objective(args.metric, args.direction or "maximize", args.max_kl)


def _source(args: argparse.Namespace, config: RunConfig, objective: Objective, folder: Path) -> TrialSource:
    from rl4dialog.experiments.sweep.space import check_values, combinations, extremes, parse_grid, parse_search
    from rl4dialog.experiments.sweep.study import Grid, Study

    def read(overrides: Sequence[str]) -> RunConfig:
        given = argparse.Namespace(**{**vars(args), "overrides": [*args.overrides, *overrides]})
        return read_config(given)

    if args.grid:
        dimensions = parse_grid(args.grid)
        check_values(read, combinations(dimensions))
        return Grid(dimensions)
    dimensions = parse_search(args.search)
    check_values(read, extremes(dimensions))
    sampler = args.sampler or "tpe"
    n_trials = args.n_trials or (None if sampler == "grid" else _N_TRIALS)
    settings = _settings(args, config, dimensions)
    return Study(folder, dimensions, objective, settings, n_trials, sampler, args.pruner or "none", config.seed)


def _settings(args: argparse.Namespace, config: RunConfig, dimensions: Sequence[Dimension]) -> dict[str, object]:
    """What must stay the same when a search is continued."""
    return {
        "config": config.model_dump(mode="json"),
        "--search": {dimension.key: [dimension.kind, *dimension.values] for dimension in dimensions},
        "--metric": args.metric,
        "--direction": args.direction or "maximize",
        "--seeds": args.seeds,
    }
