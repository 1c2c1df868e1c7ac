"""Perplexities against one forward pass per token."""

import math

import pytest
import torch
from judges import save_judge
from tiny import make_gpt2, make_t5, make_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from rl4dialog.core.errors import ConfigError, DataError, ModelError
from rl4dialog.core.types import Prompt, PromptTurn
from rl4dialog.scores.perplexity import CausalPerplexityMetric, ReplyPerplexityMetric

REFERENCES = [["w1 w2 w3 w4 w5"], ["w6 w7", "w8 w9 w1 w1"], ["w0 w2 w4 w6 w8 w10 3 1 4 1 5"]]
TEXT = "\n\n".join(text for references in REFERENCES for text in references)


def compute(metric, model, **arguments):
    return metric.compute([""] * 3, [""] * 3, REFERENCES, model=model, **arguments)


def naive_perplexity(model, ids, stride, window):
    total, n_predicted = 0.0, 0
    for position in range(1, len(ids)):
        end = min((position // stride + 1) * stride, len(ids))
        context = ids[max(0, end - window) : position]
        if context:
            log_probs = model(torch.tensor([context])).logits[0, -1].log_softmax(-1)
            total, n_predicted = total - log_probs[ids[position]].item(), n_predicted + 1
    return math.exp(total / n_predicted)


@pytest.mark.parametrize("stride", [1, 3, 8, 100])
@pytest.mark.parametrize("window", [8, 64])
@torch.no_grad()
def test_perplexity_equals_naive_loop(stride, window):
    tokenizer = make_tokenizer()
    model = make_gpt2(tokenizer, n_positions=window)
    (key, (scores, found)), *others = compute(CausalPerplexityMetric(stride, tokenizer=tokenizer), model).items()
    assert (key, scores, others) == ("fluency_metrics/perplexity", None, [])
    expected = naive_perplexity(model, tokenizer(TEXT)["input_ids"], min(stride, window), window)
    assert found == pytest.approx(expected, rel=1e-5)


def test_dropout_is_off_and_mode_is_restored(tokenizer):
    model = make_gpt2(tokenizer)
    metric = CausalPerplexityMetric(4, tokenizer=tokenizer)
    expected = compute(metric, model)
    assert compute(metric, model.train()) == expected
    assert model.training


def test_missing_or_other_models_and_tokenizers_are_refused(tokenizer):
    metric, model = CausalPerplexityMetric(4, tokenizer=tokenizer), make_gpt2(tokenizer)
    assert compute(metric, None, split_name="train") == {}
    with pytest.raises(ValueError, match="needs a model"):
        compute(metric, None)
    model.resize_token_embeddings(6)
    with pytest.raises(ModelError, match=r"token id \d+ is outside the model's vocabulary of 6"):
        compute(metric, model)
    with pytest.raises(ModelError, match=r"nowhere.*cannot be loaded"):
        CausalPerplexityMetric(4, tokenizer_id="./nowhere")
    CausalPerplexityMetric(4, tokenizer_id="builtin/any", tokenizer=tokenizer)


def test_meta_data_replaces_references(tokenizer):
    model = make_gpt2(tokenizer)
    metric = CausalPerplexityMetric(4, use_text_from_meta_data=True, tokenizer=tokenizer)
    found = compute(metric, model, meta_infos=[{"reference": references[0]} for references in REFERENCES])
    firsts = [[references[0]] for references in REFERENCES]
    plain = CausalPerplexityMetric(4, tokenizer=tokenizer).compute([""] * 3, [""] * 3, firsts, model=model)
    assert found == plain
    with pytest.raises(DataError, match=r"meta_data\['reference'\]"):
        compute(metric, model, meta_infos=[{}] * 3)


PROMPTS = ["How are you?", Prompt([PromptTurn("Hi.", " "), PromptTurn("Hello, you!", " ")], agent_opening=None), "Hm."]
REPLIES = ["Fine. And you?", "", "  Hm,\nhm. "]
WRITTEN = [
    ("User: How are you?\nAssistant:", " Fine. And you?\n"),
    ("Assistant: Hi.\nUser: Hello, you!\nAssistant:", "\n"),
    ("User: Hm.\nAssistant:", " Hm,\nhm.\n"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_judge(tmp_path_factory.mktemp("model"), template=None, architecture="llama")


def of_replies(metric):
    ((key, (scores, corpus)),) = metric.compute(PROMPTS, REPLIES, [[]] * 3).items()
    assert key == "fluency_metrics/reply_perplexity" and scores is not None
    return scores, corpus


@torch.no_grad()
def naive_nll(folder, before, reply, max_length=1024):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    ids, n_reply = tokenizer(before + reply)["input_ids"][-max_length:], len(tokenizer(reply)["input_ids"])
    steps = range(max(len(ids) - n_reply, 1), len(ids))
    return [-float(model(torch.tensor([ids[:t]])).logits[0, -1].log_softmax(-1)[ids[t]]) for t in steps]


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_equals_a_naive_loop(folder, batch_size):
    scores, corpus = of_replies(ReplyPerplexityMetric(folder, batch_size))
    nlls = [naive_nll(folder, *written) for written in WRITTEN]
    assert scores == pytest.approx([math.exp(sum(nll) / len(nll)) for nll in nlls], rel=1e-4)
    assert corpus == pytest.approx(math.exp(sum(map(sum, nlls)) / sum(map(len, nlls))), rel=1e-4)
    assert len({round(score, 2) for score in scores}) == 3


def test_long_contexts_lose_their_beginning(tmp_path):
    folder = save_judge(tmp_path, n_positions=20)
    scores, _ = of_replies(ReplyPerplexityMetric(folder))
    nlls = [naive_nll(folder, *written, max_length=20) for written in WRITTEN]
    assert scores == pytest.approx([math.exp(sum(nll) / len(nll)) for nll in nlls], rel=1e-4)
    (_, corpus), *_ = ReplyPerplexityMetric(folder).compute(["Hi."], ["a very long reply " * 9], [[]]).values()
    assert 1 < corpus < 1e6


def test_other_splits_are_left_out(folder):
    metric = ReplyPerplexityMetric(folder, splits=["test"])
    assert [bool(metric.compute(PROMPTS, REPLIES, [[]] * 3, split_name=name)) for name in ("val", "test", None)] == [
        *(False, True, True)
    ]


def test_unfit_models_are_refused(tmp_path):
    def saved(model):
        folder = tmp_path / type(model).__name__
        model.save_pretrained(folder)
        make_tokenizer().save_pretrained(folder)
        return str(folder)

    with pytest.raises(ConfigError, match="random weights"):
        ReplyPerplexityMetric("builtin/tiny-gpt2")
    with pytest.raises(ModelError, match="is an encoder-decoder"):
        ReplyPerplexityMetric(saved(make_t5(make_tokenizer())))
    with pytest.raises(ModelError, match="no token for a line break"):
        ReplyPerplexityMetric(saved(make_gpt2(make_tokenizer())))
