"""A feature can be deleted: the rest imports, explains itself, and passes its tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from without_feature import copy_without

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.features import all_ids, features

# Of the core's tests, those that look at everything there is; `make test` in a copy runs them all.
TESTS = [
    *("tests/test_layering.py", "tests/test_catalog.py", "tests/test_task_configs.py", "tests/unit/core"),
    *("tests/end_to_end/test_readme.py", "tests/end_to_end/test_run_formats.py"),
]
COMMAND = "import sys; from rl4dialog.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", features())
def test_rest_is_green_without_a_feature(name: str, tmp_path: Path) -> None:
    copy_without(name, tmp_path)
    assert not (tmp_path / "rl4dialog" / "features" / name).exists()

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        places = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(tmp_path / "scripts")])}
        command = (sys.executable, *arguments)
        return subprocess.run(command, cwd=tmp_path, env={**os.environ, **places}, capture_output=True, text=True)

    printed = run("-c", COMMAND, "--help", "--all")
    assert printed.returncode == 0, printed.stderr
    commands = [command for group in features()[name].command_texts.values() for command in group]
    assert not any(re.search(rf"^ +{command}\s", printed.stdout, re.MULTILINE) for command in commands)
    known = Counter(id for ids in all_ids().values() for id in ids)
    for id in [id for ids in features()[name].ids.values() for id in ids if known[id] == 1][:2]:
        unknown = run("-c", COMMAND, "list", id)
        assert unknown.returncode == 2 and id in unknown.stderr and "Traceback" not in unknown.stderr
    tested = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long", *TESTS)
    assert tested.returncode == 0, tested.stdout[-5000:]


def test_only_features_are_left_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'copora' is no feature; features are corpora, "):
        copy_without("copora", tmp_path / "copy")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        copy_without("corpora", tmp_path)
