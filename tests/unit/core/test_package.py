import subprocess
import sys

import pytest

import rl4dialog


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, rl4dialog, rl4dialog.cli; rl4dialog.RewardFunctionRegistry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        _ = rl4dialog.nothing
