"""A language model as a partner: lengths of its answers, and what it cannot be."""

import numpy as np
import pytest
import torch
from architectures import make_model
from tiny import make_gpt2, make_tokenizer

from rl4dialog.core.errors import ConfigError
from rl4dialog.partners.language_model import LanguageModelPartner
from rl4dialog.policies.models import to_bfloat16
from rl4dialog.rollouts.conversing import partner_answers

PROMPTS = {"prompt_ids": np.array([[1, 3, 4], [4, 5, 3]]), "prompt_mask": np.array([[0, 1, 1], [1, 1, 1]])}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder, tokenizer = tmp_path_factory.mktemp("model"), make_tokenizer(marker="<EOU>")
    tokenizer.save_pretrained(folder)
    make_gpt2(tokenizer).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("kwargs", "longest"), [({}, 6), ({"generation_kwargs": {"max_new_tokens": 2}}, 2), ({"max_length": 3}, 3)]
)
def test_answers_end_at_the_shortest_limit(model, kwargs, longest):
    partner = LanguageModelPartner(model, **{"max_prompt_length": 12, "max_length": 6, **kwargs})
    assert partner.side.max_length == longest
    lengths = []
    for _ in range(8):
        answers, problems = partner_answers(partner, PROMPTS)
        lengths += [len(answer) for answer in answers]
        assert not problems
    assert max(lengths) == longest


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"model_name": "builtin/tiny-gpt2"}, "random weights"),
        ({"generation_kwargs": {"num_beams": 2}}, "num_beams is not allowed here: .*not for conversations"),
        ({"max_length": 10_000}, "10000 tokens.*has only [0-9]+ positions; lower env.args.max_partner_length"),
    ],
)
def test_what_a_partner_cannot_be(model, kwargs, message):
    with pytest.raises(ConfigError, match=message):
        LanguageModelPartner(**{"model_name": model, **kwargs})


def test_frequencies_of_positions_stay_exact_in_bfloat16():
    llama = make_model("llama")
    before = {name: each.clone() for name, each in llama.named_buffers()}
    to_bfloat16(llama)
    assert before and {each.dtype for each in llama.parameters()} == {torch.bfloat16}
    assert all(torch.equal(each, before[name]) for name, each in llama.named_buffers())


def test_weights_can_be_in_bfloat16(model):
    partner = LanguageModelPartner(model, max_prompt_length=12, max_length=6, precision="bf16")
    assert partner.language_model.dtype == torch.bfloat16
    answers, problems = partner_answers(partner, PROMPTS)
    assert not problems and all(len(answer) for answer in answers)
