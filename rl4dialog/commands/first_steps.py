"""Commands for the first steps: ``demo`` and ``init``."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
from pathlib import Path

from rl4dialog.core.errors import ConfigError, RL4DialogError

_CONFIGS = {
    "openers": "task_configs/openers/smollm2_ppo.yml",
    "small_talk": "task_configs/small_talk/gpt2_ppo.yml",
    "guess_what": "task_configs/guess_what/llama_ppo.yml",
}

_CHAT_MODEL = "builtin/smollm2-135m-instruct"


class Demo:
    """``rl4dialog demo``."""

    HELP = "train a small model in about a quarter of an hour, and print dialogues before and after"
    PAGE = "docs/get_started.md"
    EXAMPLES = ("rl4dialog demo", "rl4dialog demo small_talk", "rl4dialog demo guess_what")

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "name",
            nargs="?",
            choices=_CONFIGS,
            help="openers: a pretrained chat model learns to ask back; small_talk and guess_what: tiny models, without "
            "a network (default: openers, or small_talk if the chat model cannot be downloaded)",
        )

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        from rl4dialog.commands.parser import command_of, make_parser

        name = args.name or _possible()
        folder = ["--base_path_to_store_results", "runs", "--project_name", "demo", "--experiment_name", name]
        argv = ["train", "--config_path", _CONFIGS[name], *folder, "--overwrite"]
        training = make_parser().parse_args(argv)
        training.argv = argv
        if code := int(command_of("train").run(training)):
            return code
        run_folder = f"runs/demo/{name}"
        print(f"\nNext:\n  {_command()} chat --run {run_folder}\n  open {run_folder}/report.html in a browser")
        return 0


class Init:
    """``rl4dialog init``."""

    HELP = "write a commented config for your own table of prompts and replies"
    PAGE = "docs/configs.md"
    EXAMPLES = (
        "rl4dialog init --data replies.csv",
        "rl4dialog init --data questions.jsonl --prompt question --reply answer --model builtin/tiny-gpt2",
    )

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--data", type=Path, help="table with prompts: a .csv, .tsv, .jsonl or .json file")
        parser.add_argument("--prompt", metavar="COLUMN", help="column with the prompts (default: guessed)")
        parser.add_argument("--reply", metavar="COLUMN", help="column with reference replies (default: guessed)")
        parser.add_argument(
            "--model",
            help="folder, hub id or built-in model (default: builtin/smollm2-135m-instruct; builtin/tiny-gpt2 needs no "
            "download)",
        )
        parser.add_argument(
            "--reward", metavar="ID", help="id of a reward (default: meteor, or a length without replies)"
        )
        parser.add_argument("--output", type=Path, default=Path("config.yml"), help="the config (default: config.yml)")
        parser.add_argument("--overwrite", action="store_true", help="replace an existing file")

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        from rl4dialog.experiments.new_config import CHAT_MODEL, config_text, read_table, write_config

        data, model = args.data, args.model
        if data is None:
            data = Path(_asked("Table with prompts (a .csv, .tsv, .jsonl or .json file)", "--data"))
            model = model or _asked(f"Model (Enter for {CHAT_MODEL})", "--model") or None
        table = read_table(data.expanduser(), args.prompt, args.reply)
        write_config(
            args.output, config_text(table, str(args.output), model or CHAT_MODEL, args.reward), args.overwrite
        )
        columns = ", ".join(f"{key}: {name}" for key, name in table.columns.items() if name is not None)
        print(f"{args.output} is written, with the columns {columns}{' (guessed)' if table.guessed else ''}.")
        if table.unread:
            print(f"Columns that it does not use: {', '.join(table.unread)}.")
        if table.has_rewards:
            print("It does not use the rewards of the log; docs/rated_logs.md shows how to learn from them.")
        print(f"Next:\n  rl4dialog doctor --config_path {args.output}\n  rl4dialog train --config_path {args.output}")
        return 0


def _command() -> str:
    """The command as it can be typed here; make starts it by its path, from an environment that is not active."""
    started = sys.argv[0]
    return started if Path(started).name == "rl4dialog" and not shutil.which("rl4dialog") else "rl4dialog"


def _possible() -> str:
    """Choose the demonstration of the chat model, if it can be trained here."""
    from rl4dialog.core.pretrained import prepare_model

    if importlib.util.find_spec("peft") is None:
        reason = "the chat model is trained with LoRA: pip install 'rl4dialog[lora]'"
    else:
        try:
            print(prepare_model(_CHAT_MODEL))
        except RL4DialogError as error:
            reason = str(error)
        else:
            return "openers"
    print(f"note: {reason}. A tiny model is trained instead.", file=sys.stderr)
    return "small_talk"


def _asked(question: str, flag: str) -> str:
    if not sys.stdin.isatty():
        raise ConfigError(f"rl4dialog init needs {flag}, because there is no terminal to ask on")
    return input(f"{question}: ").strip()
