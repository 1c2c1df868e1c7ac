"""Write excerpts of rated conversations to files for a reward model, a held-out reward model, and prompts.

    python scripts/rating_excerpts.py --ratings chitchat --default_rating 5 --output_dir runs/human_ratings/ratings

Raters prefer long conversations. With excerpts of the same length, a reward model can only learn from what is said. No
two files share a conversation.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import script

from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.files import replaced
from rl4dialog.core.types import AGENT, PARTNER, RatedDialogue
from rl4dialog.data.ratings import load_ratings
from rl4dialog.data.splits import shuffled

PROMPT_SHARE = 0.1
MEAN = "mean"  # name of the mean of all ratings of a conversation, which the files have in addition


def write_excerpts(
    rated: Sequence[RatedDialogue], folder: Path, n_utterances: int, default_rating: float | None = None, seed: int = 0
) -> dict[str, int]:
    """Write ratings files of excerpts, all of the same length; returns their sizes.

    ``reward.jsonl`` and ``held_out.jsonl`` have half of the ratings each. Dialogues whose ratings are all
    `default_rating` count as not rated; they, or else a share of `PROMPT_SHARE`, are prompts in ``val`` and ``test``.
    """
    long = [each for each in rated if len(each.dialogue.turns) >= n_utterances]
    long = [long[i] for i in shuffled(len(long), f"excerpts/{seed}")]
    spare = [each for each in long if set(each.ratings.values()) == {default_rating}]
    if spare:
        long = [each for each in long if set(each.ratings.values()) != {default_rating}]
    else:
        n_spare = round(len(long) * PROMPT_SHARE)
        long, spare = long[n_spare:], long[:n_spare]
    parts = {"reward": long[::2], "held_out": long[1::2], "val": spare[::2], "test": spare[1::2]}
    if empty := [name for name, part in parts.items() if not part]:
        n_long = f"{len(long) + len(spare)} of {len(rated)} rated dialogues have at least {n_utterances} utterances"
        raise DataError(f"{n_long}, too few for all four files ({', '.join(empty)} would be empty)")
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {}
    for name, part in parts.items():
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in _rows(part, n_utterances)]
        sizes[name] = len(lines)
        with replaced(folder / f"{name}.jsonl") as temporary:
            temporary.write_text("".join(lines), encoding="utf-8")
    return sizes


def _rows(rated: Iterable[RatedDialogue], n_utterances: int) -> Iterator[dict[str, Any]]:
    """Excerpts that do not overlap, in the format of ratings files; all of a conversation have its id."""
    roles = {AGENT: "assistant", PARTNER: "user"}
    for each in rated:
        ratings = {**each.ratings, MEAN: math.fsum(each.ratings.values()) / len(each.ratings)}
        messages = [{"role": roles[turn.speaker], "content": turn.text} for turn in each.dialogue.turns]
        # An even step, so that the same speaker begins every excerpt.
        for start in range(0, len(messages) - n_utterances + 1, n_utterances + n_utterances % 2):
            yield {"id": each.conversation, "ratings": ratings, "messages": messages[start : start + n_utterances]}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--ratings", required=True, help="prepared dataset (chitchat, dstc9) or ratings file")
    parser.add_argument("--n_utterances", type=int, default=9, help="utterances of an excerpt (default: 9)")
    parser.add_argument(
        "--default_rating", type=float, help="rating of dialogues that were not rated, which are only used for prompts"
    )
    parser.add_argument("--output_dir", type=Path, required=True, help="output folder")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the split (default: 0)")
    args = parser.parse_args(argv)
    if args.n_utterances < 2:
        raise ConfigError(f"--n_utterances must be at least 2, not {args.n_utterances}")
    _, rated = load_ratings(args.ratings, "dialogue")
    counts = write_excerpts(rated, args.output_dir, args.n_utterances, args.default_rating, args.seed)
    for name, count in counts.items():
        print(f"{args.output_dir}/{name}.jsonl: {count} excerpts")


if __name__ == "__main__":
    script.run(main)
