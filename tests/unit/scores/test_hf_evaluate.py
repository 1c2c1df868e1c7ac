"""Scripts of the evaluate library."""

import pytest

from rl4dialog.core.errors import ConfigError, DataError, ModelError
from rl4dialog.scores.hf_evaluate import HfEvaluateMetric

TEXTS, REFERENCES = ["a b", "c", "é😀"], [["a b", "x"], ["d", "c"], ["é😀"]]


def compute(path, **args):
    return HfEvaluateMetric(path, **args).compute(["p", "q", "r"], TEXTS, REFERENCES)


def test_numbers_become_corpus_and_sentence_scores(save_metric):
    features = 'datasets.Features({"predictions": text, "references": datasets.Sequence(text)})'
    body = (
        "each = [float(p in r) for p, r in zip(predictions, references)];"
        'return {"each": each, "n": len(each) * scale, "version": "1.0", "bins": [1, 2]}'
    )
    path = save_metric(features, "predictions, references, scale=1", body)
    found = compute(path, compute_args={"scale": 10})
    assert found == {"hf_evaluate/overlap/each": ([1.0, 1.0, 1.0], 1.0), "hf_evaluate/overlap/n": (None, 30.0)}


SEVERAL = 'datasets.Features({"predictions": text, "references": datasets.Sequence(text)})'
ONE = 'datasets.Features({"predictions": text, "references": text})'
SOURCES = 'datasets.Features({"predictions": text, "sources": text})'


@pytest.mark.parametrize(
    ("features", "arguments", "body", "expected"),
    [
        (ONE, "predictions, references", "sum(map(str.__eq__, predictions, references))", 2.0),  # with the first one
        (f"[{SEVERAL}, {ONE}]", "predictions, references", "sum(map(len, references))", 5.0),
        (SOURCES, "predictions, sources", 'sources.index("q")', 1.0),
    ],
)
def test_metric_gets_the_inputs_that_it_declares(save_metric, features, arguments, body, expected):
    path = save_metric(features, arguments, f'return {{"n": {body}}}')
    assert compute(path) == {"hf_evaluate/overlap/n": (None, expected)}


def test_other_inputs_are_refused(save_metric):
    path = save_metric('datasets.Features({"predictions": text, "images": text})', "predictions, images", "pass")
    with pytest.raises(ConfigError, match="needs the inputs images, predictions; only metrics of predictions"):
        compute(path)


@pytest.mark.parametrize(
    ("body", "message"), [("1 / 0", "failed: ZeroDivisionError"), ('return {"a": "b"}', "no number")]
)
def test_failing_metric_is_named(save_metric, body, message):
    path = save_metric('datasets.Features({"predictions": text})', "predictions", body)
    with pytest.raises(DataError, match=rf"'hf_evaluate' \(.*overlap\.py\).*{message}"):
        compute(path)


def test_missing_metric_says_what_to_give():
    with pytest.raises(ModelError, match=r"\(nonexistent_metric\) cannot be loaded.*path of the metric's script"):
        HfEvaluateMetric("nonexistent_metric")
