"""Hashes of weights."""

from __future__ import annotations

import torch
from tiny import make_gpt2, make_tokenizer

from rl4dialog.policies.saving import tensors_hash, weights_hash


def test_same_weights_have_the_same_hash_and_one_bit_changes_it() -> None:
    tokenizer = make_tokenizer()
    model = make_gpt2(tokenizer)
    before = weights_hash(model)
    assert before == weights_hash(make_gpt2(tokenizer)) != weights_hash(make_gpt2(tokenizer, seed=1))
    weight = model.get_input_embeddings().weight
    with torch.no_grad():
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
    assert weights_hash(model) != before


def test_names_count_and_their_order_does_not() -> None:
    one, two = torch.ones(2), torch.zeros(())
    assert tensors_hash({"a": one, "b": two}) == tensors_hash({"b": two, "a": one})
    assert tensors_hash({"a": one}) != tensors_hash({"b": one})


def test_every_type_of_tensor_can_be_hashed() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool):
        assert tensors_hash({"a": torch.ones(3, dtype=dtype)}) != tensors_hash({"a": torch.zeros(3, dtype=dtype)})
