"""Scores DailyDialog's test split with replies that read no prompt, with and without the marker of RL4LMs' references.

    python scripts/trivial_replies.py --path ~/data/dailydialog
    python scripts/trivial_replies.py --path ~/data/dailydialog --predictions runs/*/epoch_0_test_split_predictions.json

RL4LMs' datapool, which OpenRL uses too, ends each reference with ``<EOU>``. METEOR splits it into four tokens that
every reply with the marker has in common with every reference. ``--predictions`` adds the replies of models.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from rl4dialog.catalog import MetricRegistry
from rl4dialog.core.errors import DataError
from rl4dialog.core.protocols import BaseMetric
from rl4dialog.core.types import Sample
from rl4dialog.data.dialogue_corpora import DailyDialog
from rl4dialog.data.dialogue_format import EOU_TOKEN
from rl4dialog.rollouts.talk import talk_of_one_reply
from rl4dialog.runs.reading import read_predictions
from rl4dialog.scores.meteor import MeteorMetric
from rl4dialog.training.evaluation import compute_metrics, trivial_scores

LITERAL = "METEOR of lists"
KEYS = {
    "lexical/meteor": "METEOR",
    "lexical/sacrebleu": "SacreBLEU",
    "lexical/rouge_rouge1": "ROUGE-1",
    "lexical/rouge_rougeLsum": "ROUGE-Lsum",
    LITERAL: LITERAL,
}
"""What RL4LMs and OpenRL publish of DailyDialog, without the classifier of dialogue acts."""


class LiteralMeteor(MeteorMetric):
    """METEOR as in RL4LMs' code, which compares with Python's string form of the list of references."""

    def __init__(self) -> None:
        super().__init__()
        self.key = LITERAL

    def sentence_score(self, text: str, references: list[str]) -> float:
        return super().sentence_score(text, [str(references)])


def build_metrics(marker: str) -> list[BaseMetric]:
    args = {"meteor": {}, "sacre_bleu": {"tokenize": "intl", "force": True}, "rouge": {}}
    metrics = [*(MetricRegistry.get(id, each) for id, each in args.items()), LiteralMeteor()]
    for metric in metrics:
        metric.append_to_texts = marker
    return metrics


def scores_of(replies: Sequence[str], samples: Sequence[Sample], metrics: list[BaseMetric]) -> dict[str, float]:
    talks = [talk_of_one_reply(sample, reply) for sample, reply in zip(samples, replies, strict=True)]
    return {key: corpus for key, (_, corpus) in compute_metrics(metrics, talks, "test", None).items()}


def read_replies(file: Path) -> tuple[list[str], list[Sample]]:
    """Replies and references of an evaluation that a run recorded."""
    found = read_predictions(file)
    if found is None:
        raise DataError(f"{file} is truncated")
    rows = zip(found.sample_ids, found.prompts, found.references, strict=True)
    return found.replies, [Sample(*row) for row in rows]


def table(found: Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]]) -> str:
    titles = [f"{name}{of}" for of in (f", with {EOU_TOKEN}", "") for name in KEYS.values()]
    lines = [f"| replies | {' | '.join(titles)} |", f"|---|{'---|' * len(titles)}"]
    for name, both in found.items():
        lines.append(f"| {name} | {' | '.join(f'{scores[key]:.3f}' for scores in both for key in KEYS)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", type=Path, help="folder of DailyDialog (default: that of `rl4dialog prepare`)")
    parser.add_argument("--context_size", type=int, default=5, help="utterances before each reply (default: 5)")
    parser.add_argument("--max_samples", type=int, help="only the first samples of the test split")
    parser.add_argument("--predictions", type=Path, nargs="*", default=[], help="files of a run's evaluations")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    pools = [DailyDialog.prepare(split, args.context_size, args.path) for split in ("test", "train")]
    samples, known = ([sample for sample, _ in pool] for pool in pools)
    samples = samples[: args.max_samples]
    marked, plain = build_metrics(EOU_TOKEN), build_metrics("")
    found = {}
    trivial = [trivial_scores(metrics, samples, known, args.seed) for metrics in (marked, plain)]
    for name in trivial[0][0]:
        found[name] = trivial[0][0][name], trivial[1][0][name]
    references = [sample.references[0] for sample in samples]
    found["reference"] = scores_of(references, samples, marked), scores_of(references, samples, plain)
    for file in args.predictions:
        replies, own = read_replies(file)
        found[str(file)] = scores_of(replies, own, marked), scores_of(replies, own, plain)
    constants = {f"with {EOU_TOKEN}": trivial[0][1], "without": trivial[1][1]}
    print(table(found), end="\n\n")
    for which, texts in constants.items():
        print(f"constant replies {which}: " + ", ".join(f"{name} {texts[key]!r}" for key, name in KEYS.items()))


if __name__ == "__main__":
    main()
