"""Sampling: the policy's distribution, the sampler's filters, and where replies end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import MODELS, WORDS, make_gpt2, make_tokenizer
from transformers import PreTrainedTokenizerFast

from rl4dialog.core.errors import ConfigError, TrainingError
from rl4dialog.functional.log_probs import mask_logits
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.generation import GenerationSettings, all_steps, sample_steps
from rl4dialog.text.end_of_turn import EndOfTurn
from tests.tiny import causal_decoder

PROMPT = [3, 4, 5]


@pytest.fixture(params=["gpt2", "llama"])
def model(request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerFast) -> Any:
    return MODELS[request.param](tokenizer)


def generate(
    model: Any, tokenizer: Any, n: int, n_tokens: int = 8, end: Any = None, editors: Any = (), **settings: Any
) -> Replies:
    ids = torch.tensor([PROMPT] * n)
    obs = {"prompt_ids": ids, "prompt_mask": torch.ones_like(ids)}
    decoder, ends = causal_decoder(model, ids, torch.ones_like(ids)), end or EndOfTurn(tokenizer, [0])
    return all_steps(sample_steps(decoder, obs, GenerationSettings(**settings), ends, n_tokens, editors))


def next_token_logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([PROMPT])).logits[0, -1]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_shapes_what_is_sampled_and_what_is_reported(
    model: Any, tokenizer: PreTrainedTokenizerFast, temperature: float
) -> None:
    n = 20_000
    replies = generate(model, tokenizer, n, n_tokens=1, temperature=temperature)
    expected = (next_token_logits(model) / temperature).log_softmax(-1)
    torch.testing.assert_close(replies.log_probs[:, 0], expected[replies.response_ids[:, 0]], rtol=1e-4, atol=1e-4)
    observed = torch.bincount(replies.response_ids[:, 0], minlength=len(expected)) / n
    assert (observed - expected.exp()).abs().max() < 4 * 0.5 / n**0.5


def test_greedy_equals_transformers(model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    ours = generate(model, tokenizer, 1, n_tokens=12, do_sample=False)
    ids = torch.tensor([PROMPT])
    theirs = model.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=0, pad_token_id=1)
    assert ours.response_ids[0].tolist() == theirs[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("do_sample", [True, False])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_diverged_policy_is_named(tokenizer: PreTrainedTokenizerFast, value: float, do_sample: bool) -> None:
    model = make_gpt2(tokenizer)
    model.lm_head.weight.data[7] = value
    with pytest.raises(TrainingError, match=r"logits are NaN or infinite.* Lower its learning_rate"):
        generate(model, tokenizer, 2, do_sample=do_sample)


@pytest.mark.parametrize("settings", [{"top_k": 3}, {"top_p": 0.5}, {"typical_p": 0.5}])
def test_filters_limit_the_sampler_and_not_the_log_probs(
    model: Any, tokenizer: PreTrainedTokenizerFast, settings: dict[str, Any]
) -> None:
    replies = generate(model, tokenizer, 500, n_tokens=1, **settings)
    log_probs = next_token_logits(model).log_softmax(-1)
    torch.testing.assert_close(replies.log_probs[:, 0], log_probs[replies.response_ids[:, 0]], rtol=1e-4, atol=1e-4)
    seen = replies.response_ids[:, 0].unique()
    assert len(seen) < len(log_probs)
    if "top_k" in settings:
        assert set(seen.tolist()) <= set(log_probs.topk(3).indices.tolist())
        cut = 1 - log_probs.topk(3).values.exp().sum()
        torch.testing.assert_close(replies.truncated_mass[:, 0], cut.expand(500), rtol=1e-3, atol=1e-4)
        assert replies.sampler_log_probs is not None
        kept = (replies.log_probs - replies.sampler_log_probs).exp()
        torch.testing.assert_close(kept, 1 - replies.truncated_mass, rtol=1e-3, atol=1e-4)


def test_minimum_length_holds_the_end_back(tokenizer: PreTrainedTokenizerFast) -> None:
    model = make_gpt2(tokenizer)
    # Make the end likely: untie the head, so that it wins everywhere.
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    with torch.no_grad():
        model.lm_head.weight[0] = 50 * torch.sign(model.transformer.ln_f.bias + 1e-3)
        model.transformer.ln_f.bias.fill_(1.0)
    assert generate(model, tokenizer, 50).response_mask.sum(dim=1).max() < 8
    lengths = generate(model, tokenizer, 50, min_length=4).response_mask.sum(dim=1)
    assert lengths.min() == 5  # four tokens, and then the end


def test_replies_of_unlike_length_are_right_padded_and_end_once(model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    replies = generate(model, tokenizer, 200, n_tokens=20, temperature=2.0)
    lengths = replies.response_mask.sum(dim=1)
    assert lengths.min() < lengths.max()
    for ids, mask, log_probs, length in zip(
        replies.response_ids, replies.response_mask, replies.log_probs, lengths, strict=True
    ):
        assert mask[:length].all() and not mask[length:].any()
        assert (log_probs[length:] == 0).all()
        assert (ids[: length - 1] != 0).all()
        assert length == 20 or ids[length - 1] == 0


def test_reply_ends_at_a_marker_of_the_text() -> None:
    tokenizer = make_tokenizer(marker="<EOU>")
    model = make_gpt2(tokenizer)
    end = EndOfTurn(tokenizer, [0], "<EOU>")
    marker_id = tokenizer.convert_tokens_to_ids("<EOU>")
    replies = generate(model, tokenizer, 300, n_tokens=20, end=end, temperature=2.0)
    ends = [ids[mask][-1].item() for ids, mask in zip(replies.response_ids, replies.response_mask, strict=True)]
    assert marker_id in ends and 0 in ends
    assert end.reply_text([3, 4, marker_id]) == f"{WORDS[0]} {WORDS[1]}"


@pytest.mark.parametrize("ngram", [1, 2])
def test_no_ngram_is_repeated(model: Any, tokenizer: PreTrainedTokenizerFast, ngram: int) -> None:
    replies = generate(model, tokenizer, 50, n_tokens=10, no_repeat_ngram_size=ngram)
    for ids, mask in zip(replies.response_ids, replies.response_mask, strict=True):
        grams = [tuple(g) for g in torch.cat([torch.tensor(PROMPT), ids[mask]]).unfold(0, ngram, 1).tolist()]
        assert len(grams) == len(set(grams))


def test_keys_of_rl4lms_and_transformers_are_known() -> None:
    given = {"do_sample": True, "top_k": 20, "min_length": 2, "max_new_tokens": 20, "post_processing_fn": None}
    assert GenerationSettings.from_kwargs(given) == GenerationSettings(top_k=20, min_length=2, max_new_tokens=20)
    assert GenerationSettings.from_kwargs({"min_new_tokens": 3, "num_beams": 1}) == GenerationSettings(min_length=3)
    assert GenerationSettings.from_kwargs(None) == GenerationSettings()


@pytest.mark.parametrize(
    "kwargs, words",
    [
        ({"num_beams": 0}, "generation_kwargs.num_beams: .*greater than or equal to 1, got 0"),
        ({"num_beam_groups": 2}, "num_beam_groups is not supported; did you mean 'num_beams'"),
        ({"length_penalty": "short"}, "generation_kwargs.length_penalty: .*number, got 'short'"),
        ({"early_stopping": "always"}, "generation_kwargs.early_stopping"),
        ({"topp": 0.5}, "'top_p'"),
        ({"temperature": 0.0}, r"generation_kwargs.temperature: .*greater than or equal to 0\.0{14}1, got 0.0"),
        ({"temperature": 1e-39}, r"generation_kwargs.temperature: .*greater than or equal to 0\.0{14}1, got 1e-39"),
        ({"temperature": float("nan")}, "generation_kwargs.temperature: "),
        ({"top_k": -1}, "generation_kwargs.top_k: .*got -1"),
        ({"top_p": 1.5}, "generation_kwargs.top_p: .*got 1.5"),
        ({"max_new_tokens": 0}, "generation_kwargs.max_new_tokens: .*got 0"),
        ({"temperature": "hot"}, "generation_kwargs.temperature: .*number, got 'hot'"),
        ({"top_k": 2.5}, "generation_kwargs.top_k: .*integer, got 2.5"),
        ({"do_sample": "yes"}, "generation_kwargs.do_sample: .*boolean, got 'yes'"),
    ],
)
def test_wrong_settings_are_named(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        GenerationSettings.from_kwargs(kwargs)


class OnlyOne:
    """Lets one token through."""

    def __init__(self, token: int, in_policy: bool) -> None:
        self.token, self.in_policy = token, in_policy

    def edit(self, logits: torch.Tensor, last_ids: torch.Tensor | None, hidden: torch.Tensor) -> torch.Tensor:
        return mask_logits(logits, torch.arange(logits.shape[1]) == self.token)

    def keep(self, rows: torch.Tensor) -> None:
        raise AssertionError("no reply has ended")


@pytest.mark.parametrize("in_policy", [True, False])
def test_editor_decides_what_is_drawn_and_belongs_to_the_policy_if_it_says_so(
    model: Any, tokenizer: PreTrainedTokenizerFast, in_policy: bool
) -> None:
    replies = generate(model, tokenizer, 20, n_tokens=2, editors=[OnlyOne(5, in_policy)])
    assert (replies.response_ids == 5).all()
    expected = next_token_logits(model).log_softmax(-1)[5].expand(20)
    torch.testing.assert_close(replies.unmasked_log_probs[:, 0], expected, rtol=1e-4, atol=1e-5)
    wanted = torch.zeros(20) if in_policy else expected
    torch.testing.assert_close(replies.log_probs[:, 0], wanted, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_head_reads_compact_hidden_states(model: Any) -> None:
    inputs: list[torch.Tensor] = []
    prompts = torch.tensor([[3, 4, 5], [5, 4, 3]])
    decoder = causal_decoder(model, prompts, torch.ones_like(prompts))
    hook = model.get_output_embeddings().register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    decoder.next_logits(None)
    hook.remove()
    (hidden,) = inputs
    assert hidden.shape == (2, model.config.hidden_size)
    assert hidden.is_contiguous()
