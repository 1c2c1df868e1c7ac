"""The static cache gives the numbers of the loop, whatever was sampled before. Here, steps are called, not replayed."""

import numpy as np
import pytest
import torch
from tiny import make_env, make_gpt2, make_llama, make_policy, make_t5, maskable_class_of

from rl4dialog.functional.masks import padded
from rl4dialog.policies import graph_sampler
from rl4dialog.policies.generation import all_steps
from rl4dialog.text.end_of_turn import EndOfTurn

PROMPTS = [[3, 4, 5], [6], [7, 8, 9, 10, 3], [11, 3], [6], [4, 4]]
ENDS = [0, *range(5, 12)]


def policy_with_graphs(tokenizer, make=make_llama, **kwargs):
    env = make_env(tokenizer, max_episode_length=12, end_of_turn=EndOfTurn(tokenizer, ENDS))
    policy = make_policy(env, make(tokenizer), critic="none", **kwargs)
    policy.sampler = "graph"
    return policy


def observation(prompts=PROMPTS):
    ids, mask = padded(prompts, left=True)
    return {"prompt_ids": ids, "prompt_mask": mask}


def assert_same(found, expected, **tolerance):
    assert torch.equal(found.response_ids, expected.response_ids)
    assert torch.equal(found.response_mask, expected.response_mask)
    for name in ("log_probs", "unmasked_log_probs", "truncated_mass", "sampler_log_probs"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), **tolerance)


def with_sampler(policy, sampler, obs, **kwargs):
    policy.sampler = sampler
    return policy.generate(obs, **kwargs)


@pytest.mark.parametrize("make", [make_gpt2, make_llama])
@pytest.mark.parametrize(
    "settings",
    [{}, {"repetition_penalty": 1.5}, {"min_length": 4}, {"temperature": 0.5}, {"max_new_tokens": 3}],
    ids=str,
)
def test_greedy_replies_are_those_of_the_loop(tokenizer, make, settings):
    policy, settings = policy_with_graphs(tokenizer, make), {"do_sample": False, **settings}
    obs = observation([*PROMPTS, *([i, i + 2] for i in range(3, 20))])
    with_sampler(policy, "graph", obs, **settings)
    for tensor in (tensor for layer in policy._graph_sampler._buffers.layers for tensor in layer):
        tensor.fill_(torch.nan)  # as memory that nobody has cleared
    both = [with_sampler(policy, name, obs, **settings) for name in ("graph", "transformers")]
    assert len({*both[1].response_mask.sum(dim=1).tolist()}) > 1
    assert_same(*both, rtol=0, atol=1e-5)


def test_log_probs_are_those_of_training_also_with_adapters_and_in_bf16(tokenizer):
    for kwargs, tolerance in (({}, 1e-5), ({"lora": {"r": 2}}, 1e-5), ({"precision": "bf16"}, 0.05)):
        policy = policy_with_graphs(tokenizer, **kwargs)
        for p in policy.actor_parameters():
            p.data += 0.1 * torch.randn_like(p)
        replies = policy.generate(observation())
        expected = policy.sequence_log_probs(replies)
        torch.testing.assert_close(replies.log_probs, expected, rtol=0, atol=tolerance)


def test_weights_of_a_changed_policy_are_cast_again(tokenizer):
    policy = policy_with_graphs(tokenizer, precision="bf16")
    before = [p.clone() for p in policy.actor_parameters()]
    policy.generate(observation())
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(before, policy.actor_parameters(), strict=True))
    for p in policy.actor_parameters():
        p.data *= 1.5
    replies = policy.generate(observation())
    torch.testing.assert_close(replies.log_probs, policy.sequence_log_probs(replies), rtol=0, atol=0.05)


def test_replies_depend_on_the_seed_only(tokenizer):
    policy = policy_with_graphs(tokenizer)
    replies = []
    for n_before in (0, 3):
        for i in range(n_before):  # other buffers, settings and numbers of rows
            policy.generate(observation(PROMPTS[: i + 1] * 4), top_k=i + 2)
        torch.manual_seed(5)
        replies.append(policy.generate(observation(), temperature=2.0, top_k=9))
    assert_same(*replies, rtol=0, atol=1e-6)
    assert not torch.equal(replies[0].response_ids, policy.generate(observation(), temperature=2.0).response_ids)


def test_the_batch_shrinks_when_replies_end(tokenizer, monkeypatch):
    policy, sizes = policy_with_graphs(tokenizer), []
    assert policy._graph_sampler is not None  # the check has made its steps
    step = graph_sampler.GraphSampler._step

    def watched(sampler, view, settings):
        sizes.append(len(view.rows))
        step(sampler, view, settings)

    monkeypatch.setattr(graph_sampler.GraphSampler, "_step", watched)
    obs = observation([[i] for i in range(3, 20)] * 2)
    settings, limit = policy._sampler({"temperature": 3.0})
    replies = all_steps(policy._sample_steps(obs, settings, limit, look_every=1))
    assert sorted(sizes, reverse=True) == sizes and len({*sizes}) > 3
    expected = policy_log_probs_at(policy, replies, 3.0)
    torch.testing.assert_close(replies.log_probs, expected, rtol=0, atol=1e-5)


