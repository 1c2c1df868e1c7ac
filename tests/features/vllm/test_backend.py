"""The contract with vLLM, on a stand-in that samples by itself with the weights that it is sent (no GPU is needed)."""

import os
import sys
from collections import Counter
from types import SimpleNamespace

import fake_vllm
import pytest
import torch
from policies_for_vllm import N_PROMPT, N_REPLY, TOKENIZER, policy_without_backend, prompts, shake
from rows import evaluated
from runs import make_config
from stable_baselines3.common.vec_env import DummyVecEnv
from tiny import WORDS, make_env, make_gpt2, make_llama, make_policy

from rl4dialog.algorithms.on_policy.ppo import A2C, PPO
from rl4dialog.algorithms.on_policy.trpo import TRPO
from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError, GenerationError
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.features.vllm.backend import VLLMBackend, weights_to_send
from rl4dialog.policies.causal import CausalLMActorCriticPolicy
from rl4dialog.rollouts.kl_controllers import FixedKLController
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.training.building import conditions
from rl4dialog.training.building.components import check_components


@pytest.fixture
def llm_class(monkeypatch):
    return fake_vllm.install(monkeypatch)


def make_backend(policy, sleep=False, **kwargs):
    """Let vLLM generate for a policy; gives the engine."""
    length = N_PROMPT + policy.max_reply_length
    policy.backend = VLLMBackend(policy.language_model, policy.end_of_turn, length, "float32", sleep=sleep, **kwargs)
    llm = fake_vllm.LLM.last
    return llm


def policy_with(model=None, end_of_turn=None, sleep=False, **kwargs):
    policy = policy_without_backend(model, end_of_turn, **kwargs)
    return policy, make_backend(policy, sleep)


def same_weights(llm, model):
    own = dict(llm.module.named_parameters())
    return all(torch.equal(own[name], parameter) for name, parameter in model.named_parameters())


