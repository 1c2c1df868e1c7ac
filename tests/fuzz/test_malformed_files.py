"""Malformed files, as outsiders made them: each is refused by a command in one paragraph with its name.

What readers refuse in files of data is tested beside them; values that are wrong, in
`tests/end_to_end/test_bad_input.py`.
"""

import gzip
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from runs import make_config, write_config

from rl4dialog import cli

ROWS = [{"prompt": f"do you like number {n} ?", "reference": f"yes , i like {n} ."} for n in range(6)]
JSONL = "".join(json.dumps(row) + "\n" for row in ROWS)
Damage = Callable[[Path], Any]


@dataclass(frozen=True)
class Case:
    """A damage to a folder, the command that then fails, and what its message says."""

    name: str
    words: tuple[str, ...]
    damage: Damage
    changes: tuple[tuple[str, Any], ...] = ()
    command: str = "check"


def written(name, content):
    """Other content of a file; None takes it away."""

    def damage(folder):
        path = folder / name
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)

    return damage


def instead(name, make):
    """Something else in the place of a file."""

    def damage(folder):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        make(path)

    return damage


def in_utf_16(folder):
    path = folder / "config.yml"
    path.write_bytes(path.read_text(encoding="utf-8").encode("utf-16"))


def half_weights(folder):
    path = folder / "model" / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def packed(content, name="train.jsonl.gz"):
    """The train file of the table, replaced by one that is packed."""

    def damage(folder):
        (folder / "table" / "train.jsonl").unlink()
        (folder / "table" / name).write_bytes(content)

    return damage


def encrypted(folder):
    """DailyDialog's archives, of which that of the train split says that it is encrypted."""
    for split in ("train", "validation", "test"):
        with zipfile.ZipFile(folder / "dialogues" / f"{split}.zip", "w") as archive:
            for file in sorted((folder / "dialogues").glob(f"*_{split}.txt")):
                archive.write(file, f"{split}/{file.name}")
                file.unlink()
    path = folder / "dialogues" / "train.zip"
    data = bytearray(path.read_bytes())
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.find(header)
        while at >= 0:
            data[at + flags] |= 1
            at = data.find(header, at + 4)
    path.write_bytes(data)


