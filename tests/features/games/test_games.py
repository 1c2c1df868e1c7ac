"""The example about Wordle's players, rules that datapool and partner share, and imports."""

import re
import runpy
import shlex
import subprocess
import sys

import pytest
from pages import EXAMPLES, ROOT, commands_of

from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.yaml_loader import load_yaml
from rl4dialog.training.building.components import check_components


def test_players_of_wordle_have_a_line_each(monkeypatch, capsys):
    first, _ = [line for line in commands_of("docs/wordle.md") if "wordle_players.py" in line]
    monkeypatch.setattr("sys.argv", [*shlex.split(first)[1:], "--n", "300"])
    runpy.run_path(str(EXAMPLES / "wordle_players.py"), run_name="__main__")
    found = re.findall(r"^(\w+) +return (-\d\.\d{3}), standard error", capsys.readouterr().out, re.MULTILINE)
    assert [name for name, _ in found] == ["random", "wrong", "repeat", "mixture", "consistent", "info_gain"]
    means = {name: float(mean) for name, mean in found}
    assert means["repeat"] < means["mixture"] < means["consistent"] < means["info_gain"]


def test_rules_of_data_and_partner_must_be_the_same():
    config = load_yaml(ROOT / "task_configs" / "guess_the_picture" / "gpt2_ppo.yml")
    config["datapool"]["args"] = {"yes_no_penalty": "hard"}
    config["env"]["args"]["partner"]["args"] = {"yes_no_penalty": "hard"}
    check_components(parse_config(config, "the test's config"))
    config["datapool"]["args"] = {}
    with pytest.raises(ConfigError, match=r"partner\.args\.yes_no_penalty is hard, but .* is none"):
        check_components(parse_config(config, "the test's config"))
    config["datapool"]["args"] = {"yes_no_penalty": "hard", "max_rounds": 5}
    with pytest.raises(ConfigError, match=r"partner\.args\.max_rounds is 10, but .* is 5"):
        check_components(parse_config(config, "the test's config"))


def test_no_game_loads_torch():
    code = (
        "import pkgutil, importlib, sys, rl4dialog.features.games as games\n"
        "for each in pkgutil.walk_packages(games.__path__, games.__name__ + '.'): importlib.import_module(each.name)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