@pytest.mark.parametrize("make_model", [make_gpt2, make_llama])
def test_greedy_replies_equal_those_of_transformers(llm_class, make_model):
    policy, _ = policy_with(make_model(TOKENIZER))
    theirs = policy.generate(prompts(12), do_sample=False)
    policy.backend = None
    ours = policy.generate(prompts(12), do_sample=False)
    assert torch.equal(theirs.response_mask, ours.response_mask)
    assert torch.equal(theirs.flat("response_ids"), ours.flat("response_ids"))
    torch.testing.assert_close(theirs.log_probs, ours.log_probs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(theirs.unmasked_log_probs, ours.unmasked_log_probs, rtol=1e-4, atol=1e-5)
    assert theirs.sampler_log_probs is None and ours.sampler_log_probs is None


def test_filters_limit_the_sampler_and_not_the_log_probs(llm_class):
    policy, _ = policy_with(generation_kwargs={"top_k": 3, "temperature": 1.5})
    replies = policy.generate(prompts(60))
    with torch.no_grad():
        log_probs, _, _ = evaluated(policy, replies)
    torch.testing.assert_close(replies.log_probs, log_probs, rtol=1e-4, atol=1e-5)
    assert replies.truncated_mass is None and replies.sampler_log_probs is not None
    gaps = (replies.sampler_log_probs - replies.log_probs)[replies.response_mask]
    assert (gaps > 0).all(), "three tokens share the probability of all"


def test_minimum_length_holds_the_end_back(llm_class):
    ends = [id for id in range(len(TOKENIZER)) if id % 2 == 0]  # so that most replies would end at once
    policy, _ = policy_with(end_of_turn=EndOfTurn(TOKENIZER, ends))
    lengths = [policy.generate(prompts(40), min_length=n).response_mask.sum(dim=1).min() for n in (0, 4)]
    assert lengths == [1, 5]  # four tokens, and then the end


def test_reply_is_never_longer_than_the_limits(llm_class):
    policy, _ = policy_with()
    for kwargs, longest in (({"max_new_tokens": 3, "min_length": 3}, 3), ({"max_new_tokens": 99}, N_REPLY)):
        assert policy.generate(prompts(20), **kwargs).response_mask.sum(dim=1).max() == longest


def common_text(policy, n_tokens):
    """What the policy says often, in so many tokens."""
    replies = policy.generate(prompts(100))
    counts = Counter()
    for ids, mask in zip(replies.response_ids, replies.response_mask, strict=True):
        reply = ids[mask].tolist()
        counts.update(tuple(reply[i : i + n_tokens]) for i in range(len(reply) + 1 - n_tokens))
    return TOKENIZER.decode(next(ids for ids, _ in counts.most_common() if min(ids) >= 3))  # no special token


def overshoot(outputs):
    """An engine that does not stop: three tokens after every end."""
    for output in outputs:
        completion = output.outputs[0]
        completion.token_ids += [7, 0, 7]
        completion.logprobs += [{id: SimpleNamespace(logprob=-1.0)} for id in (7, 0, 7)]
    return outputs


def stop_early(outputs):
    """An engine that sees an end after every second token."""
    for output in outputs:
        completion = output.outputs[0]
        completion.token_ids, completion.logprobs = completion.token_ids[:2], completion.logprobs[:2]
    return outputs


@pytest.mark.parametrize(("n_tokens", "spoil"), [(1, None), (2, overshoot), (2, stop_early)])
def test_replies_end_exactly_where_the_environment_ends_them(llm_class, n_tokens, spoil):
    sampling = {"temperature": 1.5}
    marker = common_text(policy_with(generation_kwargs=sampling)[0], n_tokens)
    end = EndOfTurn(TOKENIZER, [0], marker)
    policy, llm = policy_with(end_of_turn=end, generation_kwargs=sampling)
    policy.generate(prompts(1))  # after this, its distribution is not checked again
    llm.n_written = 0
    if spoil is not None:
        llm.spoil = spoil
    replies = policy.generate(prompts(100))
    lasts = set()
    for ids, mask in zip(replies.response_ids.tolist(), replies.response_mask, strict=True):
        reply = ids[: int(mask.sum())]
        assert mask[: len(reply)].all()
        assert not any(end.is_end(reply[:n]) for n in range(1, len(reply)))
        assert end.is_end(reply) or len(reply) == N_REPLY
        lasts.add(TOKENIZER.decode(reply[-2:]) if end.is_end(reply) else "limit")
        assert not mask[len(reply) :].any()
    assert "limit" in lasts and any("<eos>" in last for last in lasts) and any(marker in last for last in lasts)
    assert replies.sampler_log_probs is not None
    if spoil is None:
        assert llm.n_written == replies.response_mask.sum(), "vLLM is told where to stop"
    if spoil is not overshoot:
        torch.testing.assert_close(replies.sampler_log_probs, replies.log_probs, rtol=1e-4, atol=1e-4)


def test_same_seed_gives_the_same_replies_and_another_does_not(llm_class):
    policy, _ = policy_with()
    replies = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        replies.append(policy.generate(prompts(20)).response_ids.tolist())
    assert replies[0] == replies[1] != replies[2]
    one_prompt = {name: tensor.repeat(20, 1) for name, tensor in prompts(1).items()}
    assert len({tuple(ids) for ids in policy.generate(one_prompt).response_ids.tolist()}) > 1, "each reply has a seed"


def test_weights_are_sent_once_and_again_when_they_have_changed(llm_class):
    policy, llm = policy_with()
    policy.generate(prompts(4))
    policy.generate(prompts(4))
    assert llm.calls == ["reload_weights", "reset_prefix_cache", "generate", "generate"]
    shake(policy)
    assert not same_weights(llm, policy.language_model)
    policy.weights_will_change()
    theirs = policy.generate(prompts(4), do_sample=False)
    assert same_weights(llm, policy.language_model)
    policy.backend = None
    assert torch.equal(theirs.response_ids, policy.generate(prompts(4), do_sample=False).response_ids)


def test_weights_of_a_checkpoint_are_sent_once_under_transformers_names(llm_class):
    model = make_gpt2(TOKENIZER)
    assert model.lm_head.weight is model.transformer.wte.weight
    policy, llm = policy_with(model)
    policy.generate(prompts(2))
    assert llm.received == [name for name, _ in make_gpt2(TOKENIZER).named_parameters()]
    model.transformer.register_buffer("scale", torch.tensor([2.0]))
    model.transformer.register_buffer("cache", torch.tensor([3.0]), persistent=False)
    sent = dict(weights_to_send(policy))
    assert sent["transformer.scale"] == 2 and "transformer.cache" not in sent and "lm_head.weight" not in sent


@pytest.mark.parametrize(
    "lora",
    [
        {"target_modules": ["q_proj"]},
        {"target_modules": ["q_proj", "lm_head"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
        {"target_modules": ["q_proj", "embed_tokens"]},
    ],
    ids=["attention", "head", "whole head", "embedding"],
)
def test_head_is_sent_if_it_is_not_the_embedding_any_more(lora):
    model = make_llama(TOKENIZER)
    model.config.tie_word_embeddings = True
    model.tie_weights()
    env = make_env(TOKENIZER, vocab_size=len(TOKENIZER))
    policy = make_policy(env, model, lora={"r": 4, "lora_alpha": 8, **lora})
    shake(policy)
    assert ("lm_head.weight" in dict(weights_to_send(policy))) != (lora == {"target_modules": ["q_proj"]})


def test_rows_without_a_token_are_never_chosen(llm_class):
    model, n = make_gpt2(TOKENIZER), len(TOKENIZER)
    model.resize_token_embeddings(n + 5, mean_resizing=False)
    with torch.no_grad():
        model.get_output_embeddings().weight[n:] = 4 * torch.randn(5, model.config.hidden_size)  # likelier than most
    policy = make_policy(make_env(TOKENIZER, vocab_size=n + 5, max_episode_length=N_REPLY), model)
    make_backend(policy)
    found = policy.generate(prompts(60))
    assert int(found.response_ids.max()) < n
    torch.testing.assert_close(found.sampler_log_probs, found.log_probs, atol=1e-4, rtol=1e-4)


def test_adapters_are_merged_into_the_weights(llm_class):
    policy, llm = policy_with(lora={"r": 2, "lora_alpha": 8})
    base = {name: p.clone() for name, p in make_gpt2(TOKENIZER).named_parameters()}
    shake(policy)
    replies = policy.generate(prompts(20))
    assert llm.received == list(base)
    assert any(not torch.equal(base[name], parameter) for name, parameter in llm.module.named_parameters())
    assert replies.sampler_log_probs is not None
    torch.testing.assert_close(replies.sampler_log_probs, replies.log_probs, rtol=1e-3, atol=1e-4)


def test_engine_sleeps_only_while_its_weights_are_out_of_date(llm_class):
    policy, llm = policy_with(sleep=True)
    policy.generate(prompts(2))
    policy.weights_will_change()
    policy.weights_will_change()
    policy.generate(prompts(2))
    sync = ["reload_weights", "reset_prefix_cache", "generate"]
    assert llm.calls == [*sync, "sleep", "wake_up", *sync]
    assert same_weights(llm, policy.language_model)


def test_shards_get_their_weights_through_main_memory(monkeypatch):
    fake_vllm.install(monkeypatch, n_devices=2)
    policy, _ = policy_with()
    llm = make_backend(policy, tensor_parallel_size=2)
    policy.generate(prompts(2))
    assert llm.tensor_parallel_size == 2 and same_weights(llm, policy.language_model)


@pytest.mark.parametrize("cls", [A2C, PPO, TRPO])
def test_generation_after_learning_has_the_last_weights(llm_class, cls):
    end_of_turn = EndOfTurn(TOKENIZER, [0], f"{WORDS[1]} {WORDS[2]}")
    env = {"vocab_size": len(TOKENIZER), "end_of_turn": end_of_turn}
    sizes = {"batch_size": 10**6} if cls is not A2C else {}
    algorithm = cls(
        CausalLMActorCriticPolicy,
        DummyVecEnv([lambda: UtteranceView(make_env(TOKENIZER, **env)) for _ in range(4)]),
        policy_kwargs={
            "model": make_gpt2(TOKENIZER),
            "end_of_turn": end_of_turn,
            "generation_kwargs": {"temperature": 1.3},
        },
        kl_controller=FixedKLController(0.1),
        device="cpu",
        seed=0,
        n_steps=16,
        learning_rate=1e-2,
        **sizes,
    )
    llm = make_backend(algorithm.policy)
    algorithm.learn(2 * 16 * 4)
    algorithm.policy.generate(prompts(2))
    assert same_weights(llm, algorithm.policy.language_model)
    assert llm.calls.count("reload_weights") == 3


def fail(outputs):
    raise RuntimeError("CUDA error: an illegal memory access")


def empty(outputs):
    outputs[1].outputs[0].token_ids, outputs[1].outputs[0].logprobs = [], []
    return outputs


def no_log_probs(outputs):
    outputs[1].outputs[0].logprobs = None
    return outputs


def other_weights(outputs):
    for output in outputs:
        output.outputs[0].logprobs = [{id: SimpleNamespace(logprob=-0.1)} for id in output.outputs[0].token_ids]
    return outputs


@pytest.mark.parametrize(
    "spoil, words",
    [
        (fail, "vLLM did not generate the replies: CUDA error: an illegal memory access"),
        (lambda outputs: outputs[:3], "4 were requested and 3 returned"),
        (lambda outputs: [*outputs, outputs[0]], "4 were requested and 5 returned"),
        (empty, "one is empty \\(finish reason: "),
        (no_log_probs, "vLLM did not generate the replies"),
        (other_weights, r"differ from the policy's by \d\.\d+ nats per token, .* use backend: transformers"),
    ],
)
def test_engine_that_fails_is_an_error(llm_class, spoil, words):
    policy, llm = policy_with()
    llm.spoil = spoil
    with pytest.raises(GenerationError, match=words):
        policy.generate(prompts(4))


def test_engine_that_cannot_take_over_weights_is_an_error(llm_class, monkeypatch):
    policy, llm = policy_with()
    monkeypatch.setattr(llm, "reset_prefix_cache", lambda: False)
    with pytest.raises(GenerationError, match="keeps cached prompts"):
        policy.generate(prompts(4))


def test_engine_that_does_not_start_is_an_error(llm_class, monkeypatch):
    def refuse(*args, **kwargs):
        raise ValueError("Free memory on device (1.0/80.0 GiB) is less than desired")

    monkeypatch.setattr(sys.modules["vllm"], "LLM", refuse)
    with pytest.raises(GenerationError, match="vLLM did not start: Free memory on device"):
        policy_with()


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"no_repeat_ngram_size": 2}, "no_repeat_ngram_size is not supported with generation.backend: vllm"),
        ({"typical_p": 0.5}, "typical_p is not supported with generation.backend: vllm"),
        ({"temperature": 2.5}, "temperature must be at most 2.0 with .* not 2.5"),
    ],
)
def test_settings_that_vllm_does_not_know_are_refused(llm_class, settings, words):
    policy, _ = policy_with()
    with pytest.raises(ConfigError, match=words):
        policy.generate(prompts(2), **settings)


