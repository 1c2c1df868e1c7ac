"""Sampling: the policy's distribution, the sampler's filters, and where replies end."""

import pytest
import torch
from tiny import MODELS, WORDS, make_bart, make_env, make_gpt2, make_policy, make_t5, make_tokenizer, maskable_class_of

from rl4dialog.core.errors import ConfigError, TrainingError
from rl4dialog.functional.log_probs import mask_logits
from rl4dialog.functional.masks import padded
from rl4dialog.policies.generation import GenerationSettings, StepEditor, all_steps, sample_steps
from rl4dialog.policies.graph_sampler import GraphSampler
from rl4dialog.policies.maskable import MaskableCausalLMActorCriticPolicy
from rl4dialog.text.end_of_turn import EndOfTurn
from tests.tiny import causal_decoder

PROMPT = [3, 4, 5]


@pytest.fixture(params=["gpt2", "llama"])
def model(request, tokenizer):
    return MODELS[request.param](tokenizer)


@pytest.fixture(params=["transformers", "graph"])
def generate(request):
    """Samples replies to PROMPT, token by token or from a static cache."""

    def sample(model, tokenizer, n, n_tokens=8, end=None, **settings):
        ids = torch.tensor([PROMPT] * n)
        obs = {"prompt_ids": ids, "prompt_mask": torch.ones_like(ids)}
        decoder, ends = causal_decoder(model, ids, torch.ones_like(ids)), end or EndOfTurn(tokenizer, [0])
        settings = GenerationSettings(**settings)
        if request.param == "transformers":
            return all_steps(sample_steps(decoder, obs, settings, ends, n_tokens))
        sampler = GraphSampler(model, model.base_model, decoder._head, ends, len(PROMPT) + n_tokens, n_tokens)
        return all_steps(sampler.steps(decoder, obs, settings, n_tokens))

    return sample


def next_token_logits(model):
    with torch.no_grad():
        return model(input_ids=torch.tensor([PROMPT])).logits[0, -1]


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_shapes_what_is_sampled_and_what_is_reported(generate, model, tokenizer, temperature):
    n = 20_000
    replies = generate(model, tokenizer, n, n_tokens=1, temperature=temperature)
    expected = (next_token_logits(model) / temperature).log_softmax(-1)
    torch.testing.assert_close(replies.log_probs[:, 0], expected[replies.response_ids[:, 0]], rtol=1e-4, atol=1e-4)
    observed = torch.bincount(replies.response_ids[:, 0], minlength=len(expected)) / n
    assert (observed - expected.exp()).abs().max() < 4 * 0.5 / n**0.5


def test_greedy_equals_transformers(generate, model, tokenizer):
    settings = {"do_sample": False, "repetition_penalty": 1.3}
    ours = generate(model, tokenizer, 1, n_tokens=12, **settings)
    ids = torch.tensor([PROMPT])
    theirs = model.generate(ids, max_new_tokens=12, eos_token_id=0, pad_token_id=1, **settings)
    assert ours.response_ids[0].tolist() == theirs[0, len(PROMPT) :].tolist()


