"""Make the file of the layout `tweets` from tweets about Wordle, as ILQL's build_human_datastructure.py does.

python docs/examples/wordle_tweets.py --tweets tweets.csv --words words.txt --output games.json
"""

import argparse
import csv
import json
import re
from collections import defaultdict
from pathlib import Path

from rl4dialog.features.games.wordle.rules import MAX_TURNS, N_LETTERS, PATTERN_TEXTS, load_words, pattern_matrix

SQUARES = {"🟩": "g", "🟧": "g", "🟨": "y", "🟦": "y", "⬛": "b", "⬜": "b"}
ROW = re.compile(f"[{''.join(SQUARES)}]{{{N_LETTERS}}}")


def colours(row):
    """Colours as in the file, such as <b><b><y><g><b>."""
    return "".join(f"<{SQUARES.get(each, each)}>" for each in row)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--tweets", required=True, help="CSV file with the columns wordle_id and tweet_text")
parser.add_argument("--days", help="CSV file with the columns wordle_id and word, for true_words: true")
parser.add_argument("--words", help="file with one word per line (default: the packaged 240 words)")
parser.add_argument("--output", required=True)
args = parser.parse_args()

days = {}
if args.days is not None:
    with open(args.days, newline="", encoding="utf-8") as file:
        days = {row["wordle_id"]: row["word"] for row in csv.DictReader(file)}
games, n_without = [], 0
with open(args.tweets, newline="", encoding="utf-8") as file:
    for tweet in csv.DictReader(file):
        rows = [line.strip().replace("\ufe0f", "") for line in tweet["tweet_text"].splitlines()]
        first = next((i for i, row in enumerate(rows) if ROW.fullmatch(row)), len(rows))
        last = next((i for i in range(first, len(rows)) if not ROW.fullmatch(rows[i])), len(rows))
        if last == first:
            n_without += 1
            continue
        shown = [colours(row) for row in rows[first : min(last, first + MAX_TURNS)]]
        games.append([days.get(tweet["wordle_id"], ""), shown])
words = load_words(None if args.words else 240, args.words)
transitions = {word: defaultdict(list) for word in words}
for guess, patterns in zip(words, pattern_matrix(words), strict=True):
    for word, pattern in zip(words, patterns, strict=True):
        transitions[word][colours(PATTERN_TEXTS[pattern])].append(guess)
Path(args.output).write_text(json.dumps({"games": games, "transitions": transitions}), encoding="utf-8")
print(f"{len(games)} games written to {args.output}; {n_without} tweets show none")
