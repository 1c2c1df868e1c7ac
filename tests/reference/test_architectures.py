"""Every architecture that is listed: sampler and trainer compute what one pass of the bare model over one reply gives.

No cache, no padding, no batch, no head of our own is in that pass. The list is also docs/architectures.md.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import CAUSAL, REFUSED_CAUSAL, REFUSED_SEQ2SEQ, SEQ2SEQ, UNLISTED, make_config, make_model
from collected import collected
from counting import Counted, watched
from covering import quick
from learn import ALGORITHMS
from rows import evaluated
from tiny import make_env, make_policy, make_tokenizer, maskable_class_of
from transformers import masking_utils

from rl4dialog.core.errors import ModelError
from rl4dialog.core.types import Sample
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.architecture_check import examine
from rl4dialog.policies.decoding import UncachedCausalDecoder, decoded_log_probs
from rl4dialog.policies.graph_sampler import GraphSampler, uncaptured
from rl4dialog.policies.heads import head_is_plain
from rl4dialog.policies.models import CACHED, REFUSED, UNCACHED, check_architecture
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.training.supervised import (
    IGNORED_LABEL,
    PaddingCollator,
    build_example_sets,
    build_examples,
    mean_loss,
    train_supervised,
)

PAGE = (Path(__file__).parents[2] / "docs" / "architectures.md").read_text(encoding="utf-8")
TOKENIZER = make_tokenizer()
TOLERANCE = 1e-4

TENTH = ("gemma2", "llama", "mamba", "mixtral", "opt", "openai-gpt", "m2m_100", "switch_transformers")
"""What `make test` runs: capped logits, a state, experts, narrow embeddings, no cache; and two encoder-decoders."""

TRAINED = pytest.mark.parametrize("name", quick(*TENTH, of=[*CAUSAL, *SEQ2SEQ]))

# Two of the prompts are the same; the longest is longer than every attention window.
PROMPTS = [[3, 4, 5], [6], [7, 8, 9, 10, 3, 11, 12, 13, 14], [3, 4, 5]]
SAMPLES = [
    Sample(str(i), " ".join(TOKENIZER.convert_ids_to_tokens(ids)), ["w4 w2", "w1"]) for i, ids in enumerate(PROMPTS)
]
OF_ENV = {"samples": SAMPLES, "max_prompt_length": 12, "max_episode_length": 6}


def naive_log_probs(model, prompt, reply):
    """Log-probabilities of a reply's tokens by one pass over it alone."""
    inputs = {"input_ids": torch.tensor([prompt + reply[:-1]])}
    if model.config.is_encoder_decoder:
        start = model.config.decoder_start_token_id
        inputs = {"input_ids": torch.tensor([prompt]), "decoder_input_ids": torch.tensor([[start, *reply[:-1]]])}
    # Where no mask is given, T5Gemma takes pad tokens for padding.
    for ids in list(inputs):
        inputs[ids.replace("input_ids", "attention_mask")] = torch.ones_like(inputs[ids])
    if model.config.model_type == "m2m_100":  # the positions of ids do not count the pad tokens of a reply
        inputs["decoder_inputs_embeds"] = model.get_decoder().get_input_embeddings()(inputs.pop("decoder_input_ids"))
    with torch.no_grad():
        logits = model(**inputs, use_cache=False).logits[0, -len(reply) :]
    return logits.float().log_softmax(-1)[torch.arange(len(reply)), reply]


def policy_of(model, **kwargs):
    """A policy, and observations of all prompts."""
    vocab_size = model.get_input_embeddings().weight.shape[0]
    # Words that end a reply, so that replies leave the batch at different steps.
    of_env = {**OF_ENV, "max_episode_length": 10, "end_of_turn": EndOfTurn(TOKENIZER, [0, 5, 8, 11, 14])}
    policy = make_policy(make_env(TOKENIZER, vocab_size=vocab_size, **of_env), model, **kwargs)
    prompts, mask = np.ones((4, 12), dtype=int), np.zeros((4, 12), dtype=bool)
    for row, ids in enumerate(PROMPTS):
        prompts[row, 12 - len(ids) :], mask[row, 12 - len(ids) :] = ids, True
    return policy, {"prompt_ids": torch.tensor(prompts), "prompt_mask": torch.tensor(mask)}


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


