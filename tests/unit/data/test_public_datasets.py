from __future__ import annotations

import errno
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import httpx
import pytest
from rated import chitchat_conversation, write_dstc9

from rl4dialog.cli import main
from rl4dialog.core.errors import DataError
from rl4dialog.data import daily_dialog, dstc9
from rl4dialog.data.prepared import find_prepared
from rl4dialog.data.public_datasets import prepare_dataset


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "cache"))


def prepared(name: str) -> Path:
    folder = find_prepared(name)
    assert folder is not None
    return folder


def test_command_caches_a_dataset_from_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "dstc9", "--path", str(write_dstc9(tmp_path / "files"))]) == 0
    assert "dstc9: 4 rated dialogues of 2 chatbots, in " in capsys.readouterr().out
    assert len(dstc9.read_dstc9(prepared("dstc9"))) == 4


def test_dataset_is_replaced_by_a_good_one_and_kept_after_a_bad_one(tmp_path: Path) -> None:
    for content in ({"x": chitchat_conversation("a", "b")}, {"x": chitchat_conversation("c", "d")}):
        (tmp_path / "dataset.json").write_text(json.dumps(content))
        prepare_dataset("chitchat", tmp_path)
    (tmp_path / "dataset.json").write_text("{")
    with pytest.raises(DataError, match=rf"{tmp_path}/dataset.json: not valid JSON"):
        prepare_dataset("chitchat", tmp_path)
    assert '"c"' in (prepared("chitchat") / "dataset.json").read_text()


@pytest.mark.parametrize("cause", ["full", "read-only"])
def test_cache_that_cannot_be_written_is_an_error_and_keeps_the_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cause: str
) -> None:
    folder = write_dstc9(tmp_path / "files")
    prepare_dataset("dstc9", folder)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC if cause == "full" else errno.EROFS, "no")

    monkeypatch.setattr(shutil if cause == "full" else tempfile, "copyfile" if cause == "full" else "mkdtemp", fail)
    assert main(["prepare", "dstc9", "--path", str(folder)]) == 2
    assert f"the cache folder {tmp_path / 'cache'} cannot be written" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "cache"))
    assert len(dstc9.read_dstc9(prepared("dstc9"))) == 4
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [prepared("dstc9").name]


def test_dataset_without_dialogues_is_refused_and_replaces_nothing(tmp_path: Path) -> None:
    prepare_dataset("dstc9", write_dstc9(tmp_path / "files"))
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "chatbot1.json").write_text("[]")
    with pytest.raises(DataError, match=f"the files in {empty} contain no dialogues"):
        prepare_dataset("dstc9", empty)
    assert len(dstc9.read_dstc9(prepared("dstc9"))) == 4


def test_daily_dialog_finds_the_prepared_files(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for split in ("train", "validation", "test"):
        (files / f"dialogues_{split}.txt").write_text(f"{split} __eou__ yes __eou__\n")
        for label in ("act", "emotion"):
            (files / f"dialogues_{label}_{split}.txt").write_text("1 1\n")
    assert "1 dialogues in train, 1 dialogues in val" in prepare_dataset("daily_dialog", files)
    assert daily_dialog.load_dialogues("val")[0].turns[0].text == "validation"


def test_daily_dialog_is_not_downloaded_but_its_source_is_named() -> None:
    with pytest.raises(DataError, match=r"http://yanran.li/dailydialog.*rl4dialog prepare daily_dialog --path FOLDER"):
        prepare_dataset("daily_dialog")
    assert find_prepared("daily_dialog") is None


def serve(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Downloads come from a folder."""

    def answer(request: httpx.Request) -> httpx.Response:
        file = folder / request.url.path.rsplit("/", 1)[-1]
        return httpx.Response(200, content=file.read_bytes()) if file.exists() else httpx.Response(404)

    def stream(method: str, url: str, **settings: Any) -> Any:
        return httpx.Client(transport=httpx.MockTransport(answer), **settings).stream(method, url)

    monkeypatch.setattr(httpx, "stream", stream)


def test_download_with_another_hash_is_refused_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, write_dstc9(tmp_path / "files", n_bots=11))
    with pytest.raises(DataError, match=r"chatbot1.json is not the expected file: its SHA-256 is .* instead of 1106"):
        prepare_dataset("dstc9")
    assert find_prepared("dstc9") is None


def test_downloads_with_the_right_hashes_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rl4dialog.core.manifest import file_hash

    files = write_dstc9(tmp_path / "files", n_bots=11)
    monkeypatch.setattr(dstc9, "_HASHES", [file_hash(files / f"chatbot{n}.json") for n in range(1, 12)])
    serve(monkeypatch, files)
    assert "22 rated dialogues of 11 chatbots" in prepare_dataset("dstc9")


def test_download_without_a_network_names_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, tmp_path)
    address = r"https://raw.githubusercontent.com/\S*/chatbot1.json cannot be downloaded"
    with pytest.raises(DataError, match=rf"{address}.*rl4dialog prepare dstc9 --path FOLDER"):
        prepare_dataset("dstc9")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "needs either a name, or --config_path"),
        (["dstc"], "unknown dataset 'dstc'; did you mean 'dstc9'?"),
        (["dstc9", "--path", "missing"], "missing does not exist"),
        (["dstc9", "--config_path", "x.yml"], "needs either a name, or --config_path"),
        (["--path", "x", "--config_path", "x.yml"], "--path is the folder of a dataset"),
    ],
)
def test_wrong_arguments_are_an_error(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", *arguments]) == 2
    assert message in capsys.readouterr().err