def policy_log_probs_at(policy, replies, temperature):
    hidden, ids = policy._policy_hidden(replies), replies.flat("response_ids")
    scores = policy.model_logits(hidden) / temperature
    return replies.scattered(scores.log_softmax(-1).gather(1, ids[:, None])[:, 0].detach())


@pytest.mark.parametrize("make", [make_gpt2, make_llama])
def test_next_turn_goes_on_from_the_last_prompts(tokenizer, make):
    policy = policy_with_graphs(tokenizer, make)
    turns = [[3, 4, 5, 3, 4], [6, 3, 3, 3, 3]], [[3, 4, 5, 3, 4, 7], [6, 3, 3, 3, 3, 8, 9]]
    with policy.remembering_prompts():
        for prompts in turns:
            replies = policy.generate(observation([*prompts, *prompts]), temperature=2.0)
            assert policy._prompt_cache._find(np.array(prompts[0] + [1])) != (0, 0)
            expected = policy_log_probs_at(policy, replies, 2.0)
            torch.testing.assert_close(replies.log_probs, expected, rtol=0, atol=1e-5)


def test_turns_of_conversations_share_their_buffers_and_steps(tokenizer):
    policy = policy_with_graphs(tokenizer)
    first, others = [3, 4, 5, 6], [[7] * 2, [8]]  # the second conversation has more new tokens than the first
    with policy.remembering_prompts():
        policy.generate(observation([first[:1], first[:1]]))
        buffers = policy._graph_sampler._buffers
        for n_words in ((1, 1), (2, 1), (2, 2), (3, 2)):
            policy.generate(observation([first[:1] + words * n for words, n in zip(others, n_words, strict=True)]))
        assert policy._graph_sampler._buffers is buffers
        longest = policy.max_prompt_length
        for lengths in ((longest // 2 + 1, 1), (longest, longest // 2), (longest, longest)):
            policy.generate(observation([[3] * lengths[0], [4] * lengths[1]]))
        assert policy._graph_sampler._buffers is buffers, "also with the largest gaps"


def out_of_memory(*args):
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_failed_capture_is_named_and_the_steps_are_called(tokenizer, monkeypatch, caplog):
    policy = policy_with_graphs(tokenizer)
    settings = {"temperature": 2.0, "min_length": 12}  # draws depend on the size of the batch, which stays
    torch.manual_seed(3)
    expected = policy.generate(observation(), **settings)
    sampler = policy._graph_sampler
    sampler._captures = True
    monkeypatch.setattr(graph_sampler.GraphSampler, "_captured", out_of_memory)
    torch.manual_seed(3)
    assert_same(policy.generate(observation(), **settings), expected, rtol=0, atol=0)
    assert caplog.text.count("columns (CUDA out of memory): their steps are called") == len(sampler._graphs) > 0


def test_the_device_makes_the_next_tokens_while_the_host_reads(tokenizer, monkeypatch):
    policy, events = policy_with_graphs(tokenizer), []
    sampler = policy._graph_sampler
    sampler._captures = True
    monkeypatch.setattr(graph_sampler.GraphSampler, "_captured", out_of_memory)
    step, copied = graph_sampler.GraphSampler._step, graph_sampler._Buffers.copied

    def watched(self, *args):
        events.append("step")
        step(self, *args)

    def watched_copy(buffers, begin, end):
        wait = copied(buffers, begin, end)
        return lambda: (events.append(f"read {begin} to {end}"), wait())[1]

    monkeypatch.setattr(graph_sampler.GraphSampler, "_step", watched)
    monkeypatch.setattr(graph_sampler._Buffers, "copied", watched_copy)
    policy.generate(observation(), min_length=12)
    four = ["step"] * 4
    assert events == [*four, "read 0 to 1", *four, "read 1 to 5", *four[:3], "read 5 to 9", "read 9 to 12"]
    events.clear()
    for tokens in policy.stream(observation(), min_length=12):
        events.append(len(tokens.ids))
        break
    assert events == ["read 0 to 1", 6], "who waits for single tokens gets each as soon as it is there"


def test_replies_are_sampled_token_by_token_where_there_is_no_memory_for_a_cache(tokenizer, monkeypatch, caplog):
    policy = policy_with_graphs(tokenizer)
    obs = observation(PROMPTS * 2)
    policy.generate(observation(), do_sample=False)
    with monkeypatch.context() as less:
        less.setattr(graph_sampler._Buffers, "load", out_of_memory)
        replies = policy.generate(obs, do_sample=False)
    assert "no static cache of 16 rows with 18 tokens (CUDA out of memory): these replies are" in caplog.text
    assert_same(policy.generate(obs, do_sample=False), replies, rtol=0, atol=1e-5)
    assert policy._graph_sampler._buffers.n_rows == 16


def test_memory_is_freed_for_an_update_unless_there_is_more(tokenizer, monkeypatch):
    policy = policy_with_graphs(tokenizer, precision="bf16")
    expected = policy.generate(observation(), do_sample=False)
    sampler, cache = policy._graph_sampler, policy._graph_sampler._buffers
    tensors = [each for pair in cache.layers for each in pair] + sampler._cast_weights
    n_bytes = sum(tensor.nbytes for tensor in tensors)
    monkeypatch.setattr(graph_sampler, "spare_bytes", lambda device: 8 * n_bytes)
    policy.weights_will_change()
    assert sampler._buffers is cache and sampler._cast_weights
    monkeypatch.setattr(graph_sampler, "spare_bytes", lambda device: 0)
    policy.weights_will_change()
    assert sampler._buffers is cache, "the last update had enough beside it"
    other = policy_with_graphs(tokenizer, precision="bf16")  # such as a partner's
    other.generate(observation(), do_sample=False)
    monkeypatch.setattr(graph_sampler, "spare_bytes", lambda device: 8 * n_bytes - 8)
    policy.weights_will_change()
    sampler = other._graph_sampler
    assert sampler._buffers is None and not sampler._cast_weights and not sampler._graphs
    other.generate(observation(), do_sample=False)
    monkeypatch.setattr(graph_sampler, "spare_bytes", lambda device: 2 * n_bytes)
    policy.weights_will_change()
    assert sampler._buffers is not None, "half of what the last update left"
    assert_same(policy.generate(observation(), do_sample=False), expected, rtol=0, atol=0)


def test_steps_made_for_a_capture_leave_no_trace(tokenizer, monkeypatch):
    policy = policy_with_graphs(tokenizer)
    found = []
    for n_warm_ups in (0, 3):
        torch.manual_seed(3)
        found.append(policy.generate(observation(), temperature=2.0, repetition_penalty=1.5))
        run = graph_sampler.GraphSampler._run

        def with_warm_ups(sampler, buffers, size, n_columns, settings, run=run, n=n_warm_ups or 3):
            view = buffers.view(size, n_columns)
            restore = sampler._restoring(view)
            for _ in range(n):
                sampler._step(view, settings)
                restore()
            run(sampler, buffers, size, n_columns, settings)

        monkeypatch.setattr(graph_sampler.GraphSampler, "_run", with_warm_ups)
    assert_same(*found, rtol=0, atol=0)


def test_two_streams_do_not_share_their_buffers(tokenizer):
    policy = policy_with_graphs(tokenizer)
    kwargs = {"do_sample": False, "min_length": 12}
    alone = [policy.generate(observation([prompt]), **kwargs).response_ids[0].tolist() for prompt in PROMPTS[:2]]
    streams = [policy.stream(observation([prompt]), **kwargs) for prompt in PROMPTS[:2]]
    told = [[int(step.ids[0]) for step in steps] for steps in zip(*streams, strict=True)]
    assert [list(reply) for reply in zip(*told, strict=True)] == alone
    assert not policy._graph_sampler.is_busy


def test_reasons_against_graphs_are_named(tokenizer):
    policy = policy_with_graphs(tokenizer)
    assert policy.eager_reason(policy.settings) is None
    with_ngrams = policy.settings.__class__(no_repeat_ngram_size=2)
    assert "no_repeat_ngram_size" in policy.eager_reason(with_ngrams)
    policy.sampler = "auto"
    assert "CUDA" in policy.eager_reason(policy.settings)
    assert "second model" in maskable_class_of(policy.language_model).graph_refusal()
    seq2seq = make_policy(make_env(tokenizer), make_t5(tokenizer))
    assert "cross-attention" in seq2seq.graph_refusal()
    narrow = policy_with_graphs(tokenizer)
    narrow.language_model.config.sliding_window, narrow.language_model.config.layer_types = 4, ["sliding_attention"] * 2
    assert "attends to 4 tokens, fewer than the 18" in narrow.eager_reason(narrow.settings)


def test_wrong_static_cache_is_found_and_replaced(tokenizer, monkeypatch, caplog):
    policy = policy_with_graphs(tokenizer)
    monkeypatch.setattr(
        graph_sampler._FixedLayer, "update", lambda self, keys, values, *_, **__: (self.keys, self.values)
    )
    replies = policy.generate(observation())
    assert policy._graph_sampler is None and "static cache cannot be used" in caplog.text
    torch.testing.assert_close(replies.log_probs, policy.sequence_log_probs(replies), rtol=0, atol=1e-5)
