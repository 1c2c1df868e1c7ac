"""Commands about rewards: ``classifier`` and ``validate-reward``."""

from __future__ import annotations

import argparse
from pathlib import Path

from rl4dialog.commands.options import add_config_arguments, check_at_least, read_config


class Classifier:
    """``rl4dialog classifier``."""

    HELP = "train an intent classifier from a labelled dialogue pool"
    PAGE = "docs/rewards.md"
    EXAMPLES = ("rl4dialog classifier --datapool small_talk --output_dir classifier",)

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--datapool", default="small_talk", help="id of the datapool (default: small_talk)")
        parser.add_argument("--datapool_args", default="{}", help="arguments of the datapool, as YAML or JSON")
        parser.add_argument(
            "--samples",
            type=_range,
            default=slice(None),
            metavar="FIRST:END",
            help="train on these samples of the train split only, such as :10000 or 10000: (default: all)",
        )
        parser.add_argument("--model_name", default="builtin/tiny-bert", help="built-in model, local folder or hub id")
        parser.add_argument(
            "--without_reply",
            action="store_true",
            help="predict the act of the reply from the utterances before it, as many as the datapool's context_size, "
            "for expected_by of the reward intent_accuracy",
        )
        parser.add_argument("--output_dir", required=True, help="output folder of the classifier")
        parser.add_argument("--n_epochs", type=float, help="number of training epochs")
        parser.add_argument("--learning_rate", type=float, help="learning rate of the optimizer")
        parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="default: fp32")
        parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        from rl4dialog.catalog import DataPoolRegistry
        from rl4dialog.core.yaml_loader import parse_yaml
        from rl4dialog.training.intent_classifier import ACTS, train_intent_classifier

        pool_args = parse_yaml(args.datapool_args, "--datapool_args")
        train, val = (
            [sample for sample, _ in DataPoolRegistry.get(args.datapool, {**pool_args, "split": split})]
            for split in ("train", "val")
        )
        result = train_intent_classifier(
            train[args.samples],
            val,
            args.output_dir,
            seed=args.seed,
            model_name=args.model_name,
            reads_reply=not args.without_reply,
            n_epochs=args.n_epochs,
            learning_rate=args.learning_rate,
            precision=args.precision,
        )
        print(f"accuracy on val: {result['accuracy']:.4f}; rows: true, columns: predicted ({', '.join(ACTS)}):")
        for row in result["confusion"]:
            print("  " + " ".join(f"{count:6d}" for count in row))
        print(f"saved to {args.output_dir}")
        return 0


class ValidateReward:
    """``rl4dialog validate-reward``."""

    HELP = "correlate the reward and the metrics of a config with human ratings"
    PAGE = "docs/human_ratings.md"
    EXAMPLES = ("rl4dialog validate-reward --config_path config.yml --ratings ratings.jsonl",)

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_config_arguments(parser)
        parser.add_argument("--ratings", required=True, help="ratings file, or dataset: dstc9, chitchat or small_talk")
        parser.add_argument(
            "--unit", choices=("dialogue", "reply"), help="ratings to read (default: those in the file)"
        )
        parser.add_argument("--rating", nargs="+", default=[], help="names of ratings to compare with (default: all)")
        parser.add_argument(
            "--max_items",
            type=int,
            help="rated dialogues or replies to draw at random, by the seed of the config (default: all)",
        )
        parser.add_argument(
            "--n_resamples", type=int, default=500, help="resamples of the confidence intervals (default: 500)"
        )
        parser.add_argument("--output_path", help="new output folder (default: in validations/ of the current folder)")

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        check_at_least(args, max_items=3, n_resamples=1)

        from rl4dialog.core.config import text_config
        from rl4dialog.data.ratings import load_ratings
        from rl4dialog.inference.offline_evaluation import check_is_new, evaluation_folder
        from rl4dialog.inference.reward_validation.output import print_validation, write_validation
        from rl4dialog.inference.reward_validation.validation import drawn, validate

        config = text_config(read_config(args))
        name = Path(args.ratings).stem
        folder = Path(args.output_path or evaluation_folder(Path.cwd() / "validations", name)).expanduser().absolute()
        check_is_new(folder)
        unit, rated = load_ratings(args.ratings, args.unit)
        result = validate(config, drawn(rated, args.max_items, config.seed), args.rating, args.n_resamples)
        write_validation(result, folder, {"config": args.config_path, "ratings": args.ratings, "unit": unit})
        print_validation(result)
        print(f"written to {folder}")
        return 0


def _range(text: str) -> slice:
    first, colon, end = text.partition(":")
    if not colon or not all(part.isdigit() or not part for part in (first, end)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range such as :10000, 10000: or 100:200")
    return slice(int(first) if first else None, int(end) if end else None)
