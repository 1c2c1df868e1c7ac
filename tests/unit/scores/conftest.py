"""Stand-ins for what metrics need from outside: also evaluate's scripts."""

import evaluate
import pytest
from stand_ins import (  # noqa: F401 (fixtures)
    bert_config,
    bert_folder,
    bert_tokenizer,
    classifier_model,
    save_classifier,
    save_t5,
    spice_folder,
)

METRIC_SCRIPT = """
import datasets
import evaluate

class Overlap(evaluate.Metric):
    def _info(self):
        text = datasets.Value("string")
        features = {features}
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, {arguments}):
        {body}
"""


@pytest.fixture(autouse=True)
def _isolated_scripts(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(evaluate.config, "HF_MODULES_CACHE", tmp_path_factory.getbasetemp() / "hf_modules")


@pytest.fixture
def save_metric(tmp_path):

    def save(features, arguments, body):
        path = tmp_path / "overlap" / "overlap.py"
        path.parent.mkdir()
        path.write_text(METRIC_SCRIPT.format(features=features, arguments=arguments, body=body), encoding="utf-8")
        return str(path)

    return save
