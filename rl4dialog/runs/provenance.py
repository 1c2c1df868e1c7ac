"""The provenance of a run: versions, code, data, weights, command and machine, in ``provenance.json``.

The file is written at the start of the command, and again after data and weights are loaded and hashed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import rl4dialog
from rl4dialog.core.cache import content_hash
from rl4dialog.core.files import json_object, to_plain, write_text
from rl4dialog.core.untrusted import redacted, without_secrets
from rl4dialog.core.yaml_loader import differing, flatten
from rl4dialog.data.pool import Data
from rl4dialog.runs.run_folder import DIFF_FILE, PROVENANCE_FILE, RunFolder
from rl4dialog.text.chat_template import parse_time, start_time

_PACKAGES = (
    *("torch", "transformers", "tokenizers", "stable-baselines3", "sb3-contrib", "gymnasium", "numpy", "datasets"),
    *("accelerate", "safetensors", "pydantic", "huggingface-hub", "peft", "bitsandbytes", "vllm"),
)
_TIMEOUT_S = 20
MAX_DIFF_BYTES = 1_000_000
_MAX_UNTRACKED = 100
# Tracked files whose changes are left out of the diff, except code: by convention, they hold keys and passwords.
_SECRET_FILES = (
    *("*.env", ".env*", "*.env.*", "*secret*", "*credential*", "*password*", "*token", "*token*.txt", "*api_key*"),
    *("*apikey*", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "id_rsa*", "id_ecdsa*", "id_ed25519*"),
    *(".netrc", "_netrc", ".pypirc", ".npmrc", ".htpasswd", "kubeconfig"),
)
_logger = logging.getLogger(__name__)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def record_start(
    run_folder: RunFolder, config_path: str | Path, argv: Sequence[str], seed: int, imports: Iterable[str]
) -> None:
    """Record what is known at a run's start, after its imports; a resumed run is added to ``resumed``."""
    path = Path(config_path).absolute()
    code, diffs = _code_state(path.parent)
    record = {
        "start_time": datetime.now(UTC).isoformat(timespec="seconds"),
        "prompt_time": start_time().isoformat(),
        "command": shlex.join(["rl4dialog", *argv]),
        "working_directory": os.getcwd(),
        "config_path": str(path),
        "seed": seed,
        "versions": package_versions(),
        "git": code,
        "imports": import_hashes(imports),
        "hardware": hardware(),
    }
    record, earlier = without_secrets(record), read_provenance(run_folder.root)
    if earlier:
        record = {**earlier, "resumed": [*earlier.get("resumed", []), record]}
    elif diffs:
        write_text(run_folder.path(DIFF_FILE), redacted(diffs))
    run_folder.write_json(PROVENANCE_FILE, record)


def record_contents(run_folder: RunFolder, data: Data, model_hash: str) -> None:
    """Record hashes of the samples, and of the weights after a warm start, unless they are already recorded."""
    record = read_provenance(run_folder.root)
    if "data_hash" in record:
        return
    record["data_hash"] = data_hashes(data)
    record["turn_marker"], record["persona"] = data.turn_marker, data.persona
    record["model_hash"] = model_hash
    run_folder.write_json(PROVENANCE_FILE, record)


def changed_splits(run_folder: RunFolder, data: Data) -> list[str]:
    """Return the splits whose samples differ, in content or order, from those that :func:`record_contents` recorded."""
    recorded = read_provenance(run_folder.root).get("data_hash") or {}
    return [split for split, found in data_hashes(data).items() if recorded.get(split) not in (None, found)]


def data_hashes(data: Data) -> dict[str, str]:
    """Hashes of the splits' samples, their order included."""
    return {split: _samples_hash(pool) for split, pool in data.pools.items()}


def import_hashes(imports: Iterable[str]) -> dict[str, str | None]:
    """Hashes of the source files of a config's ``imports``."""
    return {Path(name).name: _hash_of_import(name) for name in imports}


def read_provenance(run: str | Path) -> dict[str, Any]:
    """Return a run's provenance; empty if the file is missing or unreadable."""
    with suppress(OSError, ValueError):
        return json_object((Path(run) / PROVENANCE_FILE).read_text(encoding="utf-8"))
    return {}


def recorded_start(run: str | Path | None) -> datetime | None:
    """Return the time that a run's chat template reads, which once was that of its start."""
    record = read_provenance(run) if run is not None else {}
    recorded = record.get("prompt_time", record.get("start_time"))
    return parse_time(recorded) if isinstance(recorded, str) else None


def config_folder(run: str | Path) -> Path:
    """Folder against which a run's relative ``imports`` are resolved: that of its config file."""
    recorded = read_provenance(run).get("config_path")
    return Path(recorded).parent if isinstance(recorded, str) else Path(run)


