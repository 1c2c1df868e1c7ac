"""A graph that is wrong is noticed, and a capture that fails leaves nothing open. The GPU's part is played by fakes."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from tiny import make_env, make_llama, make_policy

from rl4dialog.functional.masks import padded
from rl4dialog.policies import graph_sampler
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.policies.graph_sampler import GraphSampler, _View, uncaptured
from rl4dialog.text.end_of_turn import EndOfTurn

PROMPTS = [[3, 4, 5], [6, 7], [7, 8, 9, 3], [4, 4], [3, 5], [8]] * 2
LONG = {"min_length": 6}  # so that all rows are there for some steps


@pytest.fixture
def recorded(monkeypatch):
    """Let samplers on the CPU have graphs, which call what they have recorded. Returns those graphs."""
    graphs, init = [], GraphSampler.__init__

    def with_graphs(sampler, *args, **kwargs):
        init(sampler, *args, **kwargs)
        sampler._captures = True

    def captured(sampler, view, step):
        graphs.append(SimpleNamespace(replay=step))
        return graphs[-1]

    monkeypatch.setattr(GraphSampler, "broken", None)
    monkeypatch.setattr(graph_sampler, "spare_bytes", lambda device: 10**9)
    monkeypatch.setattr(GraphSampler, "__init__", with_graphs)
    monkeypatch.setattr(GraphSampler, "_captured", captured)
    return graphs


def policy_with_graphs(tokenizer, **kwargs):
    env = make_env(tokenizer, max_episode_length=24, end_of_turn=EndOfTurn(tokenizer, [0, 5, 6, 7]))
    policy = make_policy(env, make_llama(tokenizer), critic="none", **kwargs)
    policy.sampler = "graph"
    return policy


def iterate(policy):
    """A rollout, its check and the update after it; returns the largest difference to the training pass."""
    ids, mask = padded(PROMPTS, left=True)
    replies = policy.generate({"prompt_ids": ids, "prompt_mask": mask}, **LONG)
    policy.graph_gaps(replies)
    difference = (replies.log_probs - policy.sequence_log_probs(replies)).abs()[replies.response_mask].max()
    policy.weights_will_change()
    with torch.no_grad():
        for parameter in policy.actor_parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return float(difference)


def stale_casts(policy, graphs, monkeypatch):
    monkeypatch.setattr(GraphSampler, "_renew_casts", lambda sampler: None)


def wrong_mask(policy, graphs, monkeypatch):
    sampler, init = policy._graph_sampler, _View.__init__

    def with_other_mask(view, buffers, size, n_columns):
        init(view, buffers, size, n_columns)
        view.mask = view.mask.clone()  # not the one that is loaded

    monkeypatch.setattr(_View, "__init__", with_other_mask)
    sampler._buffers._views.clear()


def replaced_weight(policy, graphs, monkeypatch):
    layer = policy.language_model.model.layers[0].input_layernorm
    old, layer.weight = layer.weight, torch.nn.Parameter(-3 * layer.weight.detach())
    for graph in graphs:
        graph.replay = with_weight(layer, old, graph.replay)
    model = policy.language_model  # as if nobody had looked at addresses
    policy._graph_sampler._addresses = [each.data_ptr() for each in (*model.parameters(), *model.buffers())]


def with_weight(layer, weight, step):
    def replay():
        own, layer.weight = layer.weight, weight
        step()
        layer.weight = own

    return replay


def wrong_bucket(policy, graphs, monkeypatch):
    known = policy._graph_sampler._graphs
    smallest = known[min(known, key=lambda key: key[0])]
    known.update(dict.fromkeys(known, smallest))


def other_seed(policy, graphs, monkeypatch):
    sampler = policy._graph_sampler
    for graph in graphs:
        graph.replay = with_seed(sampler, graph.replay)


def with_seed(sampler, step):
    def replay():
        state = sampler._random.get_state()
        sampler._random.manual_seed(123)
        step()
        sampler._random.set_state(state)

    return replay


FAULTS = [stale_casts, wrong_mask, replaced_weight, wrong_bucket, other_seed]


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_right_graphs_stay(tokenizer, recorded, caplog, precision):
    policy = policy_with_graphs(tokenizer, precision=precision)
    differences = [iterate(policy) for _ in range(4)]
    assert max(differences) < (1e-4 if precision == "fp32" else 0.25) and not caplog.records
    assert policy._graph_sampler is not None and len(recorded) > 2


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_after_the_check_at_the_start_are_noticed_by_the_next_iteration(
    tokenizer, recorded, monkeypatch, caplog, fault
):
    policy = policy_with_graphs(tokenizer, precision="bf16" if fault is stale_casts else "fp32")
    torch.manual_seed(1)
    iterate(policy)
    assert not caplog.records
    fault(policy, recorded, monkeypatch)
    iterate(policy)
    assert "no CUDA graph for 16 rows" in caplog.text or "log-probabilities of CUDA graphs differ" in caplog.text
    assert iterate(policy) < (0.25 if fault is stale_casts else 1e-4), "what is wrong is not used again"


def test_replies_of_wrong_graphs_get_the_log_probabilities_of_training(tokenizer, recorded, monkeypatch):
    policy = policy_with_graphs(tokenizer)
    iterate(policy)
    wrong_mask(policy, recorded, monkeypatch)
    assert iterate(policy) == 0 and policy._graph_sampler is None


@pytest.mark.parametrize("kind", ["parameters", "buffers"])
def test_graphs_are_recorded_again_when_a_tensor_of_the_model_is_another(tokenizer, recorded, kind):
    policy = policy_with_graphs(tokenizer)
    iterate(policy)
    before = dict(policy._graph_sampler._graphs)
    model = policy.language_model.model
    if kind == "parameters":
        model.norm.weight = torch.nn.Parameter(model.norm.weight.detach().clone())
    else:
        model.rotary_emb.register_buffer("inv_freq", model.rotary_emb.inv_freq.clone(), persistent=False)
    iterate(policy)
    assert not {id(graph) for graph in before.values()} & {id(each) for each in policy._graph_sampler._graphs.values()}


class FakeCuda:
    """What a capture calls of torch.cuda, on a device whose captures CUDA invalidates, as torch then behaves."""

    def __init__(self, monkeypatch):
        self.streams, self.current, self.open, self.modes, self.n_begun, self.is_reset = [], "default", set(), [], 0, 0
        monkeypatch.setattr(GraphSampler, "broken", None)
        for name in ("Stream", "current_stream", "stream", "graph", "CUDAGraph", "graph_pool_handle"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda device, pool: self.open.remove((device, pool)))
        monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda device, pool: None)

    def Stream(self, device):
        self.streams.append(SimpleNamespace(device=device, wait_stream=lambda other: None))
        return self.streams[-1]

    def current_stream(self, device):
        return SimpleNamespace(device=device, wait_stream=lambda other: None)

    @contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def graph_pool_handle(self):
        return (0, 7)

    def CUDAGraph(self):
        def reset():
            self.is_reset += 1

        return SimpleNamespace(register_generator_state=lambda random: None, reset=reset)

    @contextmanager
    def graph(self, graph, pool, stream, capture_error_mode):
        self.n_begun += 1
        self.modes.append(capture_error_mode)
        self.open.add((stream.device.index or 0, pool))
        self.current = stream
        yield
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


@pytest.fixture
def invalid(monkeypatch):
    init = GraphSampler.__init__

    def with_graphs(sampler, *args, **kwargs):
        init(sampler, *args, **kwargs)
        sampler._captures = True

    monkeypatch.setattr(GraphSampler, "__init__", with_graphs)
    return FakeCuda(monkeypatch)


def test_capture_that_fails_in_the_check_at_the_start_means_the_loop_and_is_said_once(tokenizer, invalid, caplog):
    policy = policy_with_graphs(tokenizer)
    for _ in range(2):
        iterate(policy)
    assert policy._graph_sampler is None and invalid.n_begun == 1
    assert [each.getMessage() for each in caplog.records] == [
        "LlamaForCausalLM: CUDA error: operation failed due to a previous error during capture; its static cache "
        "cannot be used, so replies are sampled token by token (generation.backend: transformers)"
    ]


def test_capture_that_fails_later_is_closed_and_no_other_begins(tokenizer, monkeypatch, caplog):
    policy = policy_with_graphs(tokenizer)
    sampler = policy._graph_sampler
    device, generator = FakeCuda(monkeypatch), sampler._random
    sampler._captures = True
    assert iterate(policy) < 1e-5 and iterate(policy) < 1e-5
    assert device.n_begun == 1 and not device.open and device.is_reset == 1 and device.current == "default"
    assert device.modes == ["thread_local"], "NCCL's threads may call what this one may not"
    assert {stream.device for stream in device.streams} == {policy.device}, "not those of the current device"
    assert sampler._random is not generator and len(caplog.records) == 1
    reason = uncaptured(policy.language_model.config, torch.float32, "cuda")
    assert reason.startswith("a capture failed in this process: CUDA error")
    assert uncaptured(policy.language_model.config, torch.float32, "cpu") is None


@pytest.mark.parametrize(
    ("model_type", "dtype", "reason"),
    [
        ("mixtral", torch.float32, "experts whose weights are not bfloat16"),
        ("mixtral", torch.bfloat16, None),
        ("phimoe", torch.bfloat16, "positions in main memory"),
        ("mpt", torch.float32, "reads the length of the cache"),
        ("falcon", torch.float32, "list in main memory"),
        ("llama", torch.float32, None),
    ],
)
def test_architectures_whose_step_cannot_be_recorded_are_known(monkeypatch, model_type, dtype, reason):
    from transformers import AutoConfig

    monkeypatch.setattr(GraphSampler, "broken", None)
    found = uncaptured(AutoConfig.for_model(model_type), dtype, "cuda")
    assert (reason is None and found is None) or reason in found


def test_settings_do_not_hide_a_model_that_cannot_be_recorded(tokenizer, monkeypatch):
    policy = policy_with_graphs(tokenizer)
    monkeypatch.setattr(type(policy), "device", torch.device("cuda", 1))
    monkeypatch.setattr(policy.language_model.config, "model_type", "xglm")
    assert "reads the length of the cache" in policy.eager_reason(GenerationSettings())
