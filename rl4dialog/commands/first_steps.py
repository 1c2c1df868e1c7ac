"""Commands before a training: ``demo``, ``init``, ``prepare`` and ``classifier``."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from typing import Any

from rl4dialog.commands.options import MADE, OPTIONAL_CONFIG, SEED, command, flag, option, read_config
from rl4dialog.commands.train import train
from rl4dialog.core.errors import ConfigError, RL4DialogError
from rl4dialog.core.features import all_ids
from rl4dialog.core.pretrained import BUILTIN
from rl4dialog.core.types import Sample

_CONFIGS = {
    "table_booking": "task_configs/table_booking/smollm2_ppo.yml",
    "tiny_booking": "task_configs/table_booking/llama_ppo.yml",
    "openers": "task_configs/openers/smollm2_ppo.yml",
    "small_talk": "task_configs/small_talk/gpt2_ppo.yml",
    "guess_what": "task_configs/guess_what/llama_ppo.yml",
}
_CHAT_MODEL = "builtin/smollm2-135m-instruct"


@command(
    option(
        "name",
        "a pretrained chat model learns to ask for what is missing and then book (table_booking), or to ask back "
        "(openers). Tiny models, without a network: tiny_booking, small_talk, guess_what (a guessing game) (default: "
        "table_booking, or tiny_booking if the chat model cannot be downloaded)",
        nargs="?",
        choices=_CONFIGS,
    ),
    flag("--overwrite", "train again from the beginning (default: continue, or print the result)"),
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
    return train.run(training) or 0


def _possible() -> str:
    """Choose the demonstration of the chat model, if it can be trained here."""
    from rl4dialog.core.pretrained import prepare_model

    try:
        if importlib.util.find_spec("peft") is None:
            raise ConfigError("the chat model is trained with LoRA: pip install 'rl4dialog[lora]'")
        print(prepare_model(_CHAT_MODEL))
    except RL4DialogError as error:
        print(f"note: {error}. A tiny model is trained instead.", file=sys.stderr)
        return "tiny_booking"
    return "table_booking"


@command(
    option("--data", "table with prompts or dialogues: a .csv, .tsv, .jsonl, .json or .parquet file", type=Path),
    option("--recipe", "model and GPU, such as qwen3-1.7b-24gb, -8gb or -80gb", metavar="NAME"),
    option("--prompt", "column with the prompts (default: guessed)", metavar="COLUMN"),
    option("--reply", "column with reference replies (default: guessed)", metavar="COLUMN"),
    option("--agent", "speaker of dialogues whose role the model takes (default: guessed)", metavar="NAME"),
    option("--model", "folder, hub id or built-in model (default: the recipe's, or builtin/smollm2-135m-instruct)"),
    option("--learn", "partner: what people say is learned, as a simulated user", choices=("agent", "partner")),
    option("--goal", "--learn partner: column with what they want (default: guessed)", metavar="COLUMN"),
    option("--people", "--learn partner: column that names them (default: guessed)", metavar="COLUMN"),
    option("--reward", "id of a reward (default: meteor, or a length without replies)", metavar="ID"),
    option("--output", "the config", type=Path, default=Path("config.yml")),
    flag("--overwrite", "replace an existing file"),
)
def init(args: Namespace) -> None:
    from rl4dialog.data.guessed_columns import read_table
    from rl4dialog.training.new_config import (
        CHAT_MODEL,
        config_text,
        findings,
        partner_findings,
        partner_text,
        recipe_text,
        write_config,
    )

    data, model, output = args.data, args.model, str(args.output)
    if data is None and args.recipe is None:
        data = Path(_asked("Table with prompts (a .csv, .tsv, .jsonl, .json or .parquet file)", "--data"))
        model = model or _asked(f"Model (Enter for {CHAT_MODEL})", "--model") or None
    if data is None and (args.prompt or args.reply or args.agent):
        raise ConfigError("--prompt, --reply and --agent describe --data, which is missing")
    learns_partner = args.learn == "partner"
    if learns_partner and (args.recipe or args.reward):
        raise ConfigError("--learn partner imitates people, without a recipe or a reward")
    if not learns_partner and (args.goal or args.people):
        raise ConfigError("--goal and --people have a meaning only with --learn partner")
    ask = _answered if sys.stdin.isatty() else None
    table = None if data is None else read_table(data.expanduser(), args.prompt, args.reply, args.agent, ask)
    if args.recipe is not None:
        text = recipe_text(args.recipe, output, table, model, args.reward)
    elif learns_partner:
        assert table is not None
        text = partner_text(table, output, model or CHAT_MODEL, args.goal, args.people)
    else:
        assert table is not None
        text = config_text(table, output, model or CHAT_MODEL, args.reward)
    write_config(args.output, text, args.overwrite)
    if table is None:
        print(f"{args.output} is written, with the recipe's own data; --data replaces it.")
    else:
        named = {key: ", ".join(name) if isinstance(name, list) else name for key, name in table.columns.items()}
        columns = ", ".join(f"{key}: {name}" for key, name in named.items() if name is not None)
        print(f"{args.output} is written, with the columns {columns}{' (guessed)' if table.guessed else ''}.")
        found = partner_findings(table, text) if learns_partner else findings(table, text, args.reward)
        print("\n".join(found).rstrip())
        if not learns_partner and {"dialogue", "conversation"} & table.columns.keys():
            other = f"rl4dialog init --data {shlex.quote(str(data))} --learn partner --output partner.yml"
            print(f"What people say can be learned, too, as a simulated user to train with:\n  {other}")
    config, run = f"--config_path {shlex.quote(output)}", "partner" if learns_partner else "first"
    proposed = [f"  rl4dialog {each.name} {config}" for each in MADE.values() if each.after == "init"]
    print("\n".join(["Next:", *proposed, f"  rl4dialog train {config} --experiment_name {run}"]))


def _asked(question: str, flag: str) -> str:
    if not sys.stdin.isatty():
        raise ConfigError(f"rl4dialog init needs {flag}, because there is no terminal to ask on")
    return input(f"{question}: ").strip()


def _answered(question: str, likely: str | None) -> str | None:
    answer = input(f"{question} (Enter for {likely or 'none'}): ").strip()
    return answer or likely


@command(
    option(
        "name",
        f"dataset ({', '.join(sorted(all_ids()['public dataset']))}) or model (builtin/smollm2-135m-instruct) to cache",
        nargs="?",
    ),
    option("--path", "folder with the files of the dataset (default: download them)"),
    *OPTIONAL_CONFIG,
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


def _range(text: str) -> slice:
    first, colon, end = text.partition(":")
    if not colon or not all(part.isdigit() or not part for part in (first, end)):
        raise ArgumentTypeError(f"{text!r} is not a range such as :10000, 10000: or 100:200")
    return slice(int(first) if first else None, int(end) if end else None)


@command(
    option("--datapool", "id of the datapool", default="small_talk"),
    option("--datapool_args", "arguments of the datapool, as YAML or JSON", default="{}"),
    option(
        "--samples",
        "train on these samples only, such as :10000 or 10000: (default: all)",
        type=_range,
        default=slice(None),
        metavar="FIRST:END",
    ),
    option("--model_name", "built-in model, local folder or hub id", default="builtin/tiny-bert"),
    flag("--without_reply", "predict the act from what was said before, for expected_by of intent_accuracy"),
    option("--output_dir", "output folder of the classifier, unless --evaluate measures one"),
    option("--evaluate", "measure this classifier, a folder or hub id, on the val split; nothing is trained"),
    option("--n_epochs", "number of training epochs", type=float),
    option("--learning_rate", "learning rate of the optimizer", type=float),
    option("--precision", "number format of the weights", choices=["fp32", "bf16"], default="fp32"),
    SEED,
)
def classifier(args: Namespace) -> None:
    from rl4dialog.catalog import DataPoolRegistry
    from rl4dialog.commands.parser import make_parser
    from rl4dialog.core.yaml_loader import parse_yaml
    from rl4dialog.scores.intent import IntentClassifier
    from rl4dialog.training.intent_classifier import ACTS, measure_classifier, train_intent_classifier

    if args.output_dir is None and args.evaluate is None:
        raise ConfigError("pass --output_dir to train a classifier, or --evaluate to measure an existing one")
    for name, default in vars(make_parser().parse_args(["classifier"])).items():
        if args.evaluate is not None and not name.startswith(("datapool", "evaluate")) and vars(args)[name] != default:
            raise ConfigError(f"--{name} is for training, but --evaluate trains nothing; remove one of them")
    pool_args = parse_yaml(args.datapool_args, "--datapool_args")

    def samples(split: str) -> list[Sample]:
        return [sample for sample, _ in DataPoolRegistry.get(args.datapool, {**pool_args, "split": split})]

    if args.evaluate is not None:
        result = measure_classifier(IntentClassifier.from_pretrained(args.evaluate), samples("val"))
    else:
        names = ("seed", "model_name", "n_epochs", "learning_rate", "precision")
        settings: dict[str, Any] = {name: getattr(args, name) for name in names}
        data = samples("train")[args.samples], samples("val")
        result = train_intent_classifier(*data, args.output_dir, reads_reply=not args.without_reply, **settings)
    print(f"accuracy on val: {result['accuracy']:.4f}; rows: true, columns: predicted ({', '.join(ACTS)}):")
    for row in result["confusion"]:
        print("  " + " ".join(f"{count:6d}" for count in row))
    if args.evaluate is None:
        print(f"saved to {args.output_dir}")
