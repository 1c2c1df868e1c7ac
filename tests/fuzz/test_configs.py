"""Whatever a config file holds, reading it ends at once: in a checked config, or in an error of one paragraph."""

import argparse
import copy
import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from runs import CONFIG

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.commands.options import read_config
from rl4dialog.core.config import RunConfig
from rl4dialog.core.config_blocks import EnvArgs
from rl4dialog.core.errors import RL4DialogError

SHIPPED = sorted((Path(__file__).parents[2] / "task_configs").glob("*/*.yml"))
CONFIGS = [CONFIG] + [yaml.safe_load(path.read_text(encoding="utf-8")) for path in SHIPPED]

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([10**9, -(10**30), 10**400, math.nan, math.inf, -math.inf, 1e-320, -0.0, 0.5]),
    st.floats(),
)
SCALARS = st.one_of(
    st.none(), st.booleans(), NUMBERS, TEXTS, st.sampled_from(["ppo", "1e999", "builtin/", "../..", "~"])
)
JUNK = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.one_of(TEXTS, SCALARS), inner, max_size=3)),
    max_leaves=6,
)

# Values near to those of conversations.
PATTERNS = st.sampled_from(
    ["(", "(?i)bye", "a{99999999999999999999}", "[[:a:]]", "", "\\1", "(?P<x>a)", "(" * 3000, "^$"]
)
RULE = st.fixed_dictionaries(
    {}, optional={key: st.one_of(PATTERNS, SCALARS) for key in ("pattern", "replies", "leaves", "reward", "wards")}
)
PARTNERS = st.fixed_dictionaries(
    {"id": st.one_of(SCALARS, st.sampled_from([*PartnerRegistry.ids()]))},
    optional={
        "args": st.one_of(
            JUNK,
            st.fixed_dictionaries({"rules": st.lists(RULE, max_size=2)}, optional={"otherwise": JUNK, "opening": JUNK}),
            st.fixed_dictionaries(
                {"model_name": SCALARS}, optional={"format": SCALARS, "generation_kwargs": JUNK, "persona_key": SCALARS}
            ),
        )
    },
)
CONVERSATIONS = {
    **dict.fromkeys(EnvArgs.model_fields, JUNK),
    "max_turns": NUMBERS,
    "partner": PARTNERS,
    "partner_replies": st.lists(st.one_of(TEXTS, SCALARS), max_size=3),
    "first_speaker": st.sampled_from(["sample", "agent", "partner", "user", 3]),
    "end_when": st.fixed_dictionaries(
        {},
        optional={"agent": st.one_of(JUNK, st.lists(PATTERNS, max_size=3)), "partner": st.lists(PATTERNS, max_size=3)},
    ),
}
OUTCOMES = st.fixed_dictionaries({}, optional={"weights": JUNK, "per_turn": SCALARS})

# What no change of a valid config leads to.
STRANGE_TEXTS = [
    "",
    "\ufeff",
    "\0",
    "\t\t:",
    "- - - -",
    "? [a, b]\n: c",
    "? {a: b}\n: c",
    "a: &a [*a]",
    "a: &a {b: *a}",
    "a: *nowhere",
    "<<: 3",
    "&a <<: *a",
    "a: !!int x",
    "a: !!float x",
    "a: !!timestamp x",
    "a: !!binary x",
    "a: !!set [1]",
    "a: !!omap {1: 2}",
    "a: !!python/object/apply:os.system [exit]",
    "a: 2026-13-45",
    "a: 1:99:99",
    "seed: 0x",
    "seed: " + "9" * 5000,
    "seed: 0x" + "f" * 5000,
    "[" * 10_000,
    "{a: " * 10_000,
    "a:\n" + "".join(" " * i + "a:\n" for i in range(1, 400)),
    "a: [" + "[" * 90 + "]" * 91,
    "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60)),
    "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}\n" for i in range(1, 60)),
    "expand: true\nvalues: []",
    "seed: {expand: true, values: [" + ", ".join("0" * 1 for _ in range(3)) + "]}",
    "a: [" + ", ".join("{expand: true, values: [1, 2, 3, 4, 5, 6, 7, 8]}" for _ in range(40)) + "]",
    "--- a\n--- b",
    "%YAML 9.9\n---\na: b",
    "x" * 1_000_000,
]


