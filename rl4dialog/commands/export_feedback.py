"""``rl4dialog export-feedback``: user feedback as preference data for other trainers."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "write the preferences and corrections of a feedback file as preference data for TRL's DPO trainer"
PAGE = "docs/feedback.md"
EXAMPLES = ("rl4dialog export-feedback --feedback feedback.jsonl --output preferences.jsonl",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--feedback", type=Path, required=True, help="feedback file of rl4dialog chat or rl4dialog ui")
    parser.add_argument("--output", type=Path, required=True, help="output .jsonl file; an existing one is replaced")


def run(args: argparse.Namespace) -> int:
    from rl4dialog.data.preference_export import export_preferences

    n_pairs, n_without = export_preferences(args.feedback, args.output)
    left_out = f"; {n_without} judgements make no pair (ratings, or equal replies)" if n_without else ""
    print(f"{n_pairs} pairs written to {args.output}{left_out}")
    return 0