TABLE = (("datapool", {"id": "jsonl", "args": {"path": "{folder}/table"}}),)
MODEL = (("alg__policy__args__model_name", "{folder}/model"), ("tokenizer__model_name", "{folder}/model"))
OWN = json.dumps({"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}})
LINK = instead("config.yml", lambda path: path.symlink_to("config.yml"))
TRAIN = "table/train.jsonl"
CASES = [
    Case("config in UTF-16", ("config.yml", "UTF-8"), in_utf_16),
    Case("config that is a picture", ("config.yml",), written("config.yml", b"\x89PNG\r\n\x1a\n" + bytes(range(256)))),
    Case("config that is a folder", ("config.yml", "folder"), instead("config.yml", Path.mkdir)),
    Case("config that is a pipe", ("config.yml", "named pipe"), instead("config.yml", os.mkfifo)),
    Case("config that leads to itself", ("config.yml",), LINK),
    Case("config that is JSON of a list", ("config.yml", "list"), written("config.yml", "[1, 2]")),
    Case("empty table", ("table", "no samples"), written(TRAIN, ""), TABLE),
    Case("table of one huge line", ("train.jsonl:1",), written(TRAIN, '{"prompt": "' + "x" * 10_000_000), TABLE),
    Case("surrogate in the bytes", ("train.jsonl:1",), written(TRAIN, JSONL.replace("like", "\ud800")), TABLE),
    Case("other columns", ("'prompt'", "question"), written(TRAIN, JSONL.replace("prompt", "question")), TABLE),
    Case("pipe in place of a file", ("train",), instead(TRAIN, os.mkfifo), TABLE),
    Case("link to nowhere", ("train",), instead(TRAIN, lambda path: path.symlink_to("nowhere")), TABLE),
    Case("file in place of a folder", ("table",), instead("table", lambda path: path.write_text("x")), TABLE),
    Case("cut gzip", ("train.jsonl.gz", "gzip"), packed(gzip.compress(JSONL.encode())[:-20]), TABLE),
    Case("gzip bomb", ("train.jsonl.gz", "200 times"), packed(gzip.compress(bytes(110 * 2**20))), TABLE),
    Case("encrypted zip", ("train.zip", "encrypted"), encrypted),
    Case("model's config is no JSON", ("model",), written("model/config.json", "{"), MODEL),
    Case("model's config is empty", ("model",), written("model/config.json", "{}"), MODEL),
    Case("weights are missing", ("model",), written("model/model.safetensors", None), MODEL, "train"),
    Case("weights are NULs", ("model",), written("model/model.safetensors", bytes(4096)), MODEL, "train"),
    Case("weights are cut", ("model",), half_weights, MODEL, "train"),
    Case("tokenizer is no JSON", ("tokenizer",), written("model/tokenizer.json", "["), MODEL),
    Case("model brings code", ("model", "custom Python code"), written("model/config.json", OWN), MODEL),
    Case("run's config is cut", ("run", "config.json"), written("run/config.json", '{"alg": {'), (), "generate"),
    Case("run's config is a list", ("run", "config.json"), written("run/config.json", "[]"), (), "generate"),
    Case("run's config is a model's", ("run",), written("run/config.json", '{"model_type": "gpt2"}'), (), "generate"),
    Case("prompts are binary", ("prompts.jsonl:1", "JSON"), written("prompts.jsonl", bytes(256)), (), "generate"),
    Case("prompts are empty", ("prompts.jsonl", "no prompt"), written("prompts.jsonl", b""), (), "generate"),
    Case("prompts are a pipe", ("named pipe",), instead("prompts.jsonl", os.mkfifo), (), "generate"),
    Case("replies are a pipe", ("replies.jsonl",), instead("replies.jsonl", os.mkfifo), (), "generate"),
]


@pytest.fixture
def folder(plain_run, tmp_path):
    """What the cases damage: the files of a config, a table, a model, a run and prompts."""
    (tmp_path / "table").mkdir()
    for split in ("train", "val", "test"):
        (tmp_path / "table" / f"{split}.jsonl").write_text(JSONL, encoding="utf-8")
    shutil.copytree(plain_run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    shutil.copytree(plain_run / "model", tmp_path / "model")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "hello"}\n', encoding="utf-8")
    return tmp_path


def filled(value, folder):
    if isinstance(value, dict):
        return {key: filled(inner, folder) for key, inner in value.items()}
    return value.replace("{folder}", str(folder)) if isinstance(value, str) else value


def run_case(case, folder):
    """Write what the case needs, damage it, and run its command."""
    path = write_config(folder, make_config(folder, **{key: filled(value, folder) for key, value in case.changes}))
    case.damage(folder)
    if case.command in ("check", "train"):
        where = ["--base_path_to_store_results", str(folder / "runs")]
        return cli.main(["train", "--config_path", str(path), *(["--dry_run"] if case.command == "check" else where)])
    files = ["--input", str(folder / "prompts.jsonl"), "--output", str(folder / "replies.jsonl")]
    return cli.main([case.command, "--run", str(folder / "run"), *files])


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_malformed_input_is_refused_in_one_paragraph(case, folder, capsys):
    assert run_case(case, folder) == 2
    (message,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    for word in case.words:
        assert word in message
    assert len(message) < 5000


@pytest.mark.parametrize("changes", [(), TABLE, MODEL], ids=["plain", "table", "model"])
def test_what_is_not_damaged_is_accepted(changes, folder):
    for command in ("check", "generate")[: 1 if changes else 2]:
        assert run_case(Case("whole", (), lambda folder: None, changes, command), folder) == 0
