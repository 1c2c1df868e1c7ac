"""SummaC by hand, with a tiny model, and as its package computes it."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from rl4dialog.catalog import MetricRegistry
from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.features.corpora.summac import SummaCConvMetric, SummaCZSMetric
from rl4dialog.scores.classifiers import NliModel

LABELS = ["entailment", "neutral", "contradiction"]
SENTENCES = ["A cat sat a mat.", "The dog sat hi hi.", "Hi.", "Mat mat mat dog."]
PROMPTS = ["A cat sat a mat. The dog sat hi hi. Hi.", "The dog sat hi hi.\nA cat sat a mat.", "Hi.", "A cat sat a mat."]
SUMMAC_TEXTS = ["Mat mat mat dog. A cat sat a mat.", "Mat mat mat dog.", "Mat mat mat dog.", ""]
# Without the sentence that is too short to count.
PIECES = [([0, 1], [3, 0]), ([1, 0], [3]), ([], [3]), ([0], [])]


@pytest.fixture
def folder(save_classifier):
    return save_classifier(LABELS)


def nli_tables(folder):
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
def test_zero_shot_score_is_best_premise_of_each_sentence(args, score, batch_size, folder):
    metric = SummaCZSMetric(folder, granularity="sentence", batch_size=batch_size, **args)
    scores, corpus = metric.compute(PROMPTS, SUMMAC_TEXTS, [[]] * 4)["consistency/summaczs"]
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
def test_granularity_says_what_is_compared(granularity, n_pairs, folder, monkeypatch):
    seen = []

    def probabilities(self, premises, hypotheses):
        seen.extend(zip(premises, hypotheses, strict=True))
        return np.full((len(premises), 3), 1 / 3)

    monkeypatch.setattr(NliModel, "probabilities", probabilities)
    prompt, text = "A cat sat a mat. Yes.\nThe dog sat hi hi.", "A cat sat a mat. The dog sat hi hi."
    SummaCZSMetric(folder, granularity=granularity).compute([prompt], [text], [[]])
    assert len(seen) == n_pairs


def naive_conv(tables, edges, weights):
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
def weights():
    torch.manual_seed(0)
    shapes = {"mlp.weight": (1, 7), "mlp.bias": (1,), "layer_final.weight": (2, 3), "layer_final.bias": (2,)}
    return {name: torch.randn(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("suffix", ["bin", "safetensors"])
def test_conv_score_is_that_of_the_trained_layer(suffix, folder, weights, tmp_path):
    path = tmp_path / f"weights.{suffix}"
    if suffix == "bin":
        torch.save(weights, path)
    else:
        save_file(weights, path)
    metric = SummaCConvMetric(str(path), [folder], bins="even7")
    scores, _ = metric.compute(PROMPTS, SUMMAC_TEXTS, [[]] * 4)["consistency/summacconv"]
    assert scores == pytest.approx(naive_conv(nli_tables(folder), np.linspace(0, 1, 8), weights), abs=1e-5)


def test_conv_takes_several_models_labels_and_the_published_bins(folder, tmp_path):
    n_inputs = 2 * 2 * 23
    weights = {"mlp.weight": torch.ones(1, n_inputs), "mlp.bias": torch.zeros(1)}
    # min, mean and max of the outputs, each sentence's being its number of counts: premises, models and labels.
    weights |= {
        "layer_final.weight": torch.tensor([[0.0] * 3, [1, 10, 100]]) / 1000,
        "layer_final.bias": torch.zeros(2),
    }
    torch.save(weights, tmp_path / "weights.bin")
    metric = SummaCConvMetric(str(tmp_path / "weights.bin"), [folder, folder], nli_labels="nc", agg="all")
    scores, _ = metric.compute(PROMPTS, SUMMAC_TEXTS, [[]] * 4)["consistency/summacconv"]
    expected = [1 / (1 + np.exp(-0.111 * 4 * n_premises)) for n_premises in (2, 2, 1, 1)]
    assert scores == pytest.approx(expected, abs=1e-6)


def test_missing_weights_say_what_to_download(weights, folder, tmp_path):
    with pytest.raises(ModelError, match=r"'summaCConv' needs start_file.*summac_conv_vitc_sent_perc_e\.bin"):
        SummaCConvMetric(models=[folder])
    with pytest.raises(ModelError, match=r"nowhere\.bin' cannot be read.*Download https"):
        SummaCConvMetric(str(tmp_path / "nowhere.bin"), [folder])
    torch.save(weights, tmp_path / "weights.bin")
    with pytest.raises(ModelError, match=r"have the shapes .*\(1, 7\).* need .*\(1, 23\)"):
        SummaCConvMetric(str(tmp_path / "weights.bin"), [folder])


@pytest.mark.parametrize(
    ("id", "args", "error", "message"),
    [
        ("summaCZS", {"granularity": "sentances"}, ConfigError, "granularity: .*sentence.2sents.*'sentances'"),
        ("summaCZS", {"op1": "sum"}, ConfigError, "op1: .*'max', 'mean' or 'min', got 'sum'"),
        ("summaCZS", {"use_ent": False, "use_con": False}, ConfigError, "at least one of use_ent and use_con"),
        ("summaCConv", {"nli_labels": "x"}, ConfigError, "nli_labels: .*ecn.*'x'"),
        ("summaCConv", {"bins": "even0"}, ConfigError, "bins: .*percentile.even.*'even0'"),
        ("summaCZS", {"model_name": "vitc"}, ModelError, "'summaCZS': NLI model 'tals/albert-xlarge-vitaminc-mnli'"),
    ],
)
def test_wrong_argument_or_model_is_refused(id, args, error, message):
    with pytest.raises(error, match=message):
        MetricRegistry.get(id, args)


# Of two sentences with two premises, and of one with one. Shape (pairs, entailment/contradiction/neutral).
NLI = [[0.9, 0.05, 0.05], [0.2, 0.3, 0.5], [0.1, 0.6, 0.3], [0.95, 0.01, 0.04], [0.02, 0.9, 0.08]]
SOURCES = ["The train was late today. We missed the meeting.", "The train was late today."]
SUMMARIES = ["The train was not on time. The meeting was missed.", "The train was on time."]


@pytest.mark.parametrize(
    ("id", "args", "expected"),
    [
        ("summaCZS", {"granularity": "sentence"}, [0.475, -0.88]),
        ("summaCConv", {}, [0.5828539133071899, 0.153066486120224]),
        ("summaCConv", {"agg": "all"}, [0.5578029155731201, 0.153066486120224]),
    ],
)
def test_summac_is_that_of_its_package(id, args, expected, monkeypatch, tmp_path):
    """SummaCZS.image2score and SummaCConv.forward of summac 0.0.4, given the probabilities and weights below."""
    monkeypatch.setattr(NliModel, "__init__", lambda self, *args: None)
    monkeypatch.setattr(NliModel, "probabilities", lambda self, premises, hypotheses: np.array(NLI))
    weights = {"mlp.weight": torch.linspace(-1, 2, 23)[None].round(decimals=3), "mlp.bias": torch.tensor([0.1])}
    weights["layer_final.weight"] = torch.tensor([[-0.5, -0.25, -0.25], [0.5, 0.25, 0.5]])
    weights["layer_final.bias"] = torch.tensor([0.2, -0.1])
    torch.save(weights, tmp_path / "weights.bin")
    start = {"start_file": str(tmp_path / "weights.bin")} if id == "summaCConv" else {}
    found = MetricRegistry.get(id, {**args, **start}).compute(SOURCES, SUMMARIES, [[], []])
    assert found[f"consistency/{id.lower()}"][0] == pytest.approx(expected, abs=1e-6)
