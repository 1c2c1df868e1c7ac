"""Commands about rewards: ``classifier`` and ``validate-reward``."""

from __future__ import annotations

import argparse
from argparse import Namespace
from pathlib import Path

from rl4dialog.commands.options import CONFIG, SEED, check_at_least, command, flag, option, read_config


def _range(text: str) -> slice:
    first, colon, end = text.partition(":")
    if not colon or not all(part.isdigit() or not part for part in (first, end)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range such as :10000, 10000: or 100:200")
    return slice(int(first) if first else None, int(end) if end else None)


@command(
    "classifier",
    "train an intent classifier from a labelled dialogue pool",
    "docs/rewards.md",
    "rl4dialog classifier --datapool small_talk --output_dir classifier",
    options=[
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
        option("--output_dir", "output folder of the classifier", required=True),
        option("--n_epochs", "number of training epochs", type=float),
        option("--learning_rate", "learning rate of the optimizer", type=float),
        option("--precision", "number format of the weights", choices=["fp32", "bf16"], default="fp32"),
        SEED,
    ],
)
def classifier(args: Namespace) -> None:
    from rl4dialog.catalog import DataPoolRegistry
    from rl4dialog.core.yaml_loader import parse_yaml
    from rl4dialog.training.intent_classifier import ACTS, train_intent_classifier

    pool_args = parse_yaml(args.datapool_args, "--datapool_args")
    train, val = (
        [sample for sample, _ in DataPoolRegistry.get(args.datapool, {**pool_args, "split": split})]
        for split in ("train", "val")
    )
    settings = {name: getattr(args, name) for name in ("seed", "model_name", "n_epochs", "learning_rate", "precision")}
    result = train_intent_classifier(
        train[args.samples], val, args.output_dir, reads_reply=not args.without_reply, **settings
    )
    print(f"accuracy on val: {result['accuracy']:.4f}; rows: true, columns: predicted ({', '.join(ACTS)}):")
    for row in result["confusion"]:
        print("  " + " ".join(f"{count:6d}" for count in row))
    print(f"saved to {args.output_dir}")


@command(
    "validate-reward",
    "correlate the reward and the metrics of a config with human ratings",
    "docs/human_ratings.md",
    "rl4dialog validate-reward --config_path config.yml --ratings ratings.jsonl",
    options=[
        *CONFIG,
        option("--ratings", "ratings file, or dataset: dstc9, chitchat or small_talk", required=True),
        option("--unit", "ratings to read (default: those in the file)", choices=("dialogue", "reply")),
        option("--rating", "names of ratings to compare with (default: all)", nargs="+", default=[]),
        option("--max_items", "rated dialogues or replies to draw at random (default: all)", type=int),
        option("--n_resamples", "resamples of the confidence intervals", default=500),
        option("--output_path", "new output folder (default: in validations/ of the current folder)"),
    ],
)
def validate_reward(args: Namespace) -> None:
    check_at_least(args, max_items=3, n_resamples=1)

    from rl4dialog.core.config import text_config
    from rl4dialog.data.ratings import load_ratings
    from rl4dialog.inference.offline_evaluation import check_is_new, evaluation_folder
    from rl4dialog.inference.reward_validation import drawn, print_validation, validate, write_validation

    config, name = text_config(read_config(args)), Path(args.ratings).stem
    folder = Path(args.output_path or evaluation_folder(Path.cwd() / "validations", name)).expanduser().absolute()
    check_is_new(folder)
    unit, rated = load_ratings(args.ratings, args.unit)
    result = validate(config, drawn(rated, args.max_items, config.seed), args.rating, args.n_resamples)
    write_validation(result, folder, {"config": args.config_path, "ratings": args.ratings, "unit": unit})
    print_validation(result)
    print(f"written to {folder}")
