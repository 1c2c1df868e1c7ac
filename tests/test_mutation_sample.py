"""The sample of `make mutants`: always the same, from every module, and hardly another when the code changes."""

import tomllib
from collections import Counter

from scripts.mutants import ROOT, module_of, sample, settings_of, status

NAMES = [
    f"p.{module}.x_f__mutmut_{i}" for module, n in (("a", 500), ("b", 300), ("c", 197), ("d", 3)) for i in range(n)
]


def test_every_module_has_its_share():
    drawn = sample(NAMES, 100, seed=0)
    assert len(set(drawn)) == 100 and set(drawn) <= set(NAMES)
    assert Counter(map(module_of, drawn)) == {"p.a": 50, "p.b": 30, "p.c": 20}
    assert Counter(map(module_of, sample(NAMES, 500, 0))) == {"p.a": 250, "p.b": 150, "p.c": 99, "p.d": 1}
    assert sorted(sample(NAMES, 5000, 0)) == sorted(NAMES)


def test_sample_hangs_on_names_and_seed_alone():
    drawn = sample(NAMES, 100, 0)
    assert sample(NAMES[::-1], 100, 0) == drawn
    assert len({*sample(NAMES, 100, 1)} & {*drawn}) < 40
    changed = [name for name in NAMES if not name.startswith("p.a.x_f__mutmut_1")]
    assert len({*sample(changed, 100, 0)} & {*drawn}) > 60


def test_what_was_not_noticed_counts_as_survived_also_without_any_test():
    codes = {1: "killed", 3: "killed", 0: "survived", 5: "survived", 33: "survived", 36: "timed out", -24: "timed out"}
    assert {code: status(code) for code in codes} == codes
    assert (status(None), status(-11)) == ("not run", "exit code -11")


def test_settings_of_the_other_sample_are_where_mutmut_reads_them():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    tools, others = (tomllib.loads(each)["tool"] for each in (text, settings_of(text, "around")))
    assert others["mutmut"] == tools["mutants"]["around"] and others["mutants"]["core"] == tools["mutmut"]
    for settings in (tools["mutmut"], others["mutmut"]):
        assert all((ROOT / path.rstrip("*")).exists() for path in settings["only_mutate"])
        chosen = settings["pytest_add_cli_args_test_selection"]
        assert all((ROOT / path).exists() for path in chosen if path.startswith("tests/"))
