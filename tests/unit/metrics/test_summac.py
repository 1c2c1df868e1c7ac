"""SummaC from its definition, with a tiny classifier of random weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.metrics.nli import NliModel
from rl4dialog.metrics.summac import SummaCConvMetric, SummaCZSMetric

LABELS = ["entailment", "neutral", "contradiction"]
SENTENCES = ["A cat sat a mat.", "The dog sat hi hi.", "Hi.", "Mat mat mat dog."]
PROMPTS = ["A cat sat a mat. The dog sat hi hi. Hi.", "The dog sat hi hi.\nA cat sat a mat.", "Hi.", "A cat sat a mat."]
TEXTS = ["Mat mat mat dog. A cat sat a mat.", "Mat mat mat dog.", "Mat mat mat dog.", ""]
# Without the sentence that is too short to count.
PIECES = [([0, 1], [3, 0]), ([1, 0], [3]), ([], [3]), ([0], [])]


@pytest.fixture
def folder(save_classifier: Callable[[Sequence[str]], str]) -> str:
    return save_classifier(LABELS)


def nli_tables(folder: str) -> list[np.ndarray]:
    """Per text the classes' probabilities, one pair at a time. Shape (3, premises, hypotheses)."""
    nli = NliModel(folder, 1, "x")
    tables = []
    for premises, hypotheses in PIECES:
        table = np.zeros((3, max(len(premises), 1), max(len(hypotheses), 1)))
        for i, premise in enumerate(premises):
            for j, hypothesis in enumerate(hypotheses):
                table[:, i, j] = nli.probabilities([SENTENCES[premise]], [SENTENCES[hypothesis]])[0]
        tables.append(table if premises and hypotheses else np.zeros((3, 1, 1)))
    return tables


@pytest.mark.parametrize(
    ("args", "score"),
    [
        ({}, lambda t: (t[0].max(0) - t[1].max(0)).mean()),
        ({"use_con": False}, lambda t: t[0].max(0).mean()),
        ({"use_ent": False, "op1": "min"}, lambda t: (1 - t[1].min(0)).mean()),
        ({"op1": "mean", "op2": "min"}, lambda t: (t[0].mean(0) - t[1].mean(0)).min()),
    ],
)
@pytest.mark.parametrize("batch_size", [2, 64])
def test_zero_shot_score_is_best_premise_of_each_sentence(
    args: dict[str, Any], score: Callable[[np.ndarray], float], batch_size: int, folder: str
) -> None:
    metric = SummaCZSMetric(folder, granularity="sentence", batch_size=batch_size, **args)
    scores, corpus = metric.compute(PROMPTS, TEXTS, [[]] * 4)["consistency/summaczs"]
    expected = [score(table) for table in nli_tables(folder)]
    assert scores == pytest.approx(expected, abs=1e-6)
    assert corpus == pytest.approx(np.mean(expected), abs=1e-6)


@pytest.mark.parametrize(
    ("granularity", "n_pairs"),
    [
        ("sentence", 2 * 2),
        ("2sents", 2 * 2),
        ("paragraph", 2 * 1),
        ("document", 1),
        ("mixed", 4 * 3),
        ("document-sentence", 2),
    ],
)
def test_granularity_says_what_is_compared(granularity: str, n_pairs: int, folder: str, monkeypatch: Any) -> None:
    seen: list[tuple[str, str]] = []

    def probabilities(self: Any, premises: list[str], hypotheses: list[str]) -> np.ndarray:
        seen.extend(zip(premises, hypotheses, strict=True))
        return np.full((len(premises), 3), 1 / 3)

    monkeypatch.setattr(NliModel, "probabilities", probabilities)
    prompt, text = "A cat sat a mat. Yes.\nThe dog sat hi hi.", "A cat sat a mat. The dog sat hi hi."
    SummaCZSMetric(folder, granularity=granularity).compute([prompt], [text], [[]])
    assert len(seen) == n_pairs


