"""Whatever happened to a data file, a datapool gives valid samples, or an error that names the file."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from runs import write_dialogues

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Sample
from rl4dialog.data.persona_pairs import PersonaPairs
from rl4dialog.experiments.stand_in_data import write_original

PERSONAS = (
    "1 your persona: i like tea .\n2 partner's persona: i have a cat .\n3 hello !\thi , how are you ?\n"
    "4 fine .\tgood .\t\thi .|bye .|good .\n1 your persona: i run .\n2 __SILENCE__\thello .\n3 hi .\tbye .\n"
)
ROWS: list[dict[str, Any]] = [
    {"prompt": "hello", "reference": "hi", "weight": 2, "n": {"m": ["a"]}},
    {"prompt": "tea , or not ?", "reference": ["yes .", "no ."], "weight": 0.5, "n": {"m": []}},
]
CHATS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]},
    {
        "chosen": [{"role": "user", "content": "tea ?"}, {"role": "assistant", "content": "yes ."}],
        "rejected": [{"role": "user", "content": "tea ?"}, {"role": "assistant", "content": "no ."}],
    },
]
LOGS: list[dict[str, Any]] = [
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
CRD3 = [
    {
        "ALIGNMENT": {"CHUNK ID": "C1E001_0", "TURN START": 0, "TURN END": 2, "ALIGNMENT SCORE": 2.0},
        "CHUNK": "They meet.",
        "TURNS": [
            {"NAMES": ["MATT"], "UTTERANCES": ["Hello everyone .", "Welcome ."], "NUMBER": 0},
            {"NAMES": ["LAURA", "SAM"], "UTTERANCES": ["Hi ."], "NUMBER": 1},
            {"NAMES": ["MATT"], "UTTERANCES": ["Roll ."], "NUMBER": 2},
        ],
    }
]


def _write(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def _lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _each_split(suffix: str, content: str | bytes) -> dict[str, str | bytes]:
    return {f"{split}{suffix}": content for split in ("train", "val", "test")}


def _original(name: str) -> Callable[[Path], Path]:
    return lambda folder: write_original(name, folder)


WEIGHTED = {"columns": {"weight": "weight"}}
# Id and arguments of a datapool, and what writes its files.
POOLS: dict[str, tuple[str, dict[str, Any], Callable[[Path], Path]]] = {
    "daily_dialog": ("daily_dialog", {"context_size": 2}, write_dialogues),
    "persona_chat": (
        "persona_chat",
        {},
        lambda f: _write(f, _each_split("_self_original.txt", PERSONAS) | {"valid_self_original.txt": PERSONAS}),
    ),
    "persona_pairs": ("persona_pairs", {"order": "sequence"}, _original("persona_pairs")),
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
    "crd3": (
        "crd3",
        {},
        lambda f: _write(
            f,
            {"aligned data/c=2/C1E001_2_0.json": json.dumps(CRD3)}
            | {f"aligned data/{split}_files": "C1E001\n" for split in ("train", "val", "test")},
        ),
    ),
    "commongen": ("commongen", {}, _original("commongen")),
    "imdb": ("imdb", {}, _original("imdb")),
    "totto": ("totto", {}, _original("totto")),
    "narrative_qa": ("narrative_qa", {}, _original("narrative_qa")),
    "cnn_daily_mail": ("cnn_daily_mail", {}, _original("cnn_daily_mail")),
    "translation": ("iwslt2017en_de", {}, _original("iwslt2017en_de")),
}
DAMAGES = ["cut", "drop", "insert", "flip", "line", "twice", "swap", "empty", "encoding", "ends", "long", "word"]
PIECES = [
    b"\0",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\xe2\x80\xa8",
    b"\r",
    b'"',
    b"\\ud800",
    b"\t",
    b",",
    b"{",
    b"__eou__",
    b"NaN",
    b"1e999",
]
WORDS = [b"null", b"true", b"-1", b"[]", b"{}", b'""', b"1e400", b"9" * 5000, b"[" * 3000, b'{"a": 1}', b"NaN"]


@st.composite
def damaged(draw: DrawFn, data: bytes) -> bytes:
    """The content of a file after something happened to it."""
    kind = draw(st.sampled_from(DAMAGES))
    start, end = sorted(draw(st.integers(0, len(data))) for _ in range(2))
    lines = data.split(b"\n")
    line = draw(st.integers(0, len(lines) - 1))
    if kind == "cut":
        return data[:start]
    if kind == "drop":
        return data[:start] + data[end:]
    if kind == "insert":
        return data[:start] + draw(st.one_of(st.sampled_from(PIECES), st.binary(max_size=4))) + data[start:]
    if kind == "flip":
        return (
            data[:start]
            + bytes(byte ^ draw(st.integers(1, 255)) for byte in data[start : start + 1])
            + data[start + 1 :]
        )
    if kind == "line":
        return b"\n".join(lines[:line] + lines[line + 1 :])
    if kind == "twice":
        return b"\n".join([*lines[: line + 1], *lines[line:]])
    if kind == "swap":
        return b"\n".join(reversed(lines))
    if kind == "encoding":
        return data.decode("utf-8", "replace").encode(
            draw(st.sampled_from(["utf-16", "utf-8-sig", "latin-1"])), "replace"
        )
    if kind == "ends":
        return data.replace(b"\n", draw(st.sampled_from([b"\r\n", b"\r", b"\n\n", b"\x85"])))
    if kind == "long":
        return data[:start] + b"x" * 1_000_000 + data[start:]
    if kind == "word":
        words = data.split(b" ")
        words[draw(st.integers(0, len(words) - 1))] = draw(st.sampled_from(WORDS))
        return b" ".join(words)
    return b""


def assert_valid(pool: Any) -> None:
    assert len(pool) > 0
    for sample, weight in pool:
        assert isinstance(sample, Sample) and isinstance(sample.id, (str, int)) and 0 < weight < float("inf")
        texts = [sample.prompt_or_input_text, *sample.references]
        assert sample.references or isinstance(pool, PersonaPairs)
        assert all(isinstance(text, str) for text in texts)
        for text in texts:
            text.encode()


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: write(tmp_path_factory.mktemp(name)) for name, (_, _, write) in POOLS.items()}


@pytest.mark.parametrize("name", POOLS)
def test_original_files_are_valid(originals: dict[str, Path], name: str) -> None:
    id, args, _ = POOLS[name]
    for split in ("train", "val", "test"):
        assert_valid(DataPoolRegistry.get(id, {**args, "path": str(originals[name]), "split": split}))


@given(st.data())
def test_damaged_file_gives_valid_samples_or_an_error_that_names_it(
    originals: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(POOLS)))
    id, args, _ = POOLS[name]
    root = originals[name]
    victim = data.draw(st.sampled_from(sorted(path for path in root.rglob("*") if path.is_file())))
    original = victim.read_bytes()
    try:
        victim.write_bytes(data.draw(damaged(original)))
        for split in ("train", "val", "test"):
            try:
                pool = DataPoolRegistry.get(id, {**args, "path": str(root), "split": split})
            except DataError as error:
                message = str(error)
                assert str(root) in message and "\n" not in message and len(message) < 5000, message[:1000]
            else:
                assert_valid(pool)
    finally:
        victim.write_bytes(original)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("json", "train.json"),
        ("gzip", "train.jsonl.gz"),
        ("jsonl", "train.jsonl"),
        ("conversational", "train.jsonl"),
        ("conversations", "train.jsonl"),
        ("conversations_gzip", "train.jsonl.gz"),
        ("crd3", "aligned data/c=2/C1E001_2_0.json"),
        ("totto", "totto_train_data.jsonl"),
    ],
)
def test_file_that_is_cut_within_a_record_is_not_taken_for_a_whole_one(
    originals: dict[str, Path], tmp_path: Path, name: str, file: str
) -> None:
    id, args, _ = POOLS[name]
    root = Path(shutil.copytree(originals[name], tmp_path / "copy"))
    whole = (root / file).read_bytes()
    # Where a line ends a file of lines may be whole; the rest of it would be missed by no one.
    places = [i for i in range(1, len(whole.rstrip())) if file.endswith(".gz") or b"\n" not in whole[i - 1 : i + 1]]
    for size in places[::7]:
        (root / file).write_bytes(whole[:size])
        with pytest.raises(DataError, match=Path(file).name):
            DataPoolRegistry.get(id, {**args, "path": str(root), "split": "train"})