@TRAINED
def test_log_probs_of_sampler_and_trainer_are_those_of_the_bare_model(name):
    model = make_model(name)
    policy, obs = policy_of(model, critic="shared" if len(name) % 2 else "separate")
    torch.manual_seed(0)
    replies = policy.generate(obs)
    assert len(set(replies.response_mask.sum(dim=1).tolist())) > 1, "replies of one length would not try out the batch"
    expected = torch.zeros(replies.response_mask.shape)
    for row, prompt in enumerate(PROMPTS):
        reply = replies.response_ids[row][replies.response_mask[row]].tolist()
        expected[row, : len(reply)] = naive_log_probs(model, prompt, reply)
    close(replies.log_probs, expected)
    close(policy.reference_log_probs(replies), expected)
    log_probs, values, _ = evaluated(policy, replies)
    close(log_probs.detach(), expected)
    # All prompts in one batch, of which two are equal; a prompt that all replies share; and each alone.
    same = torch.tensor([0, 3])
    close(policy.sequence_log_probs(replies[same]), expected[same, : replies[same].response_mask.shape[1]])
    for row in range(4):
        alone = replies[torch.tensor([row])]
        n = alone.response_mask.shape[1]
        close(policy.sequence_log_probs(alone), expected[row : row + 1, :n])
        close(policy.predict_sequence_values(alone).detach(), values[row : row + 1, :n].detach())
    whole = {**obs, "response_ids": replies.response_ids, "response_mask": replies.response_mask}
    _, of_actions, _ = policy.evaluate_actions(whole, replies.response_ids[replies.response_mask])
    close(of_actions.detach(), expected[replies.response_mask])
    first = {**obs, "context_ids": torch.zeros(4, 1, dtype=torch.long), "context_mask": torch.zeros(4, 1).bool()}
    close(policy.evaluate_actions(first, replies.response_ids[:, 0])[1].detach(), expected[:, 0])


@pytest.mark.parametrize("name", quick("gpt2", "gemma2", "llama", "mixtral", "opt", of=list(CAUSAL)))
def test_rows_are_read_the_same_where_nobody_looks_for_packed_texts(name, monkeypatch):
    looks, found = [], []
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", looks.append)
    policy, obs = policy_of(make_model(name), critic="none", share_prompts=False)
    response_ids = torch.arange(24).view(4, 6) % 9 + 3
    replies = Replies(*obs.values(), response_ids, torch.ones_like(response_ids, dtype=torch.bool))
    for with_cache in {policy._cache_can_be_shared, False}:
        policy._cache_can_be_shared = with_cache
        found.append(policy.sequence_log_probs(replies))
        assert not (looks and with_cache)
        looks.clear()
    assert torch.equal(found[0], found[-1])