def test_no_end_is_drawn_before_the_minimum_length(generate, model, tokenizer):
    ends = EndOfTurn(tokenizer, [0, *range(5, 15)])
    replies = generate(model, tokenizer, 200, n_tokens=6, end=ends, min_length=3)
    lengths = replies.response_mask.sum(dim=1)
    assert lengths.min() == 4 < lengths.max()  # the end is a token, too
    mass = next_token_logits(model).softmax(-1)[list(ends.single_token_ids)].sum()
    torch.testing.assert_close(replies.truncated_mass[:, 0], mass.expand(200), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_diverged_policy_is_named(generate, tokenizer, value):
    model = make_gpt2(tokenizer)
    model.lm_head.weight.data[7] = value
    with pytest.raises(TrainingError, match=r"logits are NaN or infinite.* Lower its learning_rate"):
        generate(model, tokenizer, 2)


@pytest.mark.parametrize("settings", [{"top_k": 3}, {"top_p": 0.5}, {"typical_p": 0.5}])
def test_filters_limit_the_sampler_and_not_the_log_probs(generate, model, tokenizer, settings):
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


def test_replies_of_unlike_length_are_right_padded_and_end_once(generate, model, tokenizer):
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


def test_reply_ends_at_a_marker_of_the_text(generate):
    tokenizer = make_tokenizer(marker="<EOU>")
    model = make_gpt2(tokenizer)
    end = EndOfTurn(tokenizer, [0], "<EOU>")
    marker_id = tokenizer.convert_tokens_to_ids("<EOU>")
    replies = generate(model, tokenizer, 300, n_tokens=20, end=end, temperature=2.0)
    ends = [ids[mask][-1].item() for ids, mask in zip(replies.response_ids, replies.response_mask, strict=True)]
    assert marker_id in ends and 0 in ends
    assert end.reply_text([3, 4, marker_id]) == f"{WORDS[0]} {WORDS[1]}"


@pytest.mark.parametrize(
    "kwargs, words",
    [
        ({"num_beams": 0, "use_cache": True, "top_k": None}, "generation_kwargs.num_beams: .*greater.*to 1, got 0"),
        ({"min_new_tokens": -3}, "generation_kwargs.min_length: .*got -3"),
        ({"num_beam_groups": 2}, "unknown key 'generation_kwargs.num_beam_groups'; did you mean 'num_beams'"),
        ({"length_penalty": "short"}, "generation_kwargs.length_penalty: .*number, got 'short'"),
        ({"early_stopping": "always"}, "generation_kwargs.early_stopping"),
        ({"topp": None}, "'top_p'"),
        ({"temperature": 0.0}, r"generation_kwargs.temperature: .*greater than or equal to 0\.01, got 0.0"),
        ({"temperature": 1e6}, r"generation_kwargs.temperature: .*less than or equal to 100, got"),
        ({"min_length": 8, "max_new_tokens": 7}, "min_length is 8, but replies have at most 7 tokens"),
        ({"temperature": float("nan")}, "generation_kwargs.temperature: "),
        ({"top_p": 1.5}, "generation_kwargs.top_p: .*got 1.5"),
        ({"top_k": 2.5}, "generation_kwargs.top_k: .*integer, got 2.5"),
        ({"do_sample": "yes"}, "generation_kwargs.do_sample: .*boolean, got 'yes'"),
    ],
)
def test_wrong_settings_are_named(kwargs, words):
    with pytest.raises(ConfigError, match=words):
        GenerationSettings.from_kwargs(kwargs)


class OnlyOne(StepEditor):
    def edit(self, logits, last_ids, hidden):
        return mask_logits(logits, torch.arange(logits.shape[1]) == 5)


def test_editor_decides_what_is_drawn_and_belongs_to_the_policy(model, tokenizer):
    ids = torch.tensor([PROMPT] * 20)
    obs, decoder = {"prompt_ids": ids, "prompt_mask": torch.ones_like(ids)}, causal_decoder(model, ids, ids > 0)
    steps = sample_steps(decoder, obs, GenerationSettings(), EndOfTurn(tokenizer, [0]), 2, [OnlyOne()])
    replies = all_steps(steps)
    assert (replies.response_ids == 5).all() and (replies.log_probs == 0).all()
    expected = next_token_logits(model).log_softmax(-1)[5].expand(20)
    torch.testing.assert_close(replies.unmasked_log_probs[:, 0], expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_head_reads_compact_hidden_states(model):
    inputs = []
    prompts = torch.tensor([[3, 4, 5], [5, 4, 3]])
    decoder = causal_decoder(model, prompts, torch.ones_like(prompts))
    hook = model.get_output_embeddings().register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    decoder.next_logits(None)
    hook.remove()
    (hidden,) = inputs
    assert hidden.shape == (2, model.config.hidden_size)
    assert hidden.is_contiguous()


PROMPTS = [[3, 4, 5], [6], [7, 8, 9, 10], [11, 3]]
ENDS = [0, *range(12, 20)]  # many, for some beams to end early
OF_BEAMS = {"gpt2": make_gpt2, "t5": make_t5, "bart": make_bart}


def observation(prompts=PROMPTS):
    ids, mask = padded(prompts, left=True)
    return {"prompt_ids": ids, "prompt_mask": mask}


def expected_replies(model, prompt, **kwargs):
    """transformers' own, of one prompt without padding."""
    ids = torch.tensor([prompt])
    kwargs = {"eos_token_id": ENDS, "pad_token_id": 1, "do_sample": False, "max_new_tokens": 5, **kwargs}
    kwargs.pop("num_return_sequences", None)
    sequence = model.generate(ids, attention_mask=torch.ones_like(ids), **kwargs)[0].tolist()
    reply = sequence[1 if model.config.is_encoder_decoder else len(prompt) :]
    ends = [n for n, id in enumerate(reply, start=1) if id in ENDS]
    return reply[: ends[0]] if ends else reply


@pytest.mark.parametrize("name", OF_BEAMS)
@pytest.mark.parametrize(
    "kwargs",
    [
        {"num_beams": 4},
        {"num_beams": 4, "length_penalty": 0.1, "num_return_sequences": 3},
        {"num_beams": 3, "length_penalty": 3.0, "early_stopping": True},
        {"num_beams": 5, "repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "max_new_tokens": 4},
    ],
    ids=str,
)
def test_beams_are_those_of_transformers(name, kwargs):
    tokenizer = make_tokenizer()
    model = OF_BEAMS[name](tokenizer)
    policy = make_policy(make_env(tokenizer), model, end_of_turn=EndOfTurn(tokenizer, ENDS))
    found = policy.generate(observation(), **kwargs)
    replies = [ids[mask].tolist() for ids, mask in zip(found.response_ids, found.response_mask, strict=True)]
    assert replies == [expected_replies(model, prompt, **kwargs) for prompt in PROMPTS]
    assert bool((found.response_ids[~found.response_mask] == 1).all())
    torch.testing.assert_close(found.log_probs, policy.sequence_log_probs(found), rtol=1e-4, atol=1e-5)


def test_minimum_length_holds_back_every_end():
    tokenizer = make_tokenizer()
    policy = make_policy(make_env(tokenizer), make_gpt2(tokenizer), end_of_turn=EndOfTurn(tokenizer, ENDS))
    prompts = observation([[i] for i in range(3, 20)])
    beams = policy.generate(prompts, num_beams=4)
    held_back = policy.generate(prompts, num_beams=4, min_length=3)
    assert int(beams.response_mask.sum(1).min()) < 3 < int(held_back.response_mask.sum(1).min())
    for ids, mask in zip(beams.response_ids, beams.response_mask, strict=True):
        assert not any(id in ENDS for id in ids[mask].tolist()[:-1])


def test_turn_marker_of_several_tokens_ends_a_beam():
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
def test_max_length_counts_what_transformers_counts(name, max_length, n_new):
    tokenizer = make_tokenizer()
    policy = make_policy(make_env(tokenizer), OF_BEAMS[name](tokenizer), end_of_turn=EndOfTurn(tokenizer, []))
    for kwargs in ({"num_beams": 2}, {"do_sample": False}, {"do_sample": True}):
        assert (
            policy.generate(observation(), max_length=max_length, **kwargs).response_mask.sum(1).tolist() == [n_new] * 4
        )
    with pytest.raises(ConfigError, match=r"max_length is 1, of which . are before the reply.*max_new_tokens"):
        policy.generate(observation(), max_length=1)


def test_mask_rollouts_and_conversations_refuse_beams_by_name():
    tokenizer = make_tokenizer()
    env = make_env(tokenizer)
    masked = make_policy(env, make_gpt2(tokenizer), policy_class=MaskableCausalLMActorCriticPolicy)
    with pytest.raises(ConfigError, match=r"num_beams is 4.*NLPO's mask"):
        masked.generate(observation(), num_beams=4)
    with pytest.raises(ConfigError, match="num_return_sequences is 5, but num_beams is only 4"):
        make_policy(env, make_gpt2(tokenizer)).generate(observation(), num_beams=4, num_return_sequences=5)
    with pytest.raises(ConfigError, match=r"num_beams is not allowed here: rollouts must sample .*train_evaluation"):
        make_policy(env, make_gpt2(tokenizer), generation_kwargs={"num_beams": 4})
    policy = make_policy(env, make_gpt2(tokenizer))
    with pytest.raises(
        ConfigError, match="num_beams is not allowed here: it is only for the evaluation of single replies"
    ):
        next(policy.stream(observation([[3]]), num_beams=4))


@pytest.mark.parametrize(
    ("settings", "masked", "sampler"),
    [
        ({"temperature": 2.0}, False, "transformers"),
        ({"temperature": 2.0}, False, "graph"),
        ({"top_k": 5}, False, "graph"),
        ({"do_sample": False}, False, "transformers"),
        ({"top_k": 5}, True, "transformers"),
    ],
)
def test_streamed_reply_is_the_generated_one(model, tokenizer, settings, masked, sampler):
    env = make_env(tokenizer, max_episode_length=12)
    policy = make_policy(env, model, critic="none", **({"policy_class": maskable_class_of(model)} if masked else {}))
    policy.sampler = sampler
    obs = observation([PROMPT])
    for seed in range(2):
        torch.manual_seed(seed)
        whole = policy.generate(obs, **settings)
        before = torch.get_rng_state()
        steps = list(policy.stream(obs, torch.Generator().manual_seed(seed), **settings))
        assert torch.equal(torch.get_rng_state(), before)
        assert [int(step.ids[0]) for step in steps] == whole.response_ids[0].tolist()
