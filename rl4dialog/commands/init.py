"""``rl4dialog init``: write a commented config for a table of prompts and replies."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rl4dialog.core.errors import ConfigError

HELP = "write a commented config for your own table of prompts and replies"
PAGE = "docs/configs.md"
EXAMPLES = (
    "rl4dialog init --data replies.csv",
    "rl4dialog init --data questions.jsonl --prompt question --reply answer --model builtin/tiny-gpt2",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, help="table with prompts: a .csv, .tsv, .jsonl or .json file")
    parser.add_argument("--prompt", metavar="COLUMN", help="column with the prompts (default: guessed)")
    parser.add_argument("--reply", metavar="COLUMN", help="column with reference replies (default: guessed)")
    parser.add_argument(
        "--model",
        help="folder, hub id or built-in model (default: builtin/smollm2-135m-instruct; builtin/tiny-gpt2 needs no "
        "download)",
    )
    parser.add_argument("--reward", metavar="ID", help="id of a reward (default: meteor, or a length without replies)")
    parser.add_argument("--output", type=Path, default=Path("config.yml"), help="the config (default: config.yml)")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")


def run(args: argparse.Namespace) -> int:
    from rl4dialog.experiments.new_config import CHAT_MODEL, config_text, read_table, write_config

    data, model = args.data, args.model
    if data is None:
        data = Path(_asked("Table with prompts (a .csv, .tsv, .jsonl or .json file)", "--data"))
        model = model or _asked(f"Model (Enter for {CHAT_MODEL})", "--model") or None
    table = read_table(data.expanduser(), args.prompt, args.reply)
    write_config(args.output, config_text(table, str(args.output), model or CHAT_MODEL, args.reward), args.overwrite)
    columns = ", ".join(f"{key}: {name}" for key, name in table.columns.items() if name is not None)
    print(f"{args.output} is written, with the columns {columns}{' (guessed)' if table.guessed else ''}.")
    if table.unread:
        print(f"Columns that it does not use: {', '.join(table.unread)}.")
    if table.has_rewards:
        print("It does not use the rewards of the log; docs/rated_logs.md shows how to learn from them.")
    print(f"Next:\n  rl4dialog doctor --config_path {args.output}\n  rl4dialog train --config_path {args.output}")
    return 0


def _asked(question: str, flag: str) -> str:
    if not sys.stdin.isatty():
        raise ConfigError(f"rl4dialog init needs {flag}, because there is no terminal to ask on")
    return input(f"{question}: ").strip()
