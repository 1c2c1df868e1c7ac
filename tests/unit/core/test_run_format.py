"""Stored configs of another installation: keys of generation backends that are missing here."""

import pytest
from runs import make_config

from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.run_format import current_config, numbered


def test_keys_of_a_missing_backend_are_left_out_and_a_run_with_it_is_refused(tmp_path):
    config = parse_config(make_config(tmp_path), "test")
    stored = numbered(config.model_dump(mode="json"))
    stored["generation"]["of_missing"] = 0.3
    assert parse_config(current_config(stored, tmp_path), "test") == config
    with pytest.raises(ConfigError, match=r"unknown key 'generation\.of_missing'"):
        parse_config({key: stored[key] for key in stored if key != "format"}, "test")
    stored["generation"]["backend"] = "missing"
    with pytest.raises(ConfigError, match=r"test: generation\.backend: input should be 'auto', .*, got 'missing'$"):
        parse_config(current_config(stored, tmp_path), "test")