def places(node):
    """Every container of a config with each of its keys."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        yield node, key
        if isinstance(value, (dict, list)):
            yield from places(value)


@st.composite
def changed_configs(draw):
    """A shipped config after one to three changes of its tree."""
    config = copy.deepcopy(draw(st.sampled_from(CONFIGS)))
    for _ in range(draw(st.integers(1, 3))):
        found = list(places(config))
        if not found:
            break
        container, key = draw(st.sampled_from(found))
        change = draw(st.sampled_from(["replace", "delete", "add", "wrap", "rename"]))
        if change == "replace":
            container[key] = draw(JUNK)
        elif change == "delete":
            del container[key]
        elif change == "wrap":
            container[key] = draw(st.sampled_from([[container[key]], {"id": container[key]}, str(container[key])]))
        elif isinstance(container, list):
            container.append(draw(JUNK))
        elif change == "rename":
            container[draw(st.one_of(TEXTS, SCALARS))] = container.pop(key)
        else:
            container[draw(st.one_of(TEXTS, st.sampled_from(["id", "args", "imports", "lora", "warm_start"])))] = draw(
                JUNK
            )
    return config


@st.composite
def malformed_files(draw):
    """A changed config, often damaged as bytes too."""
    data = yaml.safe_dump(draw(changed_configs()), allow_unicode=draw(st.booleans())).encode("utf-8", "replace")
    damage = draw(st.sampled_from(["none", "none", "cut", "insert", "twice", "encoding"]))
    at = draw(st.integers(0, len(data)))
    if damage == "cut":
        return data[:at]
    if damage == "insert":
        return (
            data[:at]
            + draw(st.one_of(st.binary(max_size=4), st.sampled_from([b"\t", b": ", b"&a ", b"*a "])))
            + data[at:]
        )
    if damage == "twice":
        return data + data[at:]
    return (
        data.decode().encode(draw(st.sampled_from(["utf-16", "utf-8-sig", "cp037"])), "replace")
        if damage == "encoding"
        else data
    )


def read(folder, data, overrides, variant=0):
    """Read a config as the commands do; what is wrong must be told in one paragraph."""
    path = folder / "config.yml"
    path.write_bytes(data)
    try:
        config = read_config(argparse.Namespace(config_path=str(path), overrides=overrides, variant=variant))
    except RL4DialogError as error:
        message = str(error)
        assert message.strip() and "\n" not in message and len(message) < 5000, message[:1000]
    else:
        assert isinstance(config, RunConfig)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("configs")


@given(malformed_files())
def test_any_file_is_a_config_or_an_error_of_one_paragraph(folder, data):
    read(folder, data, [])


@given(
    st.one_of(
        st.tuples(
            st.sampled_from(["seed", "alg.args.n_steps", "train_evaluation.metrics[0]", "alg", "x.y[3]", "imports"]),
            st.one_of(TEXTS, SCALARS.map(str), JUNK.map(str), st.sampled_from(STRANGE_TEXTS[:28])),
        ).map("=".join),
        TEXTS,
    ),
    st.integers(-2, 2),
)
def test_any_override_is_a_config_or_an_error_of_one_paragraph(folder, override, variant):
    read(folder, yaml.safe_dump(CONFIG).encode(), [override], variant)


@st.composite
def conversation_configs(draw):
    """A config whose conversations have strange settings."""
    config = copy.deepcopy(CONFIG)
    valid = {"partner": {"id": "rules", "args": {"rules": [{"pattern": "x"}]}}, "max_turns": 2}
    strange = draw(st.lists(st.sampled_from([*CONVERSATIONS]), min_size=1, max_size=3, unique=True))
    config["env"]["args"] |= valid | {key: draw(st.one_of(CONVERSATIONS[key], JUNK)) for key in strange}
    if draw(st.booleans()):
        config["train_evaluation"]["partner"] = draw(st.one_of(PARTNERS, JUNK))
    config["reward_fn"] = draw(
        st.one_of(
            st.fixed_dictionaries({"id": st.sampled_from(["outcome", "partner"]), "args": OUTCOMES}),
            st.just({"id": "length_penalty", "args": {"max_length": 3}}),
        )
    )
    return config


@given(conversation_configs())
def test_any_conversation_is_checked_or_an_error_of_one_paragraph(folder, config):
    read(folder, yaml.safe_dump(config).encode(), [])


@pytest.mark.parametrize("text", STRANGE_TEXTS, ids=range(len(STRANGE_TEXTS)))
def test_strange_text_is_an_error_of_one_paragraph(folder, text):
    path = folder / "strange.yml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RL4DialogError) as caught:
        read_config(argparse.Namespace(config_path=str(path), overrides=[], variant=0))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 5000
