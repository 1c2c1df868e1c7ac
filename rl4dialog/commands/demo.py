"""``rl4dialog demo``: train a small model as a demonstration."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
from pathlib import Path

from rl4dialog.core.errors import RL4DialogError

HELP = "train a small model in about a quarter of an hour, and print dialogues before and after"
PAGE = "docs/get_started.md"
EXAMPLES = ("rl4dialog demo", "rl4dialog demo small_talk", "rl4dialog demo guess_what")
_CONFIGS = {
    "openers": "task_configs/openers/smollm2_ppo.yml",
    "small_talk": "task_configs/small_talk/gpt2_ppo.yml",
    "guess_what": "task_configs/guess_what/llama_ppo.yml",
}
_CHAT_MODEL = "builtin/smollm2-135m-instruct"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        nargs="?",
        choices=_CONFIGS,
        help="openers: a pretrained chat model learns to ask back; small_talk and guess_what: tiny models, without a "
        "network (default: openers, or small_talk if the chat model cannot be downloaded)",
    )


def run(args: argparse.Namespace) -> int:
    from rl4dialog.commands.parser import command_module, make_parser

    name = args.name or _possible()
    folder = ["--base_path_to_store_results", "runs", "--project_name", "demo", "--experiment_name", name]
    argv = ["train", "--config_path", _CONFIGS[name], *folder, "--overwrite"]
    training = make_parser().parse_args(argv)
    training.argv = argv
    if code := int(command_module("train").run(training)):
        return code
    run_folder = f"runs/demo/{name}"
    print(f"\nNext:\n  {_command()} chat --run {run_folder}\n  open {run_folder}/report.html in a browser")
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
