"""Attention from single tokens in bfloat16 on a CPU, against torch's."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rl4dialog.policies.attention import attending_by_products
from tests.tiny import causal_decoder


@pytest.fixture(params=[4, 2], ids=["heads", "groups of heads"])
def module(request):
    config = LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4)
    config.num_key_value_heads, config.vocab_size = request.param, 40
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def attended(module, dtype, n_tokens=1, masked=True):
    n_groups = module.config.num_key_value_heads
    draw = torch.Generator().manual_seed(0)
    of = [(3, 4, n_tokens, 16), (3, n_groups, 30, 16), (3, n_groups, 30, 16)]
    states = [torch.randn(*shape, generator=draw).to(dtype) for shape in of]
    mask = (torch.arange(30) >= torch.tensor([[0], [7], [29]])).view(3, 1, 1, 30).expand(-1, -1, n_tokens, -1)
    attend = ALL_ATTENTION_FUNCTIONS["sdpa"]
    return attend(module.model.layers[0].self_attn, *states, mask if masked else None, dropout=0.0, scaling=0.25)[0]


@pytest.mark.parametrize("masked", [True, False])
def test_products_are_torch_s_attention(module, masked):
    expected = attended(module, torch.float32, masked=masked)
    with attending_by_products(torch.device("cpu")):
        found = attended(module, torch.bfloat16, masked=masked)
    assert found.dtype == torch.bfloat16 and found.shape == expected.shape
    torch.testing.assert_close(found.float(), expected, rtol=0.02, atol=0.02)
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward


@pytest.mark.parametrize(("dtype", "n_tokens"), [(torch.float32, 1), (torch.bfloat16, 2)])
def test_other_attention_is_torch_s(module, dtype, n_tokens):
    expected = attended(module, dtype, n_tokens)
    with attending_by_products(torch.device("cpu")):
        assert torch.equal(attended(module, dtype, n_tokens), expected)


def test_replies_in_bfloat16_take_the_kernel_for_prompts_only(module, monkeypatch):
    n_tokens = []

    def counting(query, *args, **kwargs):
        n_tokens.append(query.shape[-2])
        return scaled_dot_product_attention(query, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counting)
    ids = torch.tensor([[3, 4, 5], [6, 7, 8]])
    decoder = causal_decoder(module.bfloat16(), ids, torch.ones_like(ids))
    with torch.no_grad():
        decoder.next_logits(None)
        logits = decoder.next_logits(torch.tensor([9, 3]))
        monkeypatch.undo()
        whole = module(torch.tensor([[3, 4, 5, 9], [6, 7, 8, 3]])).logits[:, -1].float()
    assert {*n_tokens} == {3}
    torch.testing.assert_close(logits, whole, rtol=0.05, atol=0.02)
