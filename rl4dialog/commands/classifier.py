"""``rl4dialog classifier``: train an intent classifier."""

from __future__ import annotations

import argparse

HELP = "train an intent classifier from a labelled dialogue pool"
PAGE = "docs/rewards.md"
EXAMPLES = ("rl4dialog classifier --datapool small_talk --output_dir classifier",)


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
        help="predict the act of the reply from the utterances before it, as many as the datapool's context_size, for "
        "expected_by of the reward intent_accuracy",
    )
    parser.add_argument("--output_dir", required=True, help="output folder of the classifier")
    parser.add_argument("--n_epochs", type=float, default=None, help="number of training epochs")
    parser.add_argument("--learning_rate", type=float, default=None, help="learning rate of the optimizer")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="default: fp32")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")


def _range(text: str) -> slice:
    first, colon, end = text.partition(":")
    if not colon or not all(part.isdigit() or not part for part in (first, end)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range such as :10000, 10000: or 100:200")
    return slice(int(first) if first else None, int(end) if end else None)


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
