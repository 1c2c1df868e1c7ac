"""Ninety-one malformed inputs, as outsiders made them: each is refused in one paragraph with the key or the file."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from runs import complete_run, make_config, run_folder, write_config

from rl4dialog import cli

ROWS = [{"prompt": f"do you like number {n} ?", "reference": f"yes , i like {n} ."} for n in range(6)]
JSONL = "".join(json.dumps(row) + "\n" for row in ROWS)
Damage = Callable[[Path], Any]


@dataclass(frozen=True)
class Case:
    """A damage to a folder, the command that then fails, and what its message says."""

    name: str
    words: tuple[str, ...]
    overrides: tuple[tuple[str, Any], ...] = ()
    damage: Damage | None = None
    command: str = "check"


def _config(key: str, value: Any, *words: str) -> Case:
    return Case(f"{key}={value!r}", (key, *words), ((key, value),))


CONFIGS = [
    _config("alg.args.normalize_advantage", "no", "valid boolean, got 'no'"),
    _config("alg.args.normalize_advantage", "off", "valid boolean, got 'off'"),
    _config("alg.args.split_by_length", "maybe", "valid boolean, got 'maybe'"),
    _config("alg.args.use_sde", True, "False"),
    _config("alg.args.max_grad_norm", -1, "greater than 0, got -1"),
    _config("alg.args.max_grad_norm", 0, "greater than 0, got 0"),
    _config("alg.args.max_grad_norm", float("nan"), "nan"),
    _config("alg.args.ent_coef", "auto", "valid number, got 'auto'"),
    _config("alg.args.vf_coef", "half", "valid number, got 'half'"),
    _config("alg.args.vf_coef", float("inf"), "finite number, got inf"),
    _config("alg.args.clip_range", -0.2, "greater than 0"),
    _config("alg.args.target_kl", -1, "greater than 0"),
    _config("alg.args.stats_window_size", 0, "greater than or equal to 1"),
    _config("alg.args.n_steps", True, "valid integer, got True"),
    _config("alg.args.learning_rate", "1e-4x", "valid number"),
    _config("alg.args.device", "cuda:99", "device of this machine"),
    _config("alg.args.gamma", 1.01, "less than or equal to 1"),
    _config("seed", "1:30:00", "valid integer, got '1:30:00'"),
    _config("env.n_envs", 1e8, "valid integer"),
    _config("env.n_envs", 100_000_000, "65536"),
    _config("alg.kl_div.coeff", float("inf"), "finite"),
    _config("alg.kl_div.target_kl", float("nan"), "got nan"),
    _config("alg.policy.args.weight_decay", -0.1, "greater than or equal to 0"),
    _config("alg.policy.args.gradient_checkpointing", "yes", "valid boolean"),
    _config("alg.policy.args.optimizer_kwargs", {"betas": 3}, "betas"),
    _config("alg.policy.args.optimizer_class", "sgdd", "sgdd"),
    _config("alg.policy.args.generation_kwargs", {"temperature": 0}, "temperature"),
    _config("datapool.args.context_size", 0, "greater than or equal to 1"),
    _config("datapool.args.split", "val", "all three splits"),
    _config("reward_fn.args.rouge_type", "rouge9", "rouge9"),
    _config("reward_fn.args.use_single_ref", "no", "valid boolean"),
    _config("reward_fn.clip", float("nan"), "reward_fn.clip"),
    _config("train_evaluation.max_eval_samples", 0, "greater than or equal to 1"),
    _config("train_evaluation.eval_batch_size", "all", "valid integer"),
    _config("tokenizer.vocab_size", 10**12, "tokenizer.vocab_size"),
    _config("env.args.max_prompt_length", 10**12, "env.args.max_prompt_length"),
    _config("warm_start", {"learning_rate": float("inf")}, "warm_start.learning_rate"),
    Case(
        "metric argument",
        ("train_evaluation.metrics[2].args.synonyms", "valid boolean"),
        (
            (
                "train_evaluation.metrics",
                [{"id": "rouge"}, {"id": "length"}, {"id": "meteor", "args": {"synonyms": "off"}}],
            ),
        ),
    ),
    Case(
        "callback argument",
        ("callbacks[0].args.patience", "got 0"),
        (("callbacks", [{"id": "early_stopping", "args": {"metric": "x", "patience": 0}}]),),
    ),
    Case(
        "part of a composite",
        ("reward_fn.args.rewards[1].args.penalty", "valid number"),
        (
            (
                "reward_fn",
                {
                    "id": "composite",
                    "args": {"rewards": [{"id": "rouge"}, {"id": "missing_eos_penalty", "args": {"penalty": "much"}}]},
                },
            ),
        ),
    ),
    Case(
        "no replies of the partner",
        ("env.args.partner_replies",),
        (("env.args.max_turns", 3), ("env.args.partner_replies", [])),
    ),
]


def _text(text: str) -> Damage:
    return lambda folder: (folder / "config.yml").write_text(text, encoding="utf-8")


def _bytes(data: bytes) -> Damage:
    return lambda folder: (folder / "config.yml").write_bytes(data)


def _instead(name: str, make: Damage) -> Damage:
    """Something else in the place of a file."""

    def damage(folder: Path) -> None:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        make(path)

    return damage


def _utf_16(folder: Path) -> None:
    path = folder / "config.yml"
    path.write_bytes(path.read_text(encoding="utf-8").encode("utf-16"))


CONFIG_FILES = [
    Case("empty config", ("config.yml", "contains nothing"), damage=_text("")),
    Case("config of NULs", ("config.yml",), damage=_bytes(bytes(4096))),
    Case("config in UTF-16", ("config.yml", "UTF-8"), damage=_utf_16),
    Case("config that is a picture", ("config.yml",), damage=_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))),
    Case("config of one huge line", ("config.yml",), damage=_text("x" * 3_000_000)),
    Case("config that is a folder", ("config.yml", "folder"), damage=_instead("config.yml", Path.mkdir)),
    Case("config that is a pipe", ("config.yml", "named pipe"), damage=_instead("config.yml", os.mkfifo)),
    Case(
        "config that leads nowhere",
        ("config.yml", "does not exist"),
        damage=_instead("config.yml", lambda path: path.symlink_to("nowhere")),
    ),
    Case(
        "config that leads to itself",
        ("config.yml",),
        damage=_instead("config.yml", lambda path: path.symlink_to("config.yml")),
    ),
    Case("config that is JSON of a list", ("config.yml", "list"), damage=_text("[1, 2]")),
]

TABLE = (("datapool", {"id": "jsonl", "args": {"path": "{folder}/table"}}),)
CSV = (("datapool", {"id": "csv", "args": {"path": "{folder}/table"}}),)
ARCHIVE = (("datapool", {"id": "daily_dialog", "args": {"path": "{folder}/zips", "context_size": 2}}),)
PARQUET = (("datapool", {"id": "imdb", "args": {"path": "{folder}/table"}}),)


def _table(name: str, content: str | bytes) -> Damage:
    """Other content of a file of the table."""

    def damage(folder: Path) -> None:
        data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        (folder / "table" / "train.jsonl").unlink()
        (folder / "table" / name).write_bytes(data)

    return damage


def _all_files(suffix: str, content: str | bytes) -> Damage:
    def damage(folder: Path) -> None:
        for split in ("train", "val", "test"):
            (folder / "table" / f"{split}.jsonl").unlink()
            (folder / "table" / f"{split}.{suffix}").write_bytes(
                content.encode() if isinstance(content, str) else content
            )

    return damage


def _zips(folder: Path, damage: Callable[[bytearray], Any] | None = None) -> None:
    """DailyDialog's archives, of which that of the train split is damaged."""
    (folder / "zips").mkdir()
    for split in ("train", "validation", "test"):
        path = folder / "zips" / f"{split}.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted((folder / "dialogues").glob(f"*_{split}.txt")):
                archive.write(file, f"{split}/{file.name}")
        if split == "train" and damage is not None:
            data = bytearray(path.read_bytes())
            damage(data)
            path.write_bytes(data)


