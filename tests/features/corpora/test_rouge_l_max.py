"""ROUGE-L against the best reference, by hand and against py-rouge."""

import pytest

from rl4dialog import catalog
from rl4dialog.core.errors import DataError
from rl4dialog.features.corpora.rouge_l_max import RougeLMaxMetric


def score(text, references, **args):
    scores, corpus = RougeLMaxMetric(**args).compute([""], [text], [references])["lexical/rouge_l_max"]
    assert scores == [corpus]
    return corpus


def test_rouge_l_max_by_hand():
    # The common subsequence "the cat sat" has 3 of 4 and 3 of 6 words.
    assert score("the cat sat down", ["a dog", "the black cat sat right there"]) == pytest.approx(2 * 0.75 * 0.5 / 1.25)
    assert score("cats walking", ["cat walks"]) == 1.0
    assert score("cats walking", ["cat walks"], stemming=False) == 0.0
    assert score("a b c d", ["a b"], alpha=1.0) == pytest.approx(0.5)
    assert score("a b c d", ["a b"], alpha=0.0) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("text", "reference", "expected"),
    [
        ("the cat sat on the mat", "a cat was on the mat today", (0.6153846153846153, 0.6675250679467961)),
        ("the dog walked home quickly", "a dog walked to the home", (0.5454545454545454, 0.6037844108173039)),
    ],
)
def test_weight_factor_is_py_rouges(text, reference, expected):
    found = [score(text, [reference], weight_factor=factor) for factor in (1.0, 1.2)]
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("args", [{"length_limit": 2, "length_limit_type": "words"}, {"length_limit": 3}], ids=str)
def test_limit_cuts_text_and_references(args):
    assert score("a b c d", ["a b x y z"], **args) == 1.0
    assert score("a b c d", ["a b x y z"], **args, limit_length=False) < 0.5


def test_texts_that_equal_their_reference_and_those_without_one():
    texts = ["a cat sat on the mat", "word", "😀", "テスト", ""]
    assert [score(text, [text]) for text in texts] == pytest.approx([1, 1, 0, 0, 0])
    with pytest.raises(DataError, match="text 0 needs a list of at least one reference"):
        RougeLMaxMetric().compute(["p"], ["a"], [[]])


def test_arguments_without_effect_are_told_with_the_reason():
    for registry in (catalog.MetricRegistry, catalog.RewardFunctionRegistry):
        assert list(registry.without_effect("rouge_l_max", {"max_n": 4, "alpha": 0.5})) == [
            f"{registry.kind} 'rouge_l_max': max_n has no effect: used by py-rouge for other scores"
        ]
