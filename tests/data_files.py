"""Small files of every datapool that reads files, in the formats that they are released in."""

import gzip
import json

from feature_rows import rows_of_features
from runs import write_dialogues
from stand_in_data import write_original

ROWS = [
    {"prompt": "hello", "reference": "hi", "weight": 2, "n": {"m": ["a"]}},
    {"prompt": "tea , or not ?", "reference": ["yes .", "no ."], "weight": 0.5, "n": {"m": []}},
]
CHATS = [
    {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]},
    {
        "chosen": [{"role": "user", "content": "tea ?"}, {"role": "assistant", "content": "yes ."}],
        "rejected": [{"role": "user", "content": "tea ?"}, {"role": "assistant", "content": "no ."}],
    },
]
LOGS = [
    {
        "version": 1,
        "id": "a",
        "tokenizer": "9f2c",
        "agent": "assistant",
        "terminated": True,
        "messages": [
            {"role": "system", "content": "You are polite."},
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "hi", "token_ids": [3, 0], "log_probs": [-1.5, -0.5]},
            {"role": "user", "content": "bye"},
            {"role": "assistant", "content": "bye", "token_ids": [4], "token_rewards": [0.5], "truncated": True},
        ],
        "n_given": 2,
        "rewards": [0.5, -1],
        "reward": 1,
        "outcome": {"success": 1.0},
        "ended_by": "length",
        "meta_data": {"word": "crane"},
    },
    {
        "agent": ["buyer", "seller"],
        "messages": [{"role": "buyer", "content": "80?"}, {"role": "seller", "content": "no", "reward": 1.0}],
    },
]
SEQUENCES = [{"sequence": [["Wordle:\n", 0], ["c r a n e\n", 1.0]], "reward": [-1.0], "done": True}]


def _write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def _lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def _each_split(suffix, content):
    return {f"{split}{suffix}": content for split in ("train", "val", "test")}


def _original(name):
    return lambda folder: write_original(name, folder)


WEIGHTED = {"columns": {"weight": "weight"}}
# Id and arguments of a datapool, and what writes its files.
POOLS = {
    "daily_dialog": ("daily_dialog", {"context_size": 2}, write_dialogues),
    "jsonl": ("jsonl", WEIGHTED, lambda f: _write(f, _each_split(".jsonl", _lines(ROWS)))),
    "json": ("jsonl", WEIGHTED, lambda f: _write(f, _each_split(".json", json.dumps(ROWS)))),
    "gzip": ("jsonl", WEIGHTED, lambda f: _write(f, _each_split(".jsonl.gz", gzip.compress(_lines(ROWS).encode())))),
    "csv": (
        "csv",
        {"columns": {"weight": "w"}},
        lambda f: _write(f, _each_split(".csv", 'prompt,reference,w\n"tea, or\nnot ?",yes .,2\nhello,hi,0.5\n')),
    ),
    "conversational": ("conversational", {"turns": "all"}, lambda f: _write(f, _each_split(".jsonl", _lines(CHATS)))),
    "conversations": ("conversations", {}, lambda f: _write(f, _each_split(".jsonl", _lines(LOGS)))),
    "conversations_gzip": (
        "conversations",
        {},
        lambda f: _write(f, _each_split(".jsonl.gz", gzip.compress(_lines(LOGS).encode()))),
    ),
    "lmrl": ("conversations", {}, lambda f: _write(f, _each_split(".jsonl", _lines(SEQUENCES)))),
    **rows_of_features("POOLS"),
}