def package_versions() -> dict[str, str]:
    """Versions of Python and of installed packages that can affect results."""
    versions = {"python": platform.python_version(), "rl4dialog": rl4dialog.__version__}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def hardware() -> dict[str, Any]:
    """Describe the hardware, without identifying the machine."""
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    cpu, memory_mib = platform.processor() or platform.machine(), None
    with suppress(OSError, ValueError, AttributeError):
        memory_mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu,
        "cpu_cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "memory_mib": memory_mib,
        "gpus": [{"name": gpu.name, "memory_mib": gpu.total_memory // 2**20} for gpu in gpus],
        "cuda": torch.version.cuda,
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
    }


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Compare code, data, weights and machine of two provenances; returns key and both values of each difference."""
    return differing(_comparable(one), _comparable(other))


def _comparable(record: Mapping[str, Any]) -> dict[str, Any]:
    """The comparable part of a record, with what was different when the run was resumed."""
    began = _of_one_start(record)
    flat, resumed = flatten(began), {}
    for i, later in enumerate(record.get("resumed", [])):
        found = flatten(_of_one_start(later)).items()
        resumed[f"resumed[{i}]"] = {k: value for k, value in found if value is not None and value != flat.get(k)}
    return {**began, **{key: changed for key, changed in resumed.items() if changed}}


def _of_one_start(record: Mapping[str, Any]) -> dict[str, Any]:
    """The comparable part of one start; the config's repository counts only through its imports."""
    keys = ("versions", "imports", "hardware", "seed", "data_hash", "model_hash", "turn_marker")
    package = (record.get("git") or {}).get("package") or {}
    code = {key: package.get(key) for key in ("commit", "diff_hash")}
    return {**{key: record.get(key) for key in keys}, "code": code}


def _code_state(folder: Path) -> tuple[dict[str, Any], str]:
    """State of the repositories of the config and of this package, and their uncommitted changes."""
    package = Path(rl4dialog.__file__).parent
    states = {"config": git_state(folder), "package": git_state(package, tracks="__init__.py")}
    described: dict[str, Any] = dict.fromkeys(states)
    diffs: dict[str, str] = {}
    for name, state in states.items():
        if state is not None:
            fields = asdict(state)
            diffs[state.root] = diff = fields.pop("diff")
            described[name] = {**fields, "diff_hash": hashlib.sha256(diff.encode()).hexdigest() if diff else None}
    return described, "".join(diffs.values())


def _hash_of_import(name: str) -> str | None:
    """Hash of the source file of an imported module or file."""
    module = sys.modules.get(Path(name).stem if name.endswith(".py") else name)
    file = getattr(module, "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file and Path(file).is_file() else None


def _samples_hash(pool: Iterable[tuple[Any, float]]) -> str:
    """Hash of all contents and weights of a split's samples."""
    rows = ([s.id, s.prompt_or_input_text, s.references, s.meta_data, weight] for s, weight in pool)
    # The memory address in an object's default repr does not identify its contents.
    return content_hash(_ADDRESS.sub("", json.dumps(to_plain(row), sort_keys=True)) for row in rows)


@dataclass(frozen=True)
class GitState:
    """The commit of a repository, the diff of tracked files up to a limit, and the first untracked files."""

    root: str
    commit: str
    differs: bool
    untracked: list[str]
    diff: str
    diff_is_cut: bool


def git_state(folder: Path, tracks: str | None = None) -> GitState | None:
    """The state of the repository of a folder, if it tracks the file ``tracks`` in it; ``None`` without a commit."""
    if tracks is not None and not _git(folder, "ls-files", "--", tracks):
        return None
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    root = _git(folder, "rev-parse", "--show-toplevel")
    if commit is None or root is None:
        return None
    root = root.strip()
    status = _git(folder, "status", "--porcelain", "--untracked-files=normal", "--", root) or ""
    untracked = [line[3:] for line in status.splitlines() if line.startswith("??")]
    patterns = [f"icase,glob)**/{name}" for name in _SECRET_FILES]
    changed = ["diff", "HEAD", "--name-only", "-z", "--", *(f":({each}" for each in patterns), ":(exclude)*.py"]
    if (found := _git(Path(root), *changed)) is not None:
        names = found.split("\0")[:-1]
        patterns = [f"literal){name}" for name in names]
        if names:
            _logger.warning("changes of files that may hold secrets are not recorded: %s", ", ".join(names))
    command = ["git", "-C", root, "diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv", "--", "."]
    command += [f":(exclude,{each}" for each in patterns]
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # no lock, as someone may be working in the repository
    # Read up to the limit only, because the changes of a repository can be of any size.
    pipe, null, diff = subprocess.PIPE, subprocess.DEVNULL, b""
    with suppress(OSError), subprocess.Popen(command, env=env, stdout=pipe, stderr=null) as process:
        assert process.stdout is not None
        diff = process.stdout.read(MAX_DIFF_BYTES + 1)
        process.kill()
    text, is_cut = diff[:MAX_DIFF_BYTES].decode("utf-8", "replace"), len(diff) > MAX_DIFF_BYTES
    return GitState(root, commit.strip(), bool(status.strip()), untracked[:_MAX_UNTRACKED], text, is_cut)


def _git(folder: Path, *arguments: str) -> str | None:
    """Output of a git command; ``None`` if it fails."""
    command, env = ["git", "-C", str(folder), *arguments], {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(command, env=env, capture_output=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")
