import sys

import pytest
from tiny import make_samples, make_tokenizer

from rl4dialog.catalog import RewardFunctionRegistry
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.plugins import load_imports
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.envs.vectorize import make_vec_env
from rl4dialog.text.end_of_turn import EndOfTurn

REWARD = """
import my_file_numbers
from rl4dialog import RewardFunction, RewardFunctionRegistry

@RewardFunctionRegistry.register("from_a_file")
class FromAFile(RewardFunction):
    def __call__(self, prev_observation, action, current_observation, done, meta_info=None):
        return my_file_numbers.NUMBER
"""


def test_class_from_a_file_works_inside_worker_processes(tmp_path):
    (tmp_path / "my_file_rewards.py").write_text(REWARD)
    (tmp_path / "my_file_numbers.py").write_text("NUMBER = 7.0\n")
    load_imports(["./my_file_rewards.py"], tmp_path)
    load_imports(["./my_file_rewards.py"], tmp_path)
    reward = RewardFunctionRegistry.get("from_a_file")
    tokenizer = make_tokenizer()
    env = make_vec_env(
        {
            "end_of_turn": EndOfTurn(tokenizer, [0]),
            "samples": make_samples(),
            "reward_parts": [RewardPart("file", 1.0, reward)],
            "max_prompt_length": 6,
            "max_episode_length": 2,
            "vocab_size": len(tokenizer),
        },
        1,
        "blocks",
    )
    try:
        env.reset()
        import numpy as np

        assert env.step(np.array([[5, 0]]))[1].tolist() == [14.0]
    finally:
        env.close()


def test_file_imports_its_neighbour_and_no_other_module(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    for folder, number in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "plugin_neighbour.py").write_text(f"NUMBER = {number}\n")
        (tmp_path / folder / f"plugin_{folder}.py").write_text("from plugin_neighbour import NUMBER\n")
    load_imports(["a/plugin_a.py"], tmp_path)
    assert sys.modules["plugin_a"].NUMBER == 1
    with pytest.raises(ConfigError, match=r"imports 'plugin_neighbour' from .*a/plugin_n.*, not from .*b/plugin_neigh"):
        load_imports(["b/plugin_b.py"], tmp_path)


def test_import_that_fails_or_would_end_the_program_is_told_with_its_place(tmp_path):
    (tmp_path / "broken_plugin.py").write_text("x = 1\nraise KeyError('oh')\n")
    with pytest.raises(ConfigError, match=r"broken_plugin.*KeyError.*broken_plugin\.py, line 2"):
        load_imports(["./broken_plugin.py"], tmp_path)
    with pytest.raises(ConfigError, match="does not exist; tried"):
        load_imports(["./none.py"], tmp_path)
    with pytest.raises(ConfigError, match=r"'no_such_package' failed with ModuleNotFoundError[^;]*$"):
        load_imports(["no_such_package"], tmp_path)
    (tmp_path / "ends.py").write_text("raise SystemExit(0)")
    with pytest.raises(ConfigError, match=r"'\./ends\.py' failed with SystemExit: 0 .*ends\.py, line 1"):
        load_imports(["./ends.py"], tmp_path)


@pytest.mark.parametrize(
    ("line", "page"),
    [
        ("from rl4lms.envs.text_generation.reward import RewardFunction", "rl4lms"),
        ("import openrl.rewards", "openrl"),
        ("from convlab.dialog_agent import PipelineAgent", "convlab2"),
        ("import convogym", "convogym"),
    ],
)
def test_file_written_for_another_system_is_told_where_to_read(tmp_path, line, page):
    (tmp_path / f"of_{page}.py").write_text(f"{line}\n")
    (tmp_path / "written_for_another.py").write_text(f"import of_{page}\n")
    match = rf"of_{page}\.py, line 1\); docs/coming_from/{page}\.md says what to import from rl4dialog instead$"
    with pytest.raises(ConfigError, match=match):
        load_imports(["./written_for_another.py"], tmp_path)
