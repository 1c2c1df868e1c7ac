"""Commands before a training: ``demo``, ``init``, ``doctor`` and ``prepare``."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import sys
from argparse import Namespace
from pathlib import Path

from rl4dialog.commands.options import OPTIONAL_CONFIG, OPTIONAL_RUN, command, flag, option, read_config
from rl4dialog.commands.train import train
from rl4dialog.core.errors import ConfigError, RL4DialogError
from rl4dialog.core.pretrained import BUILTIN

_CONFIGS = {
    "openers": "task_configs/openers/smollm2_ppo.yml",
    "small_talk": "task_configs/small_talk/gpt2_ppo.yml",
    "table_booking": "task_configs/table_booking/llama_ppo.yml",
    "guess_what": "task_configs/guess_what/llama_ppo.yml",
}
_CHAT_MODEL = "builtin/smollm2-135m-instruct"


@command(
    "demo",
    "train a small model in at most a quarter of an hour, and print dialogues before and after",
    "docs/get_started.md",
    "rl4dialog demo",
    "rl4dialog demo small_talk",
    "rl4dialog demo table_booking",
    options=[
        option(
            "name",
            "openers: a pretrained chat model learns to ask back. Tiny models, without a network: small_talk, "
            "table_booking (asks for what is missing, then books), guess_what (a guessing game) (default: openers, or "
            "small_talk if the chat model cannot be downloaded)",
            nargs="?",
            choices=_CONFIGS,
        ),
        flag("--overwrite", "train again from the beginning (default: continue, or print the result)"),
    ],
)
def demo(args: Namespace) -> int:
    from rl4dialog.commands.parser import make_parser

    name = args.name or _possible()
    folder = ["--base_path_to_store_results", "runs", "--project_name", "demo", "--experiment_name", name]
    argv = [
        "train",
        "--config_path",
        _CONFIGS[name],
        *folder,
        *(["--overwrite"] if args.overwrite else ["--resume", "auto"]),
    ]
    training = make_parser().parse_args(argv)
    training.argv = argv
    if code := train.run(training) or 0:
        return code
    # As it can be typed here; make starts it by its path, from an environment that is not active.
    typed = sys.argv[0] if Path(sys.argv[0]).name == "rl4dialog" and not shutil.which("rl4dialog") else "rl4dialog"
    print(f"\nNext:\n  {typed} chat --run runs/demo/{name}\n  open runs/demo/{name}/report.html in a browser")
    return 0


def _possible() -> str:
    """Choose the demonstration of the chat model, if it can be trained here."""
    from rl4dialog.core.pretrained import prepare_model

    try:
        if importlib.util.find_spec("peft") is None:
            raise ConfigError("the chat model is trained with LoRA: pip install 'rl4dialog[lora]'")
        print(prepare_model(_CHAT_MODEL))
    except RL4DialogError as error:
        print(f"note: {error}. A tiny model is trained instead.", file=sys.stderr)
        return "small_talk"
    return "openers"


@command(
    "init",
    "write a commented config for your data, or a recipe for a GPU",
    "docs/configs.md",
    "rl4dialog init --data replies.csv",
    "rl4dialog init --data questions.jsonl --prompt question --reply answer --model builtin/tiny-gpt2",
    "rl4dialog init --recipe qwen3-1.7b-24gb --data replies.csv",
    options=[
        option("--data", "table with prompts: a .csv, .tsv, .jsonl or .json file", type=Path),
        option("--recipe", "model and GPU, such as qwen3-1.7b-24gb, -8gb or -80gb", metavar="NAME"),
        option("--prompt", "column with the prompts (default: guessed)", metavar="COLUMN"),
        option("--reply", "column with reference replies (default: guessed)", metavar="COLUMN"),
        option("--model", "folder, hub id or built-in model (default: the recipe's, or builtin/smollm2-135m-instruct)"),
        option("--reward", "id of a reward (default: meteor, or a length without replies)", metavar="ID"),
        option("--output", "the config", type=Path, default=Path("config.yml")),
        flag("--overwrite", "replace an existing file"),
    ],
)
def init(args: Namespace) -> None:
    from rl4dialog.experiments.new_config import CHAT_MODEL, config_text, read_table, recipe_text, write_config

    data, model, output = args.data, args.model, str(args.output)
    if data is None and args.recipe is None:
        data = Path(_asked("Table with prompts (a .csv, .tsv, .jsonl or .json file)", "--data"))
        model = model or _asked(f"Model (Enter for {CHAT_MODEL})", "--model") or None
    if data is None and (args.prompt or args.reply):
        raise ConfigError("--prompt and --reply name columns of --data, which is missing")
    table = None if data is None else read_table(data.expanduser(), args.prompt, args.reply)
    if args.recipe is not None:
        text = recipe_text(args.recipe, output, table, model, args.reward)
    else:
        assert table is not None
        text = config_text(table, output, model or CHAT_MODEL, args.reward)
    write_config(args.output, text, args.overwrite)
    if table is None:
        print(f"{args.output} is written, with the recipe's own data; --data replaces it.")
    else:
        columns = ", ".join(f"{key}: {name}" for key, name in table.columns.items() if name is not None)
        print(f"{args.output} is written, with the columns {columns}{' (guessed)' if table.guessed else ''}.")
        if table.unread:
            print(f"Columns that it does not use: {', '.join(table.unread)}.")
        if table.has_rewards:
            print("It does not use the rewards of the log; docs/rated_logs.md shows how to learn from them.")
    print(f"Next:\n  rl4dialog doctor --config_path {args.output}\n  rl4dialog train --config_path {args.output}")


def _asked(question: str, flag: str) -> str:
    if not sys.stdin.isatty():
        raise ConfigError(f"rl4dialog init needs {flag}, because there is no terminal to ask on")
    return input(f"{question}: ").strip()


@command(
    "doctor",
    "check the model, data, reward and machine of a config before training, or the published model of a run",
    "docs/troubleshooting.md",
    "rl4dialog doctor --config_path config.yml",
    "rl4dialog doctor --config_path config.yml --quick",
    "rl4dialog doctor --run runs/my_project/my_run",
    options=[
        *OPTIONAL_CONFIG,
        OPTIONAL_RUN,
        option("--base_path_to_store_results", "parent folder of project folders", default="."),
        flag("--quick", "leave out all checks that need the language model"),
        flag("--all", "show passed and skipped checks in full, too"),
    ],
)
def doctor(args: Namespace) -> int:
    from rl4dialog.training.doctor.examination import examine, has_failed, print_findings
    from rl4dialog.training.doctor.subject import Subject

    if (args.config_path is None) == (args.run_path is None):
        raise ConfigError("pass --config_path to check a config, or --run to check the model of a run")
    if args.run_path is not None:
        from rl4dialog.inference.saved_adapters import merged_adapters

        if args.overrides or args.variant:
            raise ConfigError("--set and --variant change a config, so they have no effect with --run; remove them")
        found = {"merged_adapters": merged_adapters(Path(args.run_path).expanduser())}
        print_findings(found, show_all=True)
        return int(has_failed(list(found.values())))
    findings = examine(Subject(read_config(args), Path(args.base_path_to_store_results), args.quick), args.debug)
    print_findings(findings, show_all=args.all)
    if has_failed(list(findings.values())):
        return 1
    of_training = [each for each in args.argv[1:] if each not in ("--quick", "--all")]  # with the same overrides
    print(f"Next: rl4dialog train {shlex.join(of_training)}")
    return 0


@command(
    "prepare",
    "cache what a config needs: model, warm start, intent classifier, encoded log; or a public dataset or model",
    "docs/configs.md",
    "rl4dialog prepare --config_path config.yml",
    "rl4dialog prepare builtin/smollm2-135m-instruct",
    "rl4dialog prepare daily_dialog --path ~/data/dailydialog",
    options=[
        option(
            "name",
            "dataset (chitchat, daily_dialog, dstc9) or model (builtin/smollm2-135m-instruct) to cache",
            nargs="?",
        ),
        option("--path", "folder with the files of the dataset (default: download them)"),
        *OPTIONAL_CONFIG,
    ],
)
def prepare(args: Namespace) -> None:
    if (args.name is None) == (args.config_path is None):
        raise ConfigError("rl4dialog prepare needs either a name, or --config_path with the config of a run")
    if args.name is not None and not args.name.startswith(BUILTIN):
        from rl4dialog.data.public_datasets import prepare_dataset

        print(prepare_dataset(args.name, args.path))
        return
    if args.path is not None:
        raise ConfigError("--path is the folder of a dataset, and has no meaning here")
    if args.name is not None:
        from rl4dialog.core.pretrained import prepare_model

        print(prepare_model(args.name))
        return

    from rl4dialog.core.config import TextConfig
    from rl4dialog.training.assembly import fill_cache

    config = read_config(args)
    if isinstance(config, TextConfig):
        fill_cache(config)
    else:
        print("nothing to prepare: this run has no language model")
