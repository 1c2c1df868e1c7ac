"""In a conversation, only what is new in a prompt is read, and the logits stay the same."""

import numpy as np
import pytest
import torch
from architectures import CAUSAL, make_model
from tiny import make_env, make_gpt2, make_policy, make_tokenizer
from transformers import DynamicCache

from rl4dialog.policies import decoding
from rl4dialog.policies.decoding import CausalDecoder, PromptCache, can_continue_prompts, growing_cache
from rl4dialog.policies.models import CONTINUED
from tests.tiny import causal_decoder

TOKENIZER = make_tokenizer()
WINDOWED = ("gemma2", "mistral", "exaone4")


def model_of(name, **config):
    model = make_model(name)
    if name in ("mistral", "qwen2"):
        config = model.config.to_dict() | {"sliding_window": None, "use_sliding_window": False, "layer_types": None}
        torch.manual_seed(0)
        model = type(model)(type(model.config)(**config))
    return model.eval()


def batch(prompts):
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[False] * (width - len(prompt)) + [True] * len(prompt) for prompt in prompts])
    return ids, mask


def turns(n_turns):
    """Prompts of six conversations by turn; they grow by turns of unequal length, and in the third one starts anew."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(1, 15, n).tolist() for n in (4, 9, 14, 4, 8, 14)]
    prompts[3] = list(prompts[0])  # a prompt that two conversations share
    found = [prompts]
    for turn in range(1, n_turns):
        lengths = (1, 3, 2, 4, 1, 3)
        prompts = [[*said, *rng.integers(1, 15, n).tolist()] for said, n in zip(prompts, lengths, strict=True)]
        if turn == 2:
            prompts[4] = rng.integers(1, 15, 6).tolist()
        found.append(prompts)
    return found


@pytest.mark.parametrize("fixed_cost", [0, 256])
@pytest.mark.parametrize("name", sorted(CONTINUED))
def test_logits_are_those_of_the_whole_prompt(name, fixed_cost, monkeypatch):
    monkeypatch.setitem(decoding.FIXED_COST, "cpu", fixed_cost)
    model = model_of(name)
    assert can_continue_prompts(model)
    cache = PromptCache()
    for prompts in turns(5):
        ids, mask = batch(prompts)
        decoders = causal_decoder(model, ids, mask, cache), causal_decoder(model, ids, mask)
        last = None
        with torch.no_grad():
            for step in range(4):
                continued, whole = (decoder.next_logits(last) for decoder in decoders)
                torch.testing.assert_close(continued, whole, rtol=1e-4, atol=2e-5)
                last = whole.argmax(dim=-1)
                if step == 1:  # some replies have ended
                    kept = torch.tensor([0, 2, 3, 5])
                    last = last[kept]
                    for decoder in decoders:
                        decoder.keep(kept)


def test_only_new_tokens_are_read():
    model = make_model("gpt2").eval()
    widths = []
    model.transformer.wte.register_forward_hook(lambda module, inputs, output: widths.append(output.shape[1]))
    cache = PromptCache()
    with torch.no_grad():
        for prompts in turns(5):
            CausalDecoder(model.base_model, *batch(prompts), prompt_cache=cache).next_hidden(None)
    # At most 4 tokens are new, or 6 where a conversation starts anew.
    assert widths == [14, 4, 6, 4, 4]


def test_new_conversations_are_read_first(monkeypatch):
    monkeypatch.setitem(decoding.FIXED_COST, "cpu", 4)
    model = make_model("gpt2").eval()
    shapes = []
    model.transformer.wte.register_forward_hook(lambda module, inputs, output: shapes.append(output.shape[:2]))
    cache, rng = PromptCache(), np.random.default_rng(0)
    prompts = [rng.integers(1, 15, 12).tolist() for _ in range(5)]
    with torch.no_grad():
        CausalDecoder(model.base_model, *batch(prompts), prompt_cache=cache).next_hidden(None)
        prompts = [said + rng.integers(1, 15, 2).tolist() for said in prompts]
        prompts[1], prompts[3] = rng.integers(1, 15, 15).tolist(), rng.integers(1, 15, 14).tolist()
        hidden = CausalDecoder(model.base_model, *batch(prompts), prompt_cache=cache).next_hidden(None)
        whole = CausalDecoder(model.base_model, *batch(prompts)).next_hidden(None)
    torch.testing.assert_close(hidden, whole, rtol=1e-4, atol=2e-5)
    assert shapes[:-1] == [(5, 12), (2, 13), (5, 2)], "two new ones, up to their last two tokens"


def test_prompts_that_are_new_are_read_whole():
    model = make_model("gpt2").eval()
    cache = PromptCache()
    with torch.no_grad():
        for prompts in ([[1, 2, 3, 4]], [[2, 2, 3, 4, 5, 6]], [[1] * 9, [2] * 3]):
            ids, mask = batch(prompts)
            decoder = causal_decoder(model, ids, mask, cache)
            torch.testing.assert_close(decoder.next_logits(None), causal_decoder(model, ids, mask).next_logits(None))
            assert torch.equal(decoder.mask, mask)


@pytest.mark.parametrize("name", [*WINDOWED, "gpt_neo", "bloom", "mamba"])
def test_models_with_windows_or_without_positions_read_whole_prompts(name):
    assert name in CAUSAL and not can_continue_prompts(make_model(name))


@pytest.mark.parametrize("shares", [True, False])
def test_policy_remembers_prompts_only_in_conversations(shares):
    env = make_env(TOKENIZER)
    policy = make_policy(env, make_gpt2(TOKENIZER), share_prompts=shares)
    widths = []
    policy.language_model.transformer.wte.register_forward_hook(
        lambda module, inputs, output: widths.append(output.shape[1])
    )

    def read(prompt):
        ids, mask = batch([prompt])
        widths.clear()
        policy.generate({"prompt_ids": ids, "prompt_mask": mask}, max_new_tokens=1)
        return widths[0]

    prompt = [3, 4, 5, 6, 7, 8]
    with policy.remembering_prompts():
        assert [read(prompt[:4]), read(prompt)] == ([4, 2] if shares else [4, 6])
    assert [read(prompt[:4]), read(prompt)] == [4, 6]
    with policy.remembering_prompts():
        assert read(prompt) == 6, "weights may have changed"


def test_cache_with_room_holds_what_a_growing_one_holds():
    rng = torch.Generator().manual_seed(0)
    plain, roomy = DynamicCache(config=make_model("gpt2").config), growing_cache(make_model("gpt2"))

    def add(n_rows, n):
        new = torch.randn(2, n_rows, 2, n, 4, generator=rng)
        for cache in (plain, roomy):
            cache.update(*new, 0)
        assert torch.equal(plain.layers[0].keys, roomy.layers[0].keys)
        assert torch.equal(plain.layers[0].values, roomy.layers[0].values)

    add(3, 5)
    add(3, 1)
    stored = roomy.layers[0].keys
    before = stored.clone()
    for _ in range(70):
        add(3, 1)
    memory = roomy.layers[0].keys.data_ptr()
    add(3, 1)
    assert roomy.layers[0].keys.data_ptr() == memory and torch.equal(stored, before)
    for rows in ([2, 0, 1], [1, 2], [0]):
        for cache in (plain, roomy):
            cache.reorder_cache(torch.tensor(rows))
        for _ in range(3):
            add(len(rows), 1)
