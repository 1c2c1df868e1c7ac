"""What a container starts, as whom, and what it says where it cannot."""

import os
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

ENTRYPOINT = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[3] / "docker" / "entrypoint.py")))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("train --config_path x.yml", "rl4dialog train --base_path_to_store_results /runs --config_path x.yml"),
        ("doctor --config_path x.yml", "rl4dialog doctor --config_path x.yml"),
        ("", "rl4dialog --help"),
        ("test", "python -m pytest -p no:cacheprovider --numprocesses auto"),
        ("test tests/unit -n 0", "python -m pytest -p no:cacheprovider tests/unit -n 0"),
        ("tensorboard --logdir /runs", "tensorboard --logdir /runs"),
    ],
)
def test_arguments_name_a_program(arguments, expected):
    assert ENTRYPOINT.command(arguments.split()) == expected.split()


def test_own_folder_for_results_overrules_the_volume():
    from rl4dialog import cli

    line = ENTRYPOINT.command(["train", "--config_path", "missing.yml", "--base_path_to_store_results", "/elsewhere"])
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "_run", lambda name, args: seen.append(args) or 0)
        cli.main(line[1:])
    assert seen[0].base_path_to_store_results == "/elsewhere"


@pytest.mark.parametrize(
    ("owner", "expected"), [((1234, 100), (1234, 100)), ((0, 0), (1000, 1000)), ((0, 100), (1000, 1000))]
)
def test_results_belong_to_the_owner_of_the_folder_and_never_to_root(owner, expected):
    status = SimpleNamespace(st_uid=owner[0], st_gid=owner[1])
    assert ENTRYPOINT.unprivileged_user(SimpleNamespace(stat=lambda: status)) == expected


def test_root_of_a_rootless_engine_is_not_root_of_the_host():
    assert ENTRYPOINT.is_root_of_the_host("         0          0 4294967295\n")
    assert not ENTRYPOINT.is_root_of_the_host("         0       1000          1\n         1     100000      65536\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_root_hands_its_folders_over_and_becomes_an_unprivileged_user(tmp_path):
    runs, others = tmp_path / "runs", tmp_path / "others"
    runs.mkdir(), others.mkdir()
    os.chown(others, 4321, 4321)
    child = os.fork()
    if child == 0:  # what it became cannot be undone
        ENTRYPOINT.give_up_root([runs, others], 1000, 1001)
        who = (os.getuid(), os.geteuid(), os.getgid(), os.getgroups())
        os._exit(0 if who == (1000, 1000, 1001, []) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (runs.stat().st_uid, runs.stat().st_gid) == (1000, 1001)
    assert others.stat().st_uid == 4321, "only what root owns is handed over"


def test_folder_that_cannot_be_written_is_told_with_what_to_do(tmp_path, monkeypatch):
    assert ENTRYPOINT.unwritable(tmp_path) is None
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    message = ENTRYPOINT.unwritable(tmp_path)
    assert f"{tmp_path} belongs to user {tmp_path.stat().st_uid}, and user {os.getuid()}" in message
    assert 'docker run --user "$(id -u):$(id -g)" -v "$PWD/runs:' in message