WITHOUT_STATIC_CACHE = {
    *{"bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "lfm2", "mamba", "mamba2", "openai-gpt"},
    *{"qwen3_next", "recurrent_gemma", "rwkv", "xlstm", "zamba2"},  # states instead of keys and values, or no cache
    *{"bloom", "gpt_neo"},  # masks and windows of their own
}


@pytest.mark.parametrize("name", quick("cohere", "gptj", "mistral", "mixtral", "opt", "qwen3", of=list(CAUSAL)))
def test_a_static_cache_gives_the_numbers_of_the_bare_model_or_is_not_used(name, monkeypatch):
    windows = {"sliding_window": 64} if "sliding_window" in CAUSAL[name] else {}
    model = make_model(name, **windows)
    policy, obs = policy_of(model, critic="none")
    policy.sampler = "graph"
    uses_it = policy.eager_reason(policy.settings) is None and policy._graph_sampler is not None
    assert uses_it == (name not in WITHOUT_STATIC_CACHE)
    steps = Counted()
    monkeypatch.setattr(GraphSampler, "_step", watched(GraphSampler._step, steps))
    replies = policy.generate(obs)
    if uncaptured(model.config, model.dtype, "cuda") is None:
        assert steps.reads == [], "a capture would fail"
    for row, prompt in enumerate(PROMPTS):
        reply = replies.response_ids[row][replies.response_mask[row]].tolist()
        close(replies.log_probs[row, : len(reply)], naive_log_probs(model, prompt, reply))


@TRAINED
def test_an_iteration_trains(name):
    algorithm = iteration(make_model(name))
    numbers = algorithm.logger.name_to_value
    assert numbers["rollout/kl"] == pytest.approx(0, abs=TOLERANCE)
    before = [p.detach().clone() for p in algorithm.policy.actor_parameters()]
    algorithm.train()
    after = list(algorithm.policy.actor_parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(torch.isfinite(p).all() for p in algorithm.policy.parameters())


def iteration(model, algorithm="ppo", **policy_kwargs):
    """An algorithm that has collected replies."""
    cls, settings = ALGORITHMS[algorithm]
    vocab_size = model.get_input_embeddings().weight.shape[0]
    of_env = {"end_of_turn": EndOfTurn(TOKENIZER, [0]), "vocab_size": vocab_size, **OF_ENV}
    return collected(
        cls,
        n_steps=12,
        env_kwargs=of_env,
        model=model,
        n_envs=4,
        policy_kwargs=policy_kwargs,
        kl_coeff=0.1,
        **{**settings, "batch_size": 24, "n_epochs": 1},
    )


@TRAINED
def test_supervised_loss_is_the_models_own(name):
    model = make_model(name)
    in_encoder = model.config.is_encoder_decoder
    lengths = {"end_of_turn": None, "max_prompt_length": 12, "max_reply_length": 6}
    examples, _ = build_examples(SAMPLES, TOKENIZER, in_encoder=in_encoder, **lengths)
    total, n_tokens = 0.0, 0
    for example in examples:
        row = {key: torch.tensor([ids]) for key, ids in example.items()}
        n = int((row["labels"] != IGNORED_LABEL).sum())
        with torch.no_grad():
            total += n * float(model(**row, attention_mask=torch.ones_like(row["input_ids"])).loss)
        n_tokens += n
    expected = total / n_tokens
    assert mean_loss(model, examples, PaddingCollator(1), 3) == pytest.approx(expected, abs=TOLERANCE)
    arguments = {"learning_rate": 1e-30, "per_device_train_batch_size": 8, "num_train_epochs": 1}
    sets = build_example_sets(model.config, TOKENIZER, SAMPLES, **lengths)
    metrics = train_supervised(model, sets, training_args=arguments, seed=0)
    assert metrics["train_loss"] == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("name", ["mixtral", "mamba", pytest.param("openai-gpt", marks=pytest.mark.long)])
def test_mask_of_nlpo_is_the_same_in_sampling_and_in_training(name):
    model = make_model(name)
    policy, obs = policy_of(model, policy_class=maskable_class_of(model), top_mask=0.5)
    torch.manual_seed(0)
    replies = policy.generate(obs)
    assert bool((replies.log_probs > replies.unmasked_log_probs + 0.01).any()), "the mask cut nothing off"
    close(policy.sequence_log_probs(replies), replies.log_probs)
    iteration(make_model(name), "nlpo", top_mask=0.5).train()


@pytest.mark.parametrize("name", ["mixtral", "opt"])
@pytest.mark.parametrize(
    "kwargs",
    [{"lora": {"r": 2, "target_modules": "all-linear"}}, {"precision": "bf16"}, {"gradient_checkpointing": True}],
)
def test_memory_savers_train_new_architectures(name, kwargs):
    algorithm = iteration(make_model(name), **kwargs)
    before = [p.detach().clone() for p in algorithm.policy.actor_parameters()]
    assert abs(algorithm.logger.name_to_value["rollout/kl"]) < (0.25 if "precision" in kwargs else TOLERANCE)
    algorithm.train()
    assert any(not torch.equal(a, b) for a, b in zip(before, algorithm.policy.actor_parameters(), strict=True))


@pytest.mark.parametrize("name", ["bitnet", "gpt_neox_japanese", "roberta"])
def test_unlisted_architecture_is_examined_and_trained(name):
    model = make_model(name)
    assert model.config.model_type not in CACHED | UNCACHED
    examine(model, "some/model")
    policy, obs = policy_of(model, critic="none")
    assert isinstance(policy._model_decoder(model, obs), UncachedCausalDecoder) == (name == "roberta")
    replies = policy.generate(obs)
    for row, prompt in enumerate(PROMPTS):
        reply = replies.response_ids[row][replies.response_mask[row]].tolist()
        close(replies.log_probs[row, : len(reply)], naive_log_probs(model, prompt, reply))
        close(policy.sequence_log_probs(replies)[row, : len(reply)], naive_log_probs(model, prompt, reply))


def test_unlisted_architecture_that_reads_ahead_is_refused_by_name():
    with pytest.raises(ModelError, match=r"'some/model' has the architecture 'bert'.*later tokens change"):
        examine(make_model("bert"), "some/model")


@pytest.mark.parametrize("name", [*REFUSED_CAUSAL, *REFUSED_SEQ2SEQ])
def test_refused_architecture_is_named_with_the_reason_and_what_works(name):
    with pytest.raises(ModelError, match=f"'some/model' has the architecture '{name}', .*: .*Choose a model of"):
        check_architecture(make_config(name), "some/model", 8)


@pytest.mark.parametrize("name", ["llama4_text", "xlnet", "fsmt", "prophetnet"])
def test_refused_architecture_would_not_pass_an_examination(name):
    with pytest.raises(ModelError, match=name):
        examine(make_model(name), "some/model")


def test_soft_cap_is_noticed_where_logits_are_too_small_to_feel_it():
    model = make_model("recurrent_gemma")  # its cap is 30
    with torch.no_grad():
        assert model(input_ids=torch.tensor([[3, 4, 5]])).logits.abs().max() < 2
    assert not head_is_plain(model)


def test_adapters_of_recurrent_gemma_can_be_merged_after_an_update():
    model = make_model("recurrent_gemma")
    algorithm = iteration(model, lora={"r": 2, "target_modules": "all-linear"})
    algorithm.train()
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        merged = algorithm.policy.lora.merged()(input_ids=ids, use_cache=False).logits
        close(merged, algorithm.policy.language_model(input_ids=ids, use_cache=False).logits)


def test_experts_that_would_drop_tokens_of_replies_are_refused():
    config = make_config("switch_transformers")
    check_architecture(config, "some/model", config.expert_capacity)
    with pytest.raises(ModelError, match="max_episode_length to 16 or less"):
        check_architecture(config, "some/model", config.expert_capacity + 1)


@pytest.mark.parametrize("name", ["m2m_100", "t5gemma"])
def test_pad_token_within_a_reply_is_a_token_like_any_other(name):
    policy, obs = policy_of(make_model(name), critic="none")
    replies = torch.tensor([[5, 1, 7, 1, 9]] * 4)
    batch = Replies(obs["prompt_ids"], obs["prompt_mask"], replies, torch.ones_like(replies, dtype=torch.bool))
    written = decoded_log_probs(policy._model_decoder(policy.language_model, obs), replies)
    close(policy.sequence_log_probs(batch), written.gather(-1, replies.unsqueeze(-1)).squeeze(-1).detach())


def test_loss_of_routers_that_is_not_added_is_told(caplog):
    config = make_config("mixtral")
    check_architecture(config, "some/model", 8)
    assert not caplog.records
    config.output_router_logits = True
    check_architecture(config, "some/model", 8)
    assert "output_router_logits has no effect" in caplog.text


def rows_under(heading):
    """First cells of the table of a section."""
    section = PAGE.split(f"\n## {heading}", 1)[1].split("\n## ", 1)[0]
    cells = re.findall(r"^\| (`.+?`) \|", section, flags=re.MULTILINE)[1:]  # the first is the heading
    return [name for cell in cells for name in cell.strip("`").split("`, `")]


def test_docs_list_what_is_tested_and_no_more():
    tested = {name.split("/")[0] for name in (*CAUSAL, *SEQ2SEQ)}
    assert set(rows_under("Trained")) == tested == CACHED | UNCACHED
    assert set(rows_under("Read again for every token")) == UNCACHED
    assert set(rows_under("Refused")) == set(REFUSED)
    assert not tested & REFUSED.keys() and not tested & UNLISTED.keys()
    assert len(tested) >= 40