MASKABLE = {
    "id": "nlpo",
    "args": {"n_steps": 16, "batch_size": 16},
    "kl_div": {"coeff": 0.1},
    "policy": {"id": "maskable_causal_lm_actor_critic_policy", "args": {"model_name": "builtin/tiny-gpt2"}},
}
SUPERVISED = {
    "id": "supervised",
    "model_type": "causal",
    "model_name": "builtin/tiny-gpt2",
    "training_args": {"num_train_epochs": 1},
}


SERVER = {"backend": "vllm_server", "url": "http://127.0.0.1:8000"}


def check(tmp_path, generation=None, **overrides):
    config = make_config(tmp_path, generation=generation or {"backend": "vllm"}, **overrides)
    check_components(parse_config(config, "config.yml"))


@pytest.mark.parametrize(
    "overrides, words",
    [
        ({"alg": MASKABLE}, "'maskable_causal_lm_actor_critic_policy', only with decoder-only models without a mask"),
        ({"alg__policy__id": "seq2seq_lm_actor_critic_policy"}, "'seq2seq_lm_actor_critic_policy', only with"),
        ({"alg": SUPERVISED}, "is not supported with alg.id: supervised"),
        (
            {"alg__policy__args__generation_kwargs": {"no_repeat_ngram_size": 3}},
            "alg.policy.args.generation_kwargs.no_repeat_ngram_size is not supported with",
        ),
        (
            {"train_evaluation__generation_kwargs": {"no_repeat_ngram_size": 3}},
            "train_evaluation.generation_kwargs.no_repeat_ngram_size is not supported with",
        ),
        ({"generation": {"backend": "vlm"}}, "generation.backend: .*'vllm' or 'vllm_server'.*'vlm'"),
        ({"generation": {"backend": "vllm", "sync": 2}}, "unknown key 'generation.sync'"),
        ({"generation": {"sleep": True}}, "generation: sleep has a meaning only with backend: vllm"),
        ({"generation": SERVER, "alg": SUPERVISED}, "generation.backend: vllm_server is not supported with alg.id"),
        ({"generation": SERVER, "train_evaluation__generation_kwargs": {"typical_p": 0.5}}, "typical_p is not supp"),
        ({"generation": SERVER | {"sleep": True}}, "generation: sleep has a meaning only with backend: vllm"),
        ({"generation": {"url": "http://h:1"}}, "generation: url has a meaning only with backend: vllm_server"),
        ({"generation": {"backend": "vllm_server"}}, "generation: url must be the server's address"),
        ({"generation": SERVER | {"ahead": 1}}, "generation.ahead: .* set alg.args.importance_correction: token"),
        ({"generation": SERVER | {"adapter_folder": "/s"}}, "adapter_folder is for adapters, but the config has no"),
        (
            {"generation": SERVER | {"adapter_folder": "/s"}, "lora": {"r": 2}, "warm_start": {"n_epochs": 1}},
            "generation.adapter_folder: the server does not get the weights of warm_start",
        ),
        ({"generation": SERVER | {"url": "http://me:pw@h:1"}}, "url must not contain credentials"),
        ({"generation": {"backend": "vllm", "tensor_parallel_size": 2}}, "needs as many CUDA devices, .* has 1"),
    ],
)
def test_what_does_not_go_together_is_refused(llm_class, tmp_path, overrides, words):
    overrides = dict(overrides)
    with pytest.raises(ConfigError, match=words):
        check(tmp_path, overrides.pop("generation", None), **overrides)


