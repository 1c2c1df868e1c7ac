"""Values of keys to try."""

import pytest

from rl4dialog.core.errors import ConfigError
from rl4dialog.features.experiments.sweep.space import (
    Dimension,
    check_values,
    combinations,
    extremes,
    parse_grid,
    parse_search,
    shown_values,
)


def test_search_has_ranges_and_choices():
    assert parse_search(["a.b=log:1e-5:1e-3", "c=int:1:4", "d=float:-0.5:1", "e=choice:0.1,x,[1, 2],null"]) == [
        Dimension("a.b", "log", ("1e-05", "0.001")),
        Dimension("c", "int", ("1", "4")),
        Dimension("d", "float", ("-0.5", "1.0")),
        Dimension("e", "choice", ("0.1", '"x"', "[1, 2]", "null")),
    ]


def test_grid_combines_all_values():
    assert combinations(parse_grid(["a=1,2", "b=x"])) == [{"a": "1", "b": '"x"'}, {"a": "2", "b": '"x"'}]
    assert combinations(parse_search(["a=int:1:3"])) == [{"a": "1"}, {"a": "2"}, {"a": "3"}]

    found = extremes(parse_search(["a=int:1:9", "b=choice:x,y,z"]))
    assert found == [{"a": "1", "b": '"x"'}, {"a": "9", "b": '"y"'}, {"a": "9", "b": '"z"'}]
    assert shown_values({"a": "4.6671206943543276e-05", "b": '"x"', "c": "12"}) == ["4.667e-05", '"x"', "12"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "is not of the form KEY=log:1e-5:1e-3"),
        ("a=", "is not of the form"),
        ("a=lgo:1:2", "'lgo' is none of choice, int, float, log; did you mean 'log'"),
        ("a=log:1e-3:1e-5", "range is reversed or empty; write log:1e-05:0.001"),
        ("a=int:4:4", "range is reversed or empty"),
        ("a=int:1:2.5", "int needs two whole numbers, as in int:1:4"),
        ("a=float:1", "float needs two numbers"),
        ("a=float:0:inf", "float needs two numbers"),
        ("a=log:0:1", "a logarithmic range must be above 0"),
        ("a=choice:", "has no values"),
        ("a=choice:1,1", "contains a value twice"),
        ("a=choice:[1", "is not a list of YAML values"),
        ("seed=int:0:3", "a seed is nothing to select; --seeds"),
    ],
)
def test_malformed_search_is_told(text, message):
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        parse_search([text])


def test_repeated_key_and_numbers_in_a_grid_are_told():
    with pytest.raises(ConfigError, match="--grid contains a twice"):
        parse_grid(["a=1", "a=2"])
    with pytest.raises(ConfigError, match="--sampler grid: a is a range of numbers; list values with choice"):
        combinations(parse_search(["a=float:0:1"]))


def test_invalid_values_are_told_before_the_first_run():
    def read(overrides):
        if "a=-1" in overrides:
            raise ConfigError("a: must be above 0")

    check_values(read, [{"a": "1"}])
    with pytest.raises(ConfigError, match="with a=-1 b=2: a: must be above 0"):
        check_values(read, [{"a": "1"}, {"a": "-1", "b": "2"}])
