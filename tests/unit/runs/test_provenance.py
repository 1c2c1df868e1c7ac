"""The provenance of a run, with the state of its repositories."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import make_gpt2, make_samples, make_tokenizer

from rl4dialog.core.plugins import load_imports
from rl4dialog.data.pool import Data, TextGenPool
from rl4dialog.policies.saving import weights_hash
from rl4dialog.runs import provenance as module
from rl4dialog.runs.provenance import (
    GitState,
    changed_splits,
    config_folder,
    differences,
    git_state,
    read_provenance,
    record_contents,
    record_start,
    recorded_start,
)
from rl4dialog.runs.run_folder import RunFolder
from rl4dialog.text.chat_template import start_time


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path, "project", "run")


def data(n=4, weights=None):
    return Data({split: TextGenPool(make_samples(n), weights) for split in ("train", "val", "test")}, "<EOU>")


def test_start_has_what_a_second_run_needs(folder, tmp_path):
    (tmp_path / "my_own.py").write_text("x = 1\n")
    load_imports(["./my_own.py"], tmp_path)
    try:
        record_start(folder, tmp_path / "c.yml", ["train", "--set", "a b=1"], 3, ["./my_own.py"])
    finally:
        del sys.modules["my_own"]
    found = read_provenance(folder.root)
    assert found["command"] == "rl4dialog train --set 'a b=1'"
    assert found["prompt_time"] == start_time().isoformat() and recorded_start(folder.root) == start_time()
    assert recorded_start(None) is None
    assert found["seed"] == 3 and found["working_directory"] == os.getcwd()
    assert {"python", "torch", "transformers", "stable-baselines3", "numpy"} <= found["versions"].keys()
    assert len(found["imports"]["my_own.py"]) == 64
    assert found["hardware"]["torch_threads"] == 1 and found["hardware"]["cpu"]
    assert found["git"]["config"] is None
    assert config_folder(folder.root) == tmp_path


def test_uncommitted_changes_are_kept_beside_it(folder, monkeypatch):
    state = GitState("/repo", "c0ffee", True, ["new.py"], "-a\n+b\n", False)
    monkeypatch.setattr(module, "git_state", lambda folder, tracks=None: state)
    record_start(folder, "c.yml", [], 0, [])
    assert folder.path("uncommitted.diff").read_text() == "-a\n+b\n", "config and package are in one repository"
    described = read_provenance(folder.root)["git"]["package"]
    assert described["commit"] == "c0ffee" and described["differs"] and "diff" not in described


def test_contents_are_hashed_once(folder):
    model = make_gpt2(make_tokenizer())
    record_start(folder, "c.yml", [], 0, [])
    record_contents(folder, data(), weights_hash(model))
    first = read_provenance(folder.root)
    assert first["model_hash"] == weights_hash(model) and first["turn_marker"] == "<EOU>"
    assert set(first["data_hash"]) == {"train", "val", "test"} and first["seed"] == 0
    record_contents(folder, data(5), "another")
    assert read_provenance(folder.root) == first


@pytest.mark.parametrize("other", [data(5), data(4, [1.0, 1.0, 1.0, 2.0])])
def test_another_sample_or_weight_is_another_hash(folder, tmp_path, other):
    record_contents(folder, data(), "same")
    second = RunFolder(tmp_path, "project", "second")
    record_contents(second, other, "same")
    found = differences(read_provenance(folder.root), read_provenance(second.root))
    assert [key for key, *_ in found] == ["data_hash.train", "data_hash.val", "data_hash.test"]


def test_splits_that_changed_are_named(folder):
    given = data()
    assert changed_splits(folder, given) == [], "nothing is recorded"
    record_contents(folder, given, "hash")
    assert changed_splits(folder, data()) == []
    given.pools["train"] = TextGenPool(make_samples(4)[::-1])
    given.pools["test"] = TextGenPool(make_samples(5))
    assert changed_splits(folder, given) == ["train", "test"]


def test_place_in_memory_of_meta_data_is_no_change(folder):
    (sample,) = make_samples(1)
    samples = [dataclasses.replace(sample, meta_data={"source": object()}) for _ in range(2)]
    one, other = (Data({"train": TextGenPool([each])}, None) for each in samples)
    record_contents(folder, one, "hash")
    assert changed_splits(folder, other) == []


def test_resumed_run_keeps_its_first_start(folder, tmp_path):
    record_start(folder, tmp_path / "c.yml", ["train"], 0, [])
    first = read_provenance(folder.root)
    for flag in ("--first", "--second"):
        record_start(folder, tmp_path / "c.yml", ["train", flag], 0, [])
    found = read_provenance(folder.root)
    assert [each["command"] for each in found.pop("resumed")] == ["rl4dialog train --first", "rl4dialog train --second"]
    assert found == first


def test_unreadable_file_says_nothing(tmp_path):
    for text in ("{", "[]"):
        (tmp_path / "provenance.json").write_text(text)
        assert read_provenance(tmp_path) == {}
    assert config_folder(tmp_path) == tmp_path


def test_differences_name_key_and_both_values():
    one = {"versions": {"torch": "1"}, "seed": 0, "command": "a"}
    other = {"versions": {"torch": "2", "peft": "3"}, "seed": 0, "command": "b"}
    assert differences(one, json.loads(json.dumps(one))) == []
    assert differences(one, other) == [("versions.torch", "1", "2"), ("versions.peft", None, "3")]
    resumed = {**one, "resumed": [{**one}, {**one, "versions": {"torch": "2"}}]}
    assert differences(one, resumed) == [("resumed[1].versions.torch", None, "2")]


pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder, *arguments):
    names = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", "-C", str(folder), *names, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "a.txt").write_text("one\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_commit_changes_and_new_files_are_told(repository, monkeypatch):
    state = git_state(repository / "inside")
    assert state is not None and len(state.commit) == 40
    assert state == GitState(str(repository.resolve()), state.commit, False, [], "", False)
    (repository / "inside" / "a.txt").write_text("two\n")
    (repository / "new.txt").write_text("new\n")
    state = git_state(repository / "inside")
    assert state is not None and state.differs and state.untracked == ["new.txt"]
    assert "-one\n+two\n" in state.diff and not state.diff_is_cut
    monkeypatch.setattr(module, "MAX_DIFF_BYTES", 10)
    state = git_state(repository)
    assert state is not None and len(state.diff) == 10 and state.diff_is_cut


@pytest.mark.parametrize(
    "name", [".env", "deploy/prod.ENV", ".env.local", "my_secrets.yml", "server.pem", "a/id_ed25519"]
)
def test_changes_of_files_with_secrets_and_credentials_of_addresses_are_not_kept(
    repository, folder, monkeypatch, caplog, name
):
    (repository / name).parent.mkdir(exist_ok=True)
    (repository / name).write_text("KEY=old\n")
    (repository / "secret_word.py").write_text("old\n")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "second")
    (repository / name).write_text("KEY=new\n")
    (repository / "secret_word.py").write_text("changed code\n")
    (repository / "inside" / "a.txt").write_text("url: http://me:pass@h/x?token=xyz\n")
    state = git_state(repository)
    assert state is not None and state.differs and "KEY" not in state.diff and "+url" in state.diff
    assert "changed code" in state.diff and caplog.messages[0].endswith(f"not recorded: {name}")
    monkeypatch.setattr(module.rl4dialog, "__file__", str(repository / "untracked" / "__init__.py"))
    argv = ["train", "--set", "env.args.conversation_partner.args.url=http://me:pass@h/x?token=xyz"]
    record_start(folder, repository / "c.yml", argv, 0, [])
    kept = "".join((folder.root / file).read_text() for file in (module.PROVENANCE_FILE, module.DIFF_FILE))
    assert kept.count("http://***@h/x?token=***") == 2 and "pass" not in kept and "xyz" not in kept


def test_without_repository_commit_or_git_there_is_no_state(tmp_path, monkeypatch):
    assert git_state(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) is None
    monkeypatch.setenv("PATH", "")
    assert git_state(Path(__file__).parent) is None


def test_file_that_the_repository_around_it_does_not_hold_has_no_state(repository):
    (repository / "inside" / "b.txt").write_text("x\n")
    assert git_state(repository / "inside", tracks="a.txt") is not None
    assert git_state(repository / "inside", tracks="b.txt") is None
