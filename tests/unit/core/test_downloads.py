import hashlib
import importlib.util
import sys
import zipfile

import pytest

from rl4dialog.core import downloads
from rl4dialog.core.cache import cache_root
from rl4dialog.core.downloads import file_from_wheel
from rl4dialog.core.errors import DataError

CONTENT = b"the data\n" * 1000
GOOD = ("shelf==1.0", "shelf/data.txt", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture(autouse=True)
def index(tmp_path, monkeypatch):
    """A package index in a folder, which pip is configured to use, and an empty cache."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "cache"))
    (tmp_path / "index").mkdir()
    write_wheel(tmp_path / "index")
    return tmp_path / "index"


def write_wheel(folder, compression=zipfile.ZIP_DEFLATED):
    path = folder / "shelf-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("shelf/data.txt", CONTENT)
        archive.writestr("shelf-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: shelf\nVersion: 1.0\n")
        archive.writestr("shelf-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("shelf-1.0.dist-info/RECORD", "")
    return path


def kept():
    return [path for path in cache_root().rglob("*") if path.is_file()]


def test_file_is_downloaded_once(index):
    path = file_from_wheel(*GOOD)
    assert (path.name, path.read_bytes()) == ("data.txt", CONTENT)
    next(index.iterdir()).unlink()
    assert file_from_wheel(*GOOD) == path


def test_what_is_not_found_or_has_another_hash_is_named_and_not_kept():
    with pytest.raises(DataError, match=r"shelf/data.txt of the package shelf==1.0 is not the expected file.* instead"):
        file_from_wheel(*GOOD[:2], "00")
    assert not kept()
    with pytest.raises(DataError, match=r"missing==1.0 cannot be downloaded .*missing==1.0.*; check the network and"):
        file_from_wheel("missing==1.0", *GOOD[1:])
    assert not kept()
    with pytest.raises(DataError, match=r"shelf==1.0 contains no file shelf/other.txt"):
        file_from_wheel(GOOD[0], "shelf/other.txt", GOOD[2])


def changed(content):
    return content[:46] + b"x" * 10 + content[56:]  # after the 44 bytes of the first file's header


@pytest.mark.parametrize(
    ("compression", "damage"),
    [
        *((zipfile.ZIP_DEFLATED, lambda content, n=n: content[:n]) for n in (0, 100, 300)),
        *((compression, changed) for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)),
    ],
)
def test_wheel_that_is_cut_or_changed_is_an_error(tmp_path, monkeypatch, compression, damage):
    wheel = write_wheel(tmp_path, compression)
    wheel.write_bytes(damage(wheel.read_bytes()))
    monkeypatch.setattr(downloads, "_downloaded", lambda requirement, folder: wheel)
    with pytest.raises(DataError, match=r"the wheel of the package shelf==1.0 is damaged"):
        file_from_wheel(*GOOD)
    assert not kept()


def without_pip(monkeypatch):
    find_spec = importlib.util.find_spec

    def found(name, *args):
        return None if name == "pip" else find_spec(name, *args)

    monkeypatch.setattr(importlib.util, "find_spec", found)


def test_without_pip_uv_unpacks_the_wheel(tmp_path, monkeypatch):
    without_pip(monkeypatch)
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    # Stands in for `uv pip install --python PYTHON --target FOLDER`: unpacks a wheel into the folder.
    uv.write_text('#!/bin/sh\n"$4" -m zipfile -e "$WHEEL" "$6"\n')
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", str(uv.parent), prepend=":")
    monkeypatch.setenv("WHEEL", str(write_wheel(tmp_path)))
    assert file_from_wheel(*GOOD).read_bytes() == CONTENT


def test_without_pip_and_uv_the_error_names_both(tmp_path, monkeypatch):
    without_pip(monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="neither pip nor uv is installed"):
        file_from_wheel(*GOOD)


@pytest.mark.parametrize(("is_offline", "is_local"), [(True, False), (False, True)])
def test_nobody_asks_where_the_hub_is_for_a_folder_or_offline(monkeypatch, tmp_path, is_offline, is_local):
    from huggingface_hub import constants

    monkeypatch.setattr(downloads, "_resolves", lambda host: pytest.fail("asked"))
    monkeypatch.setattr(downloads.urllib.request, "getproxies", dict)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_offline)
    monkeypatch.delitem(sys.modules, "datasets.config", raising=False)
    with downloads.cache_only_without_network(str(tmp_path) if is_local else "some/model"):
        assert constants.HF_HUB_OFFLINE is is_offline
