"""Perplexity of replies against a naive loop."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from judges import save_judge
from tiny import make_gpt2, make_t5, make_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.core.types import Prompt, PromptTurn
from rl4dialog.metrics.reply_perplexity import ReplyPerplexityMetric

PROMPTS = ["How are you?", Prompt([PromptTurn("Hi.", " "), PromptTurn("Hello, you!", " ")], agent_opening=None), "Hm."]
REPLIES = ["Fine. And you?", "", "  Hm,\nhm. "]
WRITTEN = [
    ("User: How are you?\nAssistant:", " Fine. And you?\n"),
    ("Assistant: Hi.\nUser: Hello, you!\nAssistant:", "\n"),
    ("User: Hm.\nAssistant:", " Hm,\nhm.\n"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_judge(tmp_path_factory.mktemp("model"), template=None, architecture="llama")


def compute(metric: ReplyPerplexityMetric) -> tuple[list[float], float]:
    ((key, (scores, corpus)),) = metric.compute(PROMPTS, REPLIES, [[]] * 3).items()
    assert key == "fluency_metrics/reply_perplexity" and scores is not None
    return scores, corpus


@torch.no_grad()
def naive_nll(folder: str, before: str, reply: str, max_length: int = 1024) -> list[float]:
    """Negative log-likelihoods of the reply's tokens, with one forward pass for each."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    ids, n_reply = tokenizer(before + reply)["input_ids"][-max_length:], len(tokenizer(reply)["input_ids"])
    steps = range(max(len(ids) - n_reply, 1), len(ids))
    return [-float(model(torch.tensor([ids[:t]])).logits[0, -1].log_softmax(-1)[ids[t]]) for t in steps]


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_equals_a_naive_loop(folder: str, batch_size: int) -> None:
    scores, corpus = compute(ReplyPerplexityMetric(folder, batch_size))
    nlls = [naive_nll(folder, *written) for written in WRITTEN]
    assert scores == pytest.approx([math.exp(sum(nll) / len(nll)) for nll in nlls], rel=1e-4)
    assert corpus == pytest.approx(math.exp(sum(map(sum, nlls)) / sum(map(len, nlls))), rel=1e-4)
    assert len({round(score, 2) for score in scores}) == 3


def test_long_contexts_lose_their_beginning(tmp_path: Path) -> None:
    folder = save_judge(tmp_path, n_positions=20)
    scores, _ = compute(ReplyPerplexityMetric(folder))
    nlls = [naive_nll(folder, *written, max_length=20) for written in WRITTEN]
    assert scores == pytest.approx([math.exp(sum(nll) / len(nll)) for nll in nlls], rel=1e-4)
    (_, corpus), *_ = ReplyPerplexityMetric(folder).compute(["Hi."], ["a very long reply " * 9], [[]]).values()
    assert 1 < corpus < 1e6


def test_other_splits_are_left_out(folder: str) -> None:
    metric = ReplyPerplexityMetric(folder, splits=["test"])
    assert [bool(metric.compute(PROMPTS, REPLIES, [[]] * 3, split_name=name)) for name in ("val", "test", None)] == [
        *(False, True, True)
    ]


def test_bf16_is_close(folder: str) -> None:
    assert compute(ReplyPerplexityMetric(folder, precision="bf16"))[1] == pytest.approx(
        compute(ReplyPerplexityMetric(folder))[1], rel=0.1
    )


def test_unfit_models_are_refused(tmp_path: Path) -> None:
    def saved(model: Any) -> str:
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