def test_server_of_several_processes_writes_nothing_ahead_and_for_no_single_one(tmp_path, monkeypatch):
    ahead, ranks = {**SERVER, "ahead": 1}, {"train_evaluation__value_rank_states": 10}
    corrected = {"alg__args__importance_correction": "token"}
    check(tmp_path, ahead, **corrected)
    check(tmp_path, SERVER, **ranks)
    monkeypatch.setattr(conditions, "n_processes", lambda: 2)
    check(tmp_path, SERVER)
    with pytest.raises(ConfigError, match=r"generation\.ahead is not supported in 2 processes; remove it"):
        check(tmp_path, ahead, **corrected)
    with pytest.raises(ConfigError, match="value_rank_states is not supported in 2 processes with"):
        check(tmp_path, SERVER, **ranks)


def test_missing_package_old_package_and_missing_device_are_told(tmp_path, monkeypatch):
    fake_vllm.install(monkeypatch)
    check(tmp_path, {"backend": "vllm", "gpu_memory_utilization": 0.5, "tensor_parallel_size": 1, "sleep": True})
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0", "the engine must be in this process"
    monkeypatch.setitem(sys.modules, "vllm", None)  # as if it were not installed
    with pytest.raises(ConfigError, match=r"needs the package vllm: pip install 'rl4dialog\[vllm\]'"):
        check(tmp_path)
    for package, message in (
        ({"version": "0.11.2"}, r"needs vllm 0\.22 or newer, not 0\.11\.2"),
        ({"n_devices": 0}, "needs as many CUDA devices, but this machine has 0"),
        ({"is_cpu": True}, "generation.sleep frees memory of a GPU, but this vLLM runs on the CPU"),
    ):
        fake_vllm.install(monkeypatch, **package)
        with pytest.raises(ConfigError, match=message):
            check(tmp_path, {"backend": "vllm", "sleep": True})
