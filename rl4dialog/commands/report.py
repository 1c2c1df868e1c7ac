"""``rl4dialog report``: write one HTML file for a run, or a comparison of several runs."""

from __future__ import annotations

import argparse

HELP = "write the report of a run, or a comparison of several, as one HTML file"
PAGE = "docs/runs.md"
EXAMPLES = (
    "rl4dialog report runs/my_project/my_run",
    "rl4dialog report runs/my_project/my_run runs/my_project/other_run --output comparison.html",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folder; several are compared with each other")
    parser.add_argument(
        "--output",
        default=None,
        metavar="FILE",
        help="output file (default: report.html in the run folder; for several runs, comparison.html)",
    )


def run(args: argparse.Namespace) -> int:
    from rl4dialog.runs.report.comparison_report import write_comparison
    from rl4dialog.runs.report.run_report import write_report

    if len(args.runs) == 1:
        page = write_report(args.runs[0], args.output)
    else:
        page = write_comparison(args.runs, args.output or "comparison.html")
    print(page)
    return 0
