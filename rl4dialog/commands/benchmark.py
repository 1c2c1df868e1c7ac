"""``rl4dialog benchmark``: compare algorithms over seeds, by a plan."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "compare algorithms over seeds by a plan, and write a page with tables and intervals"
PAGE = "docs/comparing.md"
EXAMPLES = ("rl4dialog benchmark plan.yml --output_path runs/comparison --n_jobs 2",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", help="the plan, a YAML file such as task_configs/benchmarks/small_talk.yml")
    parser.add_argument(
        "--output_path", required=True, help="folder for runs, numbers and page; an existing one is continued"
    )
    parser.add_argument("--n_jobs", type=int, default=1, help="number of runs at a time (default: 1)")
    parser.add_argument(
        "--page_only", action="store_true", help="run nothing; write the page again, after a change of title or metrics"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="override a key of the plan"
    )


def run(args: argparse.Namespace) -> int:
    from rl4dialog.core.errors import ConfigError
    from rl4dialog.experiments.quality.comparison import compare

    if args.n_jobs < 1:
        raise ConfigError(f"--n_jobs must be at least 1, not {args.n_jobs}")
    if args.page_only and args.n_jobs > 1:
        raise ConfigError("--n_jobs has no effect with --page_only, which runs nothing; remove one of them")
    overrides = "".join(f" \\\n    --set {text}" for text in args.overrides)
    command = f"rl4dialog benchmark {args.plan} --output_path {args.output_path} --n_jobs {args.n_jobs}{overrides}"
    output = Path(args.output_path).expanduser().absolute()
    return compare(args.plan, args.overrides, output, args.n_jobs, command, args.page_only)
