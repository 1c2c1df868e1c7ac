"""Commands of experiments with several runs: ``sweep``, ``benchmark``, ``reproduce`` and ``report``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rl4dialog.commands.options import CONFIG, TRUST, command, config_flags, flag, option, read_config, set_option
from rl4dialog.commands.train import FOLDER, folder_of
from rl4dialog.core.errors import ConfigError

if TYPE_CHECKING:
    from rl4dialog.core.config import RunConfig
    from rl4dialog.features.experiments.sweep.running import Objective, TrialSource

_N_TRIALS = 20  # of a sweep


@command(
    *CONFIG,
    *FOLDER,
    option(
        "--grid",
        "values, such as alg.kl_div.coeff=0.01,0.1; repeated: all combinations",
        action="append",
        metavar="KEY=A,B",
    ),
    option(
        "--search",
        "for Optuna: log:1e-5:1e-3, float:0:1, int:1:4 or choice:a,b; repeatable",
        action="append",
        metavar="KEY=KIND:...",
    ),
    option("--metric", "metric of the val split after training; required with --search"),
    option(
        "--direction", "whether a high or a low metric is better (default: maximize)", choices=("maximize", "minimize")
    ),
    option("--max_kl", "highest KL per token of a trial that can be the best", type=float),
    option("--seeds", "train each trial with them", nargs="+", type=int, default=[], metavar="SEED"),
    option("--n_jobs", "number of runs at the same time", default=1, at_least=1),
    option("--n_trials", f"--search: number of trials (default: {_N_TRIALS})", at_least=1),
    option("--sampler", "--search: default tpe", choices=("tpe", "random", "grid")),
    option("--pruner", "--search: default none", choices=("median", "none")),
)
def sweep(args: Namespace) -> int:
    from rl4dialog.core.config import OnPolicyConfig
    from rl4dialog.features.experiments.sweep.results import base_config, write_sweep
    from rl4dialog.features.experiments.sweep.running import Objective, run_trials

    _check_arguments(args)
    config = read_config(args)
    every, n_iters = config.train_evaluation.eval_every, config.n_iters
    if args.pruner == "median" and every >= n_iters:
        raise ConfigError(
            "--pruner median compares trials in between, but the only evaluation is that after iteration "
            f"{n_iters} (train_evaluation.eval_every: {every}); lower eval_every"
        )
    if not isinstance(config, OnPolicyConfig):
        if args.metric is None:
            raise ConfigError("this run has no KL to compare the reward with; pass --metric")
        if args.max_kl is not None:
            raise ConfigError("--max_kl has no meaning here: only runs on replies have a KL to the reference")
    objective = Objective(args.metric, args.direction or "maximize", args.max_kl)
    folder = folder_of(args)
    source = _source(args, config, objective, folder)
    arguments = [
        *config_flags(args),
        *("--base_path_to_store_results", str(folder.parent), "--project_name", folder.name),
        *(["--entity_name", args.entity_name] if args.entity_name else []),
        *(["--log_to_wandb"] if args.log_to_wandb else []),
    ]
    code = run_trials(source, folder, arguments, objective, args.seeds, args.n_jobs)
    base = base_config(args.config_path, args.overrides, args.variant)
    write_sweep(folder, source.results(), objective, base, args.seeds)
    return code


@command(
    option("plan", "the plan, a YAML file such as task_configs/benchmarks/small_talk.yml"),
    option("--output_path", "folder for runs, numbers and page; an existing one is continued", required=True),
    option("--n_jobs", "number of runs at a time", default=1, at_least=1),
    flag("--page_only", "run nothing; write the page again, after a change of title or metrics"),
    option("--verify", "repeat this many random runs that are complete, and compare them", at_least=1, metavar="N"),
    option("--rows", "run only these rows", nargs="+", default=[], metavar="LABEL"),
    option("--worlds", "run only in these worlds", nargs="+", default=[], metavar="WORLD"),
    option("--seeds", "run only these seeds", nargs="+", type=int, default=[], metavar="SEED"),
    set_option("KEY=VALUE", "override a key of the plan", nargs=1),
)
def benchmark(args: Namespace) -> int:
    from rl4dialog.features.experiments.quality.comparison import Selection, compare, verify
    from rl4dialog.runs.run_folder import CONFIG_FILE

    if args.page_only and args.verify:
        raise ConfigError("--page_only runs nothing, and --verify repeats runs; remove one of them")
    for name, why in (("page_only", "runs nothing"), ("verify", "repeats one run after another")):
        if getattr(args, name) and args.n_jobs > 1:
            raise ConfigError(f"--n_jobs has no effect with --{name}, which {why}; remove one of them")
    overrides = "".join(f" \\\n    --set {text}" for text in args.overrides)
    typed = f"rl4dialog benchmark {args.plan} --output_path {args.output_path} --n_jobs {args.n_jobs}{overrides}"
    output = Path(args.output_path).expanduser().absolute()
    if (output / CONFIG_FILE).exists():
        raise ConfigError(f"--output_path {output} is the folder of a run; choose a folder of its own")
    selection = Selection(args.rows, args.worlds, args.seeds)
    if args.verify:
        return verify(args.plan, args.overrides, output, args.verify, selection)
    return compare(args.plan, args.overrides, output, args.n_jobs, typed, args.page_only, selection)


@command(
    option("run_path", "run folder", metavar="RUN"),
    option("--output_path", "folder of the new run (default: RUN_reproduced)", type=Path),
    TRUST,
    flag("--overwrite", "replace an existing run in the output folder"),
)
def reproduce(args: Namespace) -> int:
    from rl4dialog.features.experiments.reproduction import reproduce

    return reproduce(Path(args.run_path), args.output_path, args.overwrite, args.trust)


@command(
    option("runs", "run folder; several are compared with each other", nargs="+", metavar="RUN"),
    option("--output", "output file (default: report.html in the run folder, or comparison.html)", metavar="FILE"),
    option("--csv", "also write the metrics as CSV", type=Path, metavar="FILE"),
    option("--latex", "also write the metrics as a LaTeX table", type=Path, metavar="FILE"),
)
def report(args: Namespace) -> None:
    from rl4dialog.features.experiments.comparison import write_comparison
    from rl4dialog.runs.report.pages import write_report

    if len(args.runs) == 1:
        print(write_report(args.runs[0], args.output))
    else:
        print(write_comparison(args.runs, args.output or "comparison.html"))
    if args.csv or args.latex:
        from rl4dialog.features.experiments.tables import metric_rows, write_csv, write_latex

        found = metric_rows(args.runs)
        for path, write in ((args.csv, write_csv), (args.latex, write_latex)):
            if path is not None:
                print(write(path.expanduser(), *found))


def _check_arguments(args: Namespace) -> None:
    if bool(args.grid) == bool(args.search):
        raise ConfigError("pass either --grid, to train all combinations of values, or --search, to let Optuna choose")
    if args.search and args.metric is None:
        raise ConfigError("--search needs --metric, such as --metric lexical/meteor: what the trials are compared by")
    only_with = {
        "--search; --grid trains all combinations": ["n_trials", "sampler", "pruner"] if args.grid else [],
        "--metric": ["direction", "max_kl"] if args.metric is None else [],
    }
    for what, names in only_with.items():
        for name in names:
            if getattr(args, name) is not None:
                raise ConfigError(f"--{name} has a meaning only with {what}")
    if args.max_kl is not None and not args.max_kl > 0:
        raise ConfigError(f"--max_kl must be above 0, got {args.max_kl:g}")
    if len(set(args.seeds)) < len(args.seeds):
        raise ConfigError(f"--seeds contains a seed twice: {' '.join(map(str, args.seeds))}")


def _source(args: Namespace, config: RunConfig, objective: Objective, folder: Path) -> TrialSource:
    from rl4dialog.features.experiments.sweep.space import (
        check_values,
        combinations,
        extremes,
        parse_grid,
        parse_search,
    )
    from rl4dialog.features.experiments.sweep.study import Grid, Study

    def read(overrides: Sequence[str]) -> RunConfig:
        return read_config(Namespace(**{**vars(args), "overrides": [*args.overrides, *overrides]}))

    if args.grid:
        dimensions = parse_grid(args.grid)
        check_values(read, combinations(dimensions))
        return Grid(dimensions)
    dimensions = parse_search(args.search)
    check_values(read, extremes(dimensions))
    sampler = args.sampler or "tpe"
    n_trials = args.n_trials or (None if sampler == "grid" else _N_TRIALS)
    unchanged = {  # when a search is continued
        "config": config.model_dump(mode="json", exclude_defaults=True),
        "--search": {dimension.key: [dimension.kind, *dimension.values] for dimension in dimensions},
        "--metric": args.metric,
        "--direction": objective.direction,
        "--seeds": args.seeds,
    }
    return Study(folder, dimensions, objective, unchanged, n_trials, sampler, args.pruner or "none", config.seed)