def naive_conv(tables: list[np.ndarray], edges: np.ndarray, weights: dict[str, torch.Tensor]) -> list[float]:
    """The layer's score from histograms of entailment, averaged over the sentences."""
    scores = []
    for table in tables:
        outputs = []
        for j in range(table.shape[2]):
            counts = torch.zeros(len(edges) - 1)
            for probability in table[0, :, j]:
                counts[max(int(np.searchsorted(edges, probability, side="right")) - 1, 0)] += 1
            outputs.append(weights["mlp.weight"] @ counts + weights["mlp.bias"])
        mean = torch.stack(outputs).mean()
        logits = weights["layer_final.weight"] @ mean.expand(3) + weights["layer_final.bias"]
        scores.append(float(logits.softmax(0)[1]))
    return scores


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    shapes = {"mlp.weight": (1, 7), "mlp.bias": (1,), "layer_final.weight": (2, 3), "layer_final.bias": (2,)}
    return {name: torch.randn(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("suffix", ["bin", "safetensors"])
def test_conv_score_is_that_of_the_trained_layer(
    suffix: str, folder: str, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    path = tmp_path / f"weights.{suffix}"
    if suffix == "bin":
        torch.save(weights, path)
    else:
        save_file(weights, path)
    metric = SummaCConvMetric(str(path), [folder], bins="even7")
    scores, _ = metric.compute(PROMPTS, TEXTS, [[]] * 4)["consistency/summacconv"]
    assert scores == pytest.approx(naive_conv(nli_tables(folder), np.linspace(0, 1, 8), weights), abs=1e-5)


def test_conv_takes_several_models_labels_and_the_published_bins(folder: str, tmp_path: Path) -> None:
    n_inputs = 2 * 2 * 23
    weights = {"mlp.weight": torch.ones(1, n_inputs), "mlp.bias": torch.zeros(1)}
    # min, mean and max of the outputs, each sentence's being its number of counts: premises, models and labels.
    weights |= {
        "layer_final.weight": torch.tensor([[0.0] * 3, [1, 10, 100]]) / 1000,
        "layer_final.bias": torch.zeros(2),
    }
    torch.save(weights, tmp_path / "weights.bin")
    metric = SummaCConvMetric(str(tmp_path / "weights.bin"), [folder, folder], nli_labels="nc", agg="all")
    scores, _ = metric.compute(PROMPTS, TEXTS, [[]] * 4)["consistency/summacconv"]
    expected = [1 / (1 + np.exp(-0.111 * 4 * n_premises)) for n_premises in (2, 2, 1, 1)]
    assert scores == pytest.approx(expected, abs=1e-6)


def test_missing_weights_say_what_to_download(folder: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"'summaCConv' needs start_file.*summac_conv_vitc_sent_perc_e\.bin"):
        SummaCConvMetric(models=[folder])
    with pytest.raises(ModelError, match=r"nowhere\.bin' cannot be read.*Download https"):
        SummaCConvMetric(str(tmp_path / "nowhere.bin"), [folder])


def test_weights_that_do_not_fit_are_refused(folder: str, weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    torch.save(weights, tmp_path / "weights.bin")
    with pytest.raises(ModelError, match=r"have the shapes .*\(1, 7\).* need .*\(1, 23\)"):
        SummaCConvMetric(str(tmp_path / "weights.bin"), [folder])


@pytest.mark.parametrize(
    ("metric", "args", "message"),
    [
        (
            SummaCZSMetric,
            {"granularity": "sentances"},
            "granularity must be one of .*'sentances'; did you mean 'sentence'",
        ),
        (SummaCZSMetric, {"granularity": "a-b-c"}, "at most two parts"),
        (SummaCZSMetric, {"op1": "sum"}, "op1 must be one of min, mean, max"),
        (SummaCZSMetric, {"use_ent": False, "use_con": False}, "at least one of use_ent and use_con"),
        (SummaCConvMetric, {"nli_labels": "x"}, "letters of 'ecn'"),
        (SummaCConvMetric, {"bins": "even0"}, "bins must be 'percentile', or 'even50'"),
        (SummaCConvMetric, {"agg": "median"}, "agg must be one of"),
    ],
)
def test_wrong_argument_is_refused(metric: Any, args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        metric(**args)


def test_missing_model_is_named() -> None:
    with pytest.raises(ModelError, match=r"'summaCZS': NLI model 'tals/albert-xlarge-vitaminc-mnli' cannot be loaded"):
        SummaCZSMetric("vitc")
