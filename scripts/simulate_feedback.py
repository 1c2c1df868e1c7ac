"""Feedback of a simulated person with a known utility, to measure what can be learned from feedback.

    python scripts/simulate_feedback.py --output feedback.jsonl --n 1600
    python scripts/simulate_feedback.py --queue queue.jsonl --output feedback.jsonl

The first command judges replies in generated dialogues; the second one chooses between the pairs of a queue of
``rl4dialog select``. The person is described in :mod:`rl4dialog.data.small_talk.pool`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import script

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.feedback import append_feedback, read_pairs
from rl4dialog.features.feedback.simulated_person import N_DIALOGUES, SimulatedPerson, small_talk_feedback, utility


def main() -> None:
    parser = argparse.ArgumentParser(description="Let a simulated person judge replies.")
    parser.add_argument("--output", type=Path, required=True, help="feedback file; judgements are appended")
    parser.add_argument("--queue", type=Path, help="pairs to choose between, instead of generated dialogues")
    parser.add_argument("--n", type=int, default=N_DIALOGUES, help=f"number of dialogues (default: {N_DIALOGUES})")
    parser.add_argument("--temperature", type=float, default=0.5, help="noise of choices (default: 0.5)")
    parser.add_argument("--error_rate", type=float, default=0.05, help="share of wrong judgements (default: 0.05)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    args = parser.parse_args()
    if args.temperature < 0 or not 0 <= args.error_rate <= 1:
        raise ConfigError("--temperature must be at least 0, and --error_rate from 0 to 1")
    person = SimulatedPerson(args.temperature, args.error_rate, args.seed)
    if args.queue is None:
        given = small_talk_feedback(args.n, person)
    else:
        pairs = [(pair, [reply.text for reply in pair.replies]) for pair in read_pairs(args.queue)]
        given = [pair.chosen(0 if person.prefers_first(*texts) else 1) for pair, texts in pairs]
    for each in given:
        append_feedback(args.output, each)
    choices = [each for each in given if each.chosen is not None]
    right = [
        utility(each.replies[each.chosen].text) >= utility(each.replies[1 - each.chosen].text)
        for each in choices
        if each.chosen is not None
    ]
    share = f"; {sum(right) / len(right):.3f} of {len(right)} choices agree with the utility" if right else ""
    print(f"{len(given)} judgements appended to {args.output}{share}")


if __name__ == "__main__":
    script.run(main)
