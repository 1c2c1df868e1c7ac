"""Features of the toolkit and of plugins, and modules by their earlier names."""

import importlib
import sys
from importlib import metadata

import pytest

from rl4dialog.core import features as module
from rl4dialog.core.features import Feature, features, merged

PLUGIN = """from rl4dialog.core.features import Feature
FEATURE = Feature("one reward", ids={"reward function": {"of_plugin": "plugin_feature:pay"}})
"""


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    """Installs plugins with these entry points, whose modules are in a folder."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(*values):
        points = [metadata.EntryPoint(value.partition(":")[0], value, module.ENTRY_POINT_GROUP) for value in values]
        monkeypatch.setattr(metadata, "entry_points", lambda group: points)
        features.cache_clear()
        return tmp_path

    yield install
    features.cache_clear()


def test_feature_of_a_plugin_is_found_and_other_plugins_are_not_imported(plugins, caplog):
    folder = plugins("plugin_feature:FEATURE", "plugin_module", "plugin_other:register", "plugin_missing:FEATURE")
    (folder / "plugin_feature.py").write_text(PLUGIN)
    found = features()
    assert {"corpora", "dialogue_acts", "export", "plugin_feature"} == found.keys() and isinstance(
        found["plugin_feature"], Feature
    )
    assert merged({"reward function": {"own": 1}}, found["plugin_feature"].ids)["reward function"] == {
        "own": 1,
        "of_plugin": "plugin_feature:pay",
    }
    assert [record.args[0] for record in caplog.records] == ["plugin_missing"]


def test_module_has_one_object_by_both_names():
    for feature in features().values():
        for old, new in feature.moved.items():
            sys.modules.pop(old, None)
            assert importlib.import_module(old) is importlib.import_module(new)
            assert sys.modules[new].__spec__.name == new
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'rl4dialog\.data\.nothing'"):
        importlib.import_module("rl4dialog.data.nothing")
