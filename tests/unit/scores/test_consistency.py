"""Natural language inference, SummaC and consistency with personas, by hand and with a tiny model."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from rl4dialog.catalog import MetricRegistry
from rl4dialog.core.errors import ConfigError, DataError, ModelError
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn
from rl4dialog.scores.classifiers import SequenceClassifier
from rl4dialog.scores.consistency import NliModel, PersonaConsistencyMetric, SummaCConvMetric, SummaCZSMetric


@pytest.mark.parametrize(
    ("labels", "columns"),
    [
        (["CONTRADICTION", "NEUTRAL", "ENTAILMENT"], [2, 0, 1]),
        (["entailment", "neutral", "contradiction"], [0, 2, 1]),
        (["SUPPORTS", "REFUTES", "NOT ENOUGH INFO"], [0, 1, 2]),
    ],
)
def test_columns_are_entailment_contradiction_neutral(labels, columns, save_classifier):
    folder = save_classifier(labels)
    premises, hypotheses = ["a cat sat", "hi"], ["cat", "a dog sat"]
    found = NliModel(folder, 1, "x").probabilities(premises, hypotheses)
    probabilities = SequenceClassifier.from_pretrained(folder).logits(premises, hypotheses).softmax(-1).numpy()
    assert found == pytest.approx(probabilities[:, columns], abs=1e-6)
    assert found.sum(1) == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("labels", [["LABEL_0", "LABEL_1", "LABEL_2"], ["entailment", "not_entailment"]], ids=str)
def test_labels_that_do_not_say_are_refused(labels, save_classifier):
    with pytest.raises(
        ModelError, match=rf"metric 'x'.* has no label that identifies the class .*: its labels are {labels[0]}"
    ):
        NliModel(save_classifier(labels), 1, "metric 'x'")


SENTENCES = ["A cat sat a mat.", "The dog sat hi hi.", "Hi.", "Mat mat mat dog."]
PROMPTS = ["A cat sat a mat. The dog sat hi hi. Hi.", "The dog sat hi hi.\nA cat sat a mat.", "Hi.", "A cat sat a mat."]
SUMMAC_TEXTS = ["Mat mat mat dog. A cat sat a mat.", "Mat mat mat dog.", "Mat mat mat dog.", ""]
# Without the sentence that is too short to count.


@pytest.fixture
def folder(save_classifier):
    return save_classifier(["entailment", "neutral", "contradiction"])


def nli_tables(folder):
    nli = NliModel(folder, 1, "x")
    tables = []
    for premises, hypotheses in [([0, 1], [3, 0]), ([1, 0], [3]), ([], [3]), ([0], [])]:
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
        ("persona_consistency", {"model_name": "./nowhere"}, ModelError, "consistency': NLI model .*nowhere.*-mnli"),
    ],
)
def test_wrong_argument_or_model_is_refused(id, args, error, message):
    with pytest.raises(error, match=message):
        MetricRegistry.get(id, args)


NLI_LABELS = ["entailment", "contradiction", "neutral"]
TEXTS = ["a cat sat", "hi", "dog mat", "cat cat", ""]
PERSONAS = [["a cat", "dog sat", "hi"], ["mat"], [], ["sat sat a", "mat hi"], ["dog"]]


def test_scores_count_what_follows_and_what_contradicts(save_classifier):
    folder = save_classifier(NLI_LABELS)
    nli = NliModel(folder, 1, "x")
    verdicts = [
        [int(nli.probabilities([text], [fact])[0].argmax()) for fact in persona]
        for text, persona in zip(TEXTS, PERSONAS, strict=True)
    ]
    assert {verdict for each in verdicts for verdict in each} == {0, 1}
    infos = [{"persona": persona} for persona in PERSONAS]
    metric = PersonaConsistencyMetric(folder, batch_size=2)
    found = metric.compute([""] * 5, TEXTS, [[]] * 5, infos)
    named = {"prompt_texts": [""] * 5, "generated_texts": TEXTS, "reference_texts": [[]] * 5, "meta_infos": infos}
    assert metric.compute(**named) == found
    consistency = [each.count(0) - each.count(1) for each in verdicts]
    assert found["consistency/persona"] == (consistency, sum(consistency) / 5)
    contradiction = [float(1 in each) for each in verdicts]
    assert found["consistency/persona_contradiction"] == (contradiction, sum(contradiction) / 5)


def test_conversations_score_the_mean_of_their_replies(save_classifier, monkeypatch):
    metric = PersonaConsistencyMetric(save_classifier(NLI_LABELS))
    verdicts = {"yes": [1.0, 0, 0], "no": [0, 1.0, 0], "hm": [0, 0, 1.0]}

    def probabilities(premises, hypotheses):
        assert set(hypotheses) <= {"i like cats", "i like dogs"}
        return np.array([verdicts[premise] for premise in premises])

    def conversation(persona, *said, given=()):
        turns = [Turn(text, AGENT) for text in given]
        turns += [turn for text in said for turn in (Turn(text, AGENT), Turn("from the partner", PARTNER))]
        return Dialogue("x", tuple(turns), meta_data={"persona": persona}, n_given=len(given))

    monkeypatch.setattr(metric._nli, "probabilities", probabilities)
    dialogues = [
        conversation(["i like cats", "i like dogs"], "yes", "hm", "no", "yes", given=("no",)),
        conversation(["i like cats"]),
        conversation(["i like cats"], "no"),
    ]
    found = metric.compute(dialogues, model=None, split_name="test")
    assert found == metric.compute(dialogues=dialogues)
    scores, corpus = found["consistency/persona"]
    assert scores == pytest.approx([(2 + 0 - 2 + 2) / 4, np.nan, -1], nan_ok=True) and corpus == (0.5 - 1) / 2
    scores, corpus = found["consistency/persona_contradiction"]
    assert scores == pytest.approx([1 / 4, np.nan, 1], nan_ok=True) and corpus == (0.25 + 1) / 2


@pytest.mark.parametrize("infos", [None, [{}], [{"persona": "i like cats"}]], ids=str)
def test_missing_persona_names_the_pool_that_has_it(infos, save_classifier):
    with pytest.raises(DataError, match=r"meta_data\['persona'\].*persona_chat.*text 0 has"):
        PersonaConsistencyMetric(save_classifier(NLI_LABELS)).compute([""], ["a"], [[]], infos)
