"""Lock, Dockerfiles and compose file agree with each other and with the project."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
LOCKS = ["requirements.lock", "requirements-cuda.lock"]


def pins(text):
    """Version of each package that a text pins."""
    found = re.findall(r"^([\w.-]+)==([^\s;]+)", text, flags=re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


@pytest.mark.parametrize("name", LOCKS)
def test_lock_has_hashes_for_everything_and_names_no_host(name):
    text = (ROOT / "docker" / name).read_text(encoding="utf-8")
    blocks = re.split(r"\n(?=\S)", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    assert len(blocks) > 100
    for block in blocks:
        assert re.match(r"[\w.\[\]-]+==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", block), block.splitlines()[0]
    assert "://" not in text and "--find-links" not in text and "index-url" not in text


@pytest.mark.parametrize("name", LOCKS)
def test_lock_has_the_versions_of_the_constraints(name):
    locked = pins((ROOT / "docker" / name).read_text(encoding="utf-8"))
    wanted = pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    assert locked["torch"] == wanted["torch"] + ("+cpu" if name == "requirements.lock" else "")
    shared = (locked.keys() & wanted.keys()) - {"torch"}
    assert len(shared) > 25
    assert {package: locked[package] for package in shared} == {package: wanted[package] for package in shared}


@pytest.mark.parametrize("name", LOCKS)
def test_lock_has_everything_that_the_project_requires(name):
    locked = pins((ROOT / "docker" / name).read_text(encoding="utf-8"))
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    (required,) = re.findall(r"install_requires=\[(.*?)\]", setup, flags=re.DOTALL)
    (wandb,) = re.findall(r"^WANDB = \[(.*?)\]", setup, flags=re.MULTILINE)
    (tests,) = re.findall(r"^TEST = \[(.*?)^\]", setup, flags=re.DOTALL | re.MULTILINE)
    names = {text.replace("_", "-") for text in re.findall(r'"([\w-]+)>=', required + tests + wandb)}
    assert len(names) > 25 and names <= locked.keys()


def test_both_dockerfiles_have_the_same_base_and_program():
    cpu, cuda = ((ROOT / name).read_text(encoding="utf-8") for name in ("Dockerfile", "docker/Dockerfile.cuda"))
    for pattern in (r"^ARG BASE_IMAGE=.*", r"^FROM dependencies AS program\n(?:.+\n)+", r"^COPY --from=.*/opt/venv$"):
        (first,) = re.findall(pattern, cpu, flags=re.MULTILINE)
        assert re.findall(pattern, cuda, flags=re.MULTILINE) == [first]


def test_compose_starts_the_entry_point_and_mounts_both_volumes():
    compose = yaml.safe_load((ROOT / "docker" / "compose.yml").read_text(encoding="utf-8"))
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (volumes,) = re.findall(r"^VOLUME (.*)", dockerfile, flags=re.MULTILINE)
    (base,) = re.findall(r"^ARG BASE_IMAGE=(.*)", dockerfile, flags=re.MULTILINE)
    for service in compose["services"].values():
        assert [text.rsplit(":", 1)[1] for text in service["volumes"]] == yaml.safe_load(volumes)
        dockerfile_name = service["build"].get("dockerfile", "Dockerfile")
        assert (ROOT / "docker" / service["build"]["context"] / dockerfile_name).is_file()
        assert base in service["build"].get("args", {}).get("BASE_IMAGE", base)
    assert compose["services"]["train"]["entrypoint"][1] == "/app/docker/entrypoint.py"


@pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="needs the repository that the project is in"
)
def test_image_holds_every_tracked_file_but_dot_files():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    top = {name.split("/")[0] for name in listed.split("\0") if name and not name.startswith(".")}
    kept = re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(kept) >= top


def test_names_of_wordnets_files_are_numbered_as_nltk_reads_them():
    rows = [line.split("\t") for line in (ROOT / "docker" / "lexnames").read_text(encoding="utf-8").splitlines()]
    assert [int(number) for number, _, _ in rows] == list(range(45))
    parts = {"noun": "1", "verb": "2", "adj": "3", "adv": "4"}
    assert all(parts[name.split(".")[0]] == part for _, name, part in rows)
