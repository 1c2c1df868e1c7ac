"""CIDEr by hand, SPICE with a stand-in for its program, and their sum."""

import subprocess
import sys

import pytest

from rl4dialog.core.errors import DataError, ModelError
from rl4dialog.features.corpora.captions import CiderMetric, SpiceMetric, SpiderMetric, cider_scores

TEXTS = ["a cat sat on the mat", "two dogs run home fast", "", "the the the cat"]
REFERENCES = [
    ["the cat sat on a mat", "a cat is on the mat"],
    ["two dogs run home", "dogs run fast"],
    ["x"],
    ["the cat"],
]


def test_scores_are_those_of_the_reference_implementation():
    words = [[reference.split() for reference in references] for references in REFERENCES]
    expected = [4.139548366768863, 5.382429484908878, 0.0, 1.6311870158434134]
    assert cider_scores([text.split() for text in TEXTS], words) == pytest.approx(expected, abs=1e-9)
    scores, corpus = CiderMetric().compute(["same prompt"] * 4, TEXTS, REFERENCES)["lexical/cider"]
    assert scores == pytest.approx(expected, abs=1e-9)
    assert corpus == pytest.approx(sum(expected) / 4)


def test_cider_refuses_what_cannot_be_measured():
    metric = CiderMetric()
    with pytest.raises(ValueError, match="at least one text"):
        metric.compute([], [], [])
    with pytest.raises(ValueError, match="2 generated texts, but another input has length 1"):
        metric.compute(["p", "p"], ["a", "b"], [["a"]])
    for references in ([], "text"):
        with pytest.raises(DataError, match="text 1 needs a list of at least one reference"):
            metric.compute(["p", "p"], ["a", "b"], [["a"], references])


@pytest.mark.parametrize("text", ["a cat sat on the mat", "word", "\U0001f600", "\u30c6\u30b9\u30c8", ""])
def test_cider_of_a_single_text_is_0(text):
    assert CiderMetric().compute([""], [text], [[text]])["lexical/cider"][1] == 0


def test_lexical_metrics_do_not_import_torch():
    code = "import sys; from rl4dialog.features.corpora import captions, tables; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_scores_come_back_in_order_and_blank_texts_score_0(spice_folder):
    texts, references = ["a cat", "", "the dog's", "no"], [["cat.", "one"], ["x"], ["", "the dog"], ["yes"]]
    metric = SpiceMetric(str(spice_folder), str(spice_folder / "java"))
    scores, corpus = metric.compute(["same"] * 4, texts, references)["lexical/spice"]
    assert scores == pytest.approx([1 / 2, 0.0, 2 / 3, 0.0])
    assert corpus == pytest.approx(7 / 24)
    assert metric.compute([""], [""], [["x"]])["lexical/spice"] == ([0.0], 0.0)


def test_program_is_told_memory_and_cache(spice_folder):
    cache = spice_folder / "parsed" / "here"
    metric = SpiceMetric(str(spice_folder), str(spice_folder / "java"), memory="2G", cache_path=str(cache))
    metric.compute([""], ["a cat"], [["cat"]])
    seen = (spice_folder / "seen.json").read_text()
    assert '"-Xmx2G"' in seen and f'"-cache", "{cache}"' in seen and cache.is_dir()


def test_failing_program_is_quoted(spice_folder):
    (spice_folder / "java").write_text("#!/bin/sh\necho out of memory >&2\nexit 3\n")
    metric = SpiceMetric(str(spice_folder), str(spice_folder / "java"))
    with pytest.raises(
        ModelError, match=r"status 3 and without scores; its output: out of memory\. SPICE was written for Java 8"
    ):
        metric.compute([""], ["a"], [["a"]])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("spice-1.0.jar", r"no spice-1\.0\.jar in .*pip install pycocoevalcap"),
        ("lib/stanford-corenlp-3.6.0-models.jar", r"needs the parser stanford-corenlp-3\.6\.0-models\.jar.*download"),
    ],
)
def test_missing_file_says_where_to_get_it(name, message, spice_folder):
    (spice_folder / name).unlink()
    with pytest.raises(ModelError, match=message):
        SpiceMetric(str(spice_folder), str(spice_folder / "java"))


def test_missing_java_and_package_say_what_to_install(spice_folder, monkeypatch):
    with pytest.raises(ModelError, match=r"the program 'nojava' was not found; run `apt-get install"):
        SpiceMetric(str(spice_folder), "nojava")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"run `pip install pycocoevalcap`, or set spice_path"):
        SpiceMetric()


SPIDER_TEXTS, SPIDER_REFERENCES = ["a cat sat", "dogs run fast"], [["a cat sat down"], ["dogs run"]]


@pytest.mark.parametrize(("spice", "cider"), [(0.5, 0.5), (0.25, 2.0), (1.0, 0.0), (0.0, 1.0)])
def test_score_is_the_weighted_sum(spice_folder, spice, cider):
    place = {"spice_path": str(spice_folder), "java": str(spice_folder / "java")}
    (spice_scores, _), (cider_scores, _) = (
        next(iter(metric.compute(["", ""], SPIDER_TEXTS, SPIDER_REFERENCES).values()))
        for metric in (SpiceMetric(**place), CiderMetric())
    )
    metric = SpiderMetric(spice, cider, **place)
    scores, corpus = metric.compute(["", ""], SPIDER_TEXTS, SPIDER_REFERENCES)["lexical/spider"]
    assert scores == pytest.approx([spice * s + cider * c for s, c in zip(spice_scores, cider_scores, strict=True)])
    assert corpus == pytest.approx(sum(scores) / 2)
