"""Writes a rated log whose quality is known: generated dialogues, rated by how often the agent asks, with noise."""

import json
import random
import sys
from pathlib import Path

from rl4dialog.data.small_talk.pool import generate_dialogues

n_dialogues = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
random_numbers = random.Random(0)
lines = []
for dialogue in generate_dialogues("train", n_dialogues):
    texts = [turn.text for turn in dialogue.turns]
    texts = texts[: len(texts) // 2 * 2]  # the agent has the last word
    replies = texts[1::2]
    asked = sum(text.endswith("?") for text in replies) / len(replies)
    rating = min(5.0, max(1.0, round(1 + 4 * asked + random_numbers.gauss(0, 0.7), 1)))
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    lines.append(({"id": dialogue.id, "messages": messages}, rating))

random_numbers.shuffle(lines)
Path("log").mkdir(exist_ok=True)
n_val, n_test = len(lines) * 3 // 40, len(lines) // 10
splits = {"val": lines[:n_val], "test": lines[n_val : n_val + n_test], "train": lines[n_val + n_test :]}
for split, part in splits.items():
    with Path(f"log/{split}.jsonl").open("w") as log, Path(f"ratings_{split}.jsonl").open("w") as ratings:
        for line, rating in part:
            log.write(json.dumps({**line, "reward": rating}) + "\n")
            ratings.write(json.dumps({**line, "ratings": {"overall": rating}}) + "\n")
