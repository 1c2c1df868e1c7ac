"""Metrics against numbers that others published or computed; ``metric_values.json`` names its sources."""

import json
import os
from pathlib import Path

import pytest

from rl4dialog.catalog import MetricRegistry
from rl4dialog.scores import meteor

VALUES = json.loads((Path(__file__).parent / "metric_values.json").read_text(encoding="utf-8"))
TOTTO = Path(os.environ.get("RL4DIALOG_TEST_DATA", "not given")) / "totto_sample"


def test_every_source_is_named_and_used():
    assert {case["source"] for case in VALUES["cases"]} == set(VALUES["sources"])


@pytest.mark.parametrize("case", VALUES["cases"], ids=lambda case: f"{case['metric']}-{case['source']}")
def test_metric_gives_the_number_of_the_source(case):
    texts, expected = case["texts"], case["expected"]
    if "lexical/meteor" in expected and not meteor._DEBIAN_WORDNET.is_dir():
        pytest.skip("needs Debian's wordnet-base")
    found = MetricRegistry.get(case["metric"], case["args"]).compute([""] * len(texts), texts, case["references"])
    for key, value in expected.items():
        scores, corpus = found[key]
        # A list has a number for each text.
        assert (scores if isinstance(value, list) else corpus) == pytest.approx(value, rel=0, abs=case["tolerance"])


VECTORS = """the 1.76 0.4 0.98 2.24
train 1.87 -0.98 0.95 -0.15
was -0.1 0.41 0.14 1.45
late 0.76 0.12 0.44 0.33
so 1.49 -0.21 0.31 -0.85
i -2.55 0.65 0.86 -0.74
missed 2.27 -1.45 0.05 -0.19
my 1.53 1.47 0.15 0.38
we 1.23 1.2 -0.39 -0.3
can -1.05 -1.42 -1.71 1.95
talk -0.51 -0.44 -1.25 0.78
tomorrow -1.61 -0.21 -0.9 0.39
"""


def test_embedding_similarities_are_those_of_nlg_eval(tmp_path):
    """Maluuba/nlg-eval, nlgeval/word2vec/evaluate.py at commit 12829a2: its formulas on the vectors above."""
    (tmp_path / "vectors.txt").write_text(VECTORS)
    texts = ["the train was late", "we can talk tomorrow"]
    references = [["my train was late", "i missed the train"], ["so we talk", "i missed my train"]]
    metric = MetricRegistry.get("embedding_similarity", {"path": str(tmp_path / "vectors.txt")})
    found = metric.compute(["", ""], texts, references)
    expected = {
        "average": [0.9438519698308523, -0.010654857384950586],
        "greedy": [0.9547831143974764, 0.8881832642966633],
        "extrema": [0.6558065352692539, -0.09801163691687537],
    }
    for form, scores in expected.items():
        assert found[f"semantic/embedding_{form}"][0] == pytest.approx(scores, abs=1e-9)


@pytest.mark.skipif(not TOTTO.is_dir(), reason="RL4DIALOG_TEST_DATA names no folder with ToTTo's sample")
def test_scores_of_totto_sample_are_those_of_its_authors():
    """google-research/language, language/totto/README.md: what totto_eval.sh prints for the five samples beside it."""
    records = [json.loads(line) for line in (TOTTO / "dev_sample.jsonl").read_text(encoding="utf-8").splitlines()]
    texts = (TOTTO / "output_sample.txt").read_text(encoding="utf-8").splitlines()
    references = [[each["final_sentence"] for each in record["sentence_annotations"]] for record in records]
    infos = [{"raw_table": record} for record in records]
    found = {}
    for id in ("bleu_totto", "parent_totto"):
        found.update(MetricRegistry.get(id).compute([""] * 5, texts, references, infos))
    published = {
        "overall": (45.5, 0.7611, 0.4383, 0.5334),
        "overlap": (37.2, 0.7140, 0.3135, 0.4134),
        "non_overlap": (58.3, 0.8317, 0.6256, 0.7135),
    }
    for subset, (bleu, *parent) in published.items():
        assert 100 * found[f"table_to_text/bleu_{subset}"][1] == pytest.approx(bleu, abs=0.05)
        ours = [found[f"table_to_text/parent_{subset}{key}"][1] for key in ("/precision", "/recall", "_f_score")]
        assert ours == pytest.approx(parent, abs=5e-5)
