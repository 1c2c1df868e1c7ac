import pytest

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.yaml_loader import apply_overrides, expand_variants, flatten, load_yaml, parse_yaml


def test_scalars_are_read_as_yaml_1_2_says():
    numbers = {"1e-6": 1e-6, "1E6": 1e6, ".5e-3": 0.0005, "2": 2, "2.5": 2.5, "0": 0, "-1_000": -1000, "0x1f": 31}
    texts = {text: text for text in ("on", "1:30:00", "010", "2026-01-02", "2026-13-45")}
    for text, value in {**numbers, **texts, "True": True, "~": None}.items():
        loaded = parse_yaml(f"key: {text}", "test")["key"]
        assert loaded == value and type(loaded) is type(value), text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "line 3, column 1: duplicate key 'a'"),
        ("a:\n  b: [1, 2", "line 2"),
        ("a: 1\n\tb: 2", "line 2, column 1"),
        ("", "it contains nothing"),
        ("- 1", "it contains a list"),
        ("a:\n  ? [b, c]\n  : d", "line 2, column 5: a key must be a single word"),
        ("a: " + "9" * 5000, "line 1, column 4: not a valid int"),
        ("a: 0x" + "f" * 5000, "more than 64 bits"),
        ("[" * 5000, "more than 50 nested blocks"),
        ("a: &a [*a]", "more than 50 nested blocks"),
    ],
)
def test_broken_yaml_is_told_with_line_and_column(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_yaml(text, "x.yml")


def test_missing_file_a_folder_and_binary_are_told(tmp_path):
    (tmp_path / "near.yml").write_text("a: 1")
    with pytest.raises(ConfigError, match=r"does not exist; other files there: .*near\.yml"):
        load_yaml(tmp_path / "far.yml")
    with pytest.raises(ConfigError, match="is a folder"):
        load_yaml(tmp_path)
    (tmp_path / "binary.yml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_yaml(tmp_path / "binary.yml")


def test_anchors_and_merge_keys_work_within_limits():
    assert parse_yaml("a: &x {b: 1, c: 2}\nd:\n  <<: *x\n  c: 3", "t")["d"] == {"b": 1, "c": 3}
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40))]
    with pytest.raises(ConfigError, match="more than 100,000 values"):
        parse_yaml("\n".join(lines), "x.yml")


def test_overrides_reach_into_mappings_and_lists():
    config = {"alg": {"args": {"n": 1}}, "list": [{"w": 1}]}
    apply_overrides(config, ["alg.args.n=3", "list[0].w=1e-3", "new.key=[a, b]", "list[1].w=2", "list[2]=x"])
    assert config["alg"] == {"args": {"n": 3}} and config["new"] == {"key": ["a", "b"]}
    assert config["list"] == [{"w": 0.001}, {"w": 2}, "x"]


@pytest.mark.parametrize(
    "override", ["no_value", "=3", "list[4].w=1", "alg.x.y=1", ".".join("a" * 1000) + "=1", f"list[{'9' * 5000}]=1"]
)
def test_override_that_leads_nowhere_is_named(override):
    with pytest.raises(ConfigError, match="--set"):
        apply_overrides({"list": [1], "alg": {"x": 3}}, [override])


def test_variants_are_the_product_of_expand_blocks_and_are_not_listed():
    config = {"a": {"expand": True, "values": [1, 2]}, "b": [{"expand": True, "values": ["x", "y"]}]}
    assert expand_variants(config) == ({"a": 1, "b": ["x"]}, 4)
    assert expand_variants(config, 3) == ({"a": 2, "b": ["y"]}, 4)
    with pytest.raises(ConfigError, match="--variant 4 does not exist: the config has 4"):
        expand_variants(config, 4)
    config = [{"expand": True, "values": list(range(8))} for _ in range(40)]
    assert expand_variants(config, 8**40 - 2)[0] == [7] * 39 + [6]


def test_override_that_is_not_a_value_names_the_reason():
    with pytest.raises(ConfigError, match=r"--set .*'9{20}' is not a YAML value: .*it has more than 64 bits"):
        apply_overrides({}, ["seed=" + "9" * 20])


def test_flatten_joins_keys_with_dots_and_keeps_lists_and_empty_blocks():
    assert flatten({"a": {"b": 1, "c": {}}, "d": [{"e": 2}]}) == {"a.b": 1, "a.c": {}, "d": [{"e": 2}]}