def _encrypt(data: bytearray) -> None:
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.find(header)
        while at >= 0:
            data[at + flags] |= 1
            at = data.find(header, at + 4)


def _unknown_packing(data: bytearray) -> None:
    for header, method in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        at = data.find(header)
        while at >= 0:
            data[at + method : at + method + 2] = struct.pack("<H", 99)
            at = data.find(header, at + 4)


def _cut(data: bytearray) -> None:
    del data[-90:]


def _bomb(folder: Path) -> None:
    _zips(folder)
    with zipfile.ZipFile(folder / "zips" / "train.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted((folder / "dialogues").glob("*_train.txt")):
            is_bomb = file.name == "dialogues_train.txt"
            archive.writestr(f"train/{file.name}", bytes(110 * 2**20) if is_bomb else file.read_bytes())


def _tar_as_zip(folder: Path) -> None:
    _zips(folder)
    with tarfile.open(folder / "zips" / "train.zip", "w") as tar:
        tar.add(folder / "dialogues", "train")


def _gzip_bomb(folder: Path) -> None:
    (folder / "table" / "train.jsonl").unlink()
    with gzip.open(folder / "table" / "train.jsonl.gz", "wb", compresslevel=9) as file:
        for _ in range(110):
            file.write(bytes(2**20))


DATA = [
    Case("empty table", ("table", "no samples"), TABLE, _table("train.jsonl", "")),
    Case("table of NULs", ("train.jsonl:1",), TABLE, _table("train.jsonl", bytes(4096))),
    Case("table that is binary", ("train.jsonl:1",), TABLE, _table("train.jsonl", bytes(range(128, 256)) * 9)),
    Case("table of one huge line", ("train.jsonl:1",), TABLE, _table("train.jsonl", '{"prompt": "' + "x" * 10_000_000)),
    Case(
        "lone surrogate", ("train.jsonl:1",), TABLE, _table("train.jsonl", '{"prompt": "\\ud800", "reference": "a"}\n')
    ),
    Case("surrogate in the bytes", ("train.jsonl:1",), TABLE, _table("train.jsonl", JSONL.replace("like", "\ud800"))),
    Case("half a UTF-16", ("train.jsonl", "UTF-16"), TABLE, _table("train.jsonl", JSONL.encode("utf-16")[:-1])),
    Case("broken line", ("train.jsonl:4",), TABLE, _table("train.jsonl", JSONL.replace('"yes , i like 3', "yes"))),
    Case("cut line", ("train.jsonl:6",), TABLE, _table("train.jsonl", JSONL[:-9])),
    Case("other columns", ("'prompt'", "question"), TABLE, _table("train.jsonl", JSONL.replace("prompt", "question"))),
    Case("a number in place of a line", ("train.jsonl:1", "object"), TABLE, _table("train.jsonl", "3\n")),
    Case(
        "text that is null",
        ("train.jsonl:1", "None"),
        TABLE,
        _table("train.jsonl", '{"prompt": null, "reference": ""}'),
    ),
    Case("no references", ("train.jsonl:1",), TABLE, _table("train.jsonl", '{"prompt": "a", "reference": []}')),
    Case("nested a hundred thousand times", ("train.jsonl:1",), TABLE, _table("train.jsonl", "[" * 100_000)),
    Case("no gzip", ("train.jsonl.gz", "gzip"), TABLE, _table("train.jsonl.gz", JSONL)),
    Case("cut gzip", ("train.jsonl.gz", "gzip"), TABLE, _table("train.jsonl.gz", gzip.compress(JSONL.encode())[:-20])),
    Case("gzip bomb", ("train.jsonl.gz", "200 times"), TABLE, _gzip_bomb),
    Case("folder in place of a file", ("train",), TABLE, _instead("table/train.jsonl", Path.mkdir)),
    Case("pipe in place of a file", ("train",), TABLE, _instead("table/train.jsonl", os.mkfifo)),
    Case("file in place of a folder", ("table",), TABLE, _instead("table", lambda path: path.write_text("x"))),
    Case("pipe in place of a folder", ("table",), TABLE, _instead("table", os.mkfifo)),
    Case(
        "link to nowhere",
        ("train",),
        TABLE,
        _instead("table/train.jsonl", lambda path: path.symlink_to("nowhere")),
    ),
    Case("ragged rows", ("train.csv:3", "2 columns"), CSV, _all_files("csv", "prompt,reference\na,b\na,b,c\n")),
    Case("open quotation mark", ("train.csv",), CSV, _all_files("csv", 'prompt,reference\n"a,b\n')),
    Case("column twice", ("train.csv:1", "duplicate"), CSV, _all_files("csv", "prompt,prompt\na,b\n")),
    Case("no Parquet", ("train.parquet", "Parquet"), PARQUET, _all_files("parquet", "PAR1")),
    Case("encrypted zip", ("train.zip", "encrypted"), ARCHIVE, lambda folder: _zips(folder, _encrypt)),
    Case("zip bomb", ("train.zip", "200 times"), ARCHIVE, _bomb),
    Case("zip packed by 99", ("train.zip",), ARCHIVE, lambda folder: _zips(folder, _unknown_packing)),
    Case(
        "cut zip",
        ("train.zip",),
        ARCHIVE,
        lambda folder: _zips(folder, _cut),
    ),
    Case("tar that calls itself zip", ("train.zip",), ARCHIVE, _tar_as_zip),
]

MODEL = (("alg.policy.args.model_name", "{folder}/model"), ("tokenizer.model_name", "{folder}/model"))


def _model(name: str, content: str | bytes | None) -> Damage:
    """A copy of the run's model with another file in it; None takes the file away."""

    def damage(folder: Path) -> None:
        shutil.copytree(folder / "run" / "model", folder / "model")
        path = folder / "model" / name
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    return damage


def _half_weights(folder: Path) -> None:
    _model("x", "")(folder)
    path = folder / "model" / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


MODELS = [
    Case("model's config is no JSON", ("model",), MODEL, _model("config.json", "{")),
    Case("model's config is empty", ("model",), MODEL, _model("config.json", "{}")),
    Case("model's weights are missing", ("model",), MODEL, _model("model.safetensors", None), "train"),
    Case("model's weights are NULs", ("model",), MODEL, _model("model.safetensors", bytes(4096)), "train"),
    Case("model's weights are cut", ("model",), MODEL, _half_weights, "train"),
    Case("tokenizer is no JSON", ("tokenizer",), MODEL, _model("tokenizer.json", "[")),
    Case(
        "model brings code",
        ("model", "custom Python code"),
        MODEL,
        _model("config.json", json.dumps({"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}})),
    ),
]


def _generate(name: str, words: tuple[str, ...], damage: Damage) -> Case:
    return Case(name, words, (), damage, "generate")


def _run(name: str, content: str | bytes | None) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / "run" / name
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    return damage


def _prompts(content: bytes, name: str = "prompts.jsonl") -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


RUNS = [
    _generate("run's config is cut", ("run", "config.json"), _run("config.json", '{"alg": {')),
    _generate("run's config is a list", ("run", "config.json"), _run("config.json", "[]")),
    Case(
        "run's config is a model's", ("run",), damage=_run("config.json", '{"model_type": "gpt2"}'), command="generate"
    ),
    _generate("run's weights are NULs", ("model",), _run("model/model.safetensors", bytes(999))),
    _generate("run without a model's config", ("model",), _run("model/config.json", None)),
    _generate("prompts are binary", ("prompts.jsonl:1", "JSON"), _prompts(bytes(range(256)))),
    _generate(
        "a prompt is binary", ("prompts.jsonl:2", "UTF-8"), _prompts(b'{"prompt": "a"}\n' + bytes(range(128, 256)))
    ),
    _generate("prompts are empty", ("prompts.jsonl", "no prompt"), _prompts(b"")),
    _generate("prompts have other columns", ("prompts.jsonl:1",), _prompts(b'{"text": "a"}\n')),
    Case("prompts are a pipe", ("named pipe",), damage=_instead("prompts.jsonl", os.mkfifo), command="generate"),
    _generate("replies are a pipe", ("replies.jsonl",), _instead("replies.jsonl", os.mkfifo)),
]

CASES = [*CONFIGS, *CONFIG_FILES, *DATA, *MODELS, *RUNS]
# A tenth, of every kind, is enough for each day.
PARAMETERS = [
    pytest.param(case, id=case.name, marks=() if i % 10 == 0 else pytest.mark.long) for i, case in enumerate(CASES)
]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("whole")
    with complete_run(folder, make_config(folder, train_evaluation__n_iters=0)):
        yield run_folder(folder)


@pytest.fixture
def folder(whole_run: Path, tmp_path: Path) -> Path:
    """What the cases damage: the files of a config, a table, a run and prompts."""
    (tmp_path / "table").mkdir()
    for split in ("train", "val", "test"):
        (tmp_path / "table" / f"{split}.jsonl").write_text(JSONL, encoding="utf-8")
    shutil.copytree(whole_run, tmp_path / "run")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "hello"}\n', encoding="utf-8")
    return tmp_path


def _filled(value: Any, folder: Path) -> Any:
    if isinstance(value, dict):
        return {key: _filled(inner, folder) for key, inner in value.items()}
    return value.replace("{folder}", str(folder)) if isinstance(value, str) else value


def run_case(case: Case, folder: Path) -> int:
    """Write what the case needs, damage it, and run its command."""
    config = make_config(folder, **{key.replace(".", "__"): _filled(value, folder) for key, value in case.overrides})
    path = write_config(folder, config)
    if case.damage is not None:
        case.damage(folder)
    if case.command in ("check", "train"):
        where = ["--base_path_to_store_results", str(folder / "runs")]
        return cli.main(["train", "--config_path", str(path), *(["--dry_run"] if case.command == "check" else where)])
    files = ["--input", str(folder / "prompts.jsonl"), "--output", str(folder / "replies.jsonl")]
    return cli.main([case.command, "--run", str(folder / "run"), *files])


def test_there_are_at_least_91() -> None:
    assert len(CASES) >= 91 and len({case.name for case in CASES}) == len(CASES)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", PARAMETERS)
def test_malformed_input_is_refused_in_one_paragraph(
    case: Case, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_case(case, folder) == 2
    (message,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    for word in case.words:
        assert word in message
    assert len(message) < 5000


def test_what_is_not_damaged_is_accepted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for overrides, make in ((TABLE, None), (ARCHIVE, _zips), (MODEL, _model("x", ""))):
        assert run_case(Case("whole", (), overrides, make), folder) == 0
    assert run_case(Case("whole", (), command="generate"), folder) == 0
