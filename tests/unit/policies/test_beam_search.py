"""Beams: transformers' ``generate`` called directly, ends of replies, and where beams are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import make_bart, make_env, make_gpt2, make_policy, make_t5, make_tokenizer

from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.masks import padded
from rl4dialog.policies.maskable import MaskableCausalLMActorCriticPolicy
from rl4dialog.text.end_of_turn import EndOfTurn

PROMPTS = [[3, 4, 5], [6], [7, 8, 9, 10], [11, 3]]
ENDS = [0, *range(12, 20)]  # many, for some beams to end early
MODELS = {"gpt2": make_gpt2, "t5": make_t5, "bart": make_bart}


def observation(prompts: list[list[int]] = PROMPTS) -> dict[str, torch.Tensor]:
    ids, mask = padded(prompts, left=True)
    return {"prompt_ids": ids, "prompt_mask": mask}


def expected_replies(model: Any, prompt: list[int], **kwargs: Any) -> list[int]:
    """transformers' own, of one prompt without padding."""
    ids = torch.tensor([prompt])
    kwargs = {"eos_token_id": ENDS, "pad_token_id": 1, "do_sample": False, "max_new_tokens": 5, **kwargs}
    sequence = model.generate(ids, attention_mask=torch.ones_like(ids), **kwargs)[0].tolist()
    reply = sequence[1 if model.config.is_encoder_decoder else len(prompt) :]
    ends = [n for n, id in enumerate(reply, start=1) if id in ENDS]
    return reply[: ends[0]] if ends else reply


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "kwargs",
    [
        {"num_beams": 4},
        {"num_beams": 4, "length_penalty": 0.1},
        {"num_beams": 3, "length_penalty": 3.0, "early_stopping": True},
        {"num_beams": 5, "repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "max_new_tokens": 4},
    ],
    ids=str,
)
def test_beams_are_those_of_transformers(name: str, kwargs: dict[str, Any]) -> None:
    tokenizer = make_tokenizer()
    model = MODELS[name](tokenizer)
    policy = make_policy(make_env(tokenizer), model, end_of_turn=EndOfTurn(tokenizer, ENDS))
    found = policy.generate(observation(), **kwargs)
    replies = [ids[mask].tolist() for ids, mask in zip(found.response_ids, found.response_mask, strict=True)]
    assert replies == [expected_replies(model, prompt, **kwargs) for prompt in PROMPTS]
    assert bool((found.response_ids[~found.response_mask] == 1).all())
    log_probs = policy.sequence_log_probs(found)
    torch.testing.assert_close(found.log_probs, log_probs)


def test_minimum_length_holds_back_every_end() -> None:
    tokenizer = make_tokenizer()
    policy = make_policy(make_env(tokenizer), make_gpt2(tokenizer), end_of_turn=EndOfTurn(tokenizer, ENDS))
    prompts = observation([[i] for i in range(3, 20)])
    beams = policy.generate(prompts, num_beams=4)
    held_back = policy.generate(prompts, num_beams=4, min_length=3)
    assert int(beams.response_mask.sum(1).min()) < 3 < int(held_back.response_mask.sum(1).min())
    for ids, mask in zip(beams.response_ids, beams.response_mask, strict=True):
        assert not any(id in ENDS for id in ids[mask].tolist()[:-1])


def test_turn_marker_of_several_tokens_ends_a_beam() -> None:
    tokenizer = make_tokenizer()
    model = make_gpt2(tokenizer, tie_word_embeddings=False)
    w0, w4, w5, w6 = (tokenizer.convert_tokens_to_ids(word) for word in ("w0", "w4", "w5", "w6"))
    with torch.no_grad():  # writes w0 w4 w5 w6 one after the other
        for block in model.transformer.h:
            for layer in (block.attn.c_proj, block.mlp.c_proj):
                layer.weight.zero_(), layer.bias.zero_()
        model.transformer.wpe.weight.zero_()
        hidden = model.transformer.ln_f(model.transformer.wte.weight)
        for before, after in ((w0, w4), (w4, w5), (w5, w6)):
            model.lm_head.weight[after] = hidden[before]
    end = EndOfTurn(tokenizer, [0], "w4 w5")
    env = make_env(tokenizer)
    found = make_policy(env, model, end_of_turn=end).generate(observation([[w0]]), num_beams=3)
    assert found.response_ids[found.response_mask].tolist() == [w4, w5]
    unmarked = make_policy(env, model).generate(observation([[w0]]), num_beams=3)
    assert unmarked.response_ids[unmarked.response_mask].tolist()[:3] == [w4, w5, w6]


@pytest.mark.parametrize(("name", "max_length", "n_new"), [("gpt2", 9, 3), ("t5", 4, 3)])
def test_max_length_counts_what_transformers_counts(name: str, max_length: int, n_new: int) -> None:
    tokenizer = make_tokenizer()
    policy = make_policy(make_env(tokenizer), MODELS[name](tokenizer), end_of_turn=EndOfTurn(tokenizer, []))
    for kwargs in ({"num_beams": 2}, {"do_sample": False}, {"do_sample": True}):
        assert (
            policy.generate(observation(), max_length=max_length, **kwargs).response_mask.sum(1).tolist() == [n_new] * 4
        )
    with pytest.raises(ConfigError, match=r"max_length is 1, of which . are before the reply.*max_new_tokens"):
        policy.generate(observation(), max_length=1)


def test_beams_with_sampling_follow_the_seed() -> None:
    tokenizer = make_tokenizer()
    policy = make_policy(make_env(tokenizer), make_gpt2(tokenizer))

    def sampled(seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        return policy.generate(observation(), num_beams=2, do_sample=True, top_k=5).response_ids.tolist()

    assert sampled(1) == sampled(1) and len({str(sampled(seed)) for seed in range(4)}) > 1


def test_best_of_several_sequences_is_the_reply() -> None:
    tokenizer = make_tokenizer()
    policy = make_policy(make_env(tokenizer), make_gpt2(tokenizer))
    best = policy.generate(observation(), num_beams=4)
    assert torch.equal(
        policy.generate(observation(), num_beams=4, num_return_sequences=3).response_ids, best.response_ids
    )
    with pytest.raises(ConfigError, match="num_return_sequences is 5, but num_beams is only 4"):
        policy.generate(observation(), num_beams=4, num_return_sequences=5)


def test_mask_rollouts_and_conversations_refuse_beams_by_name() -> None:
    tokenizer = make_tokenizer()
    env = make_env(tokenizer)
    masked = make_policy(env, make_gpt2(tokenizer), policy_class=MaskableCausalLMActorCriticPolicy)
    with pytest.raises(ConfigError, match=r"num_beams is 4.*NLPO's mask"):
        masked.generate(observation(), num_beams=4)
    with pytest.raises(ConfigError, match=r"num_beams is not allowed here: rollouts must sample .*train_evaluation"):
        make_policy(env, make_gpt2(tokenizer), generation_kwargs={"num_beams": 4})
    policy = make_policy(env, make_gpt2(tokenizer))
    with pytest.raises(
        ConfigError, match="num_beams is not allowed here: it is only for the evaluation of single replies"
    ):
        next(policy.stream(observation([[3]]), num_beams=4))
