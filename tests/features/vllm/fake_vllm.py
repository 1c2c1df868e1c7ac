"""A stand-in for the package vllm: the calls that rl4dialog makes of it, over transformers on the CPU.

It samples by itself and really: its weights are NaN until they are sent, it keeps what it computed for a prefix until
it is told to forget it, it stops at what it is told to stop at, and it refuses what vLLM 0.33 refuses. Signatures have
vLLM's names and nothing else, so an argument that vLLM does not know is an error here too.
"""

import itertools
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from rl4dialog.features.vllm import backend


@dataclass
class SamplingParams:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: list[int] | None = None
    stop: list[str] | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    logit_bias: dict[int, float] | None = None

    def __post_init__(self):
        if not 0 <= self.temperature <= 2 or 0 < self.temperature < 0.01:
            raise ValueError(f"temperature must be in [0, 2], got {self.temperature}")
        if not 0 <= self.min_tokens <= self.max_tokens or self.max_tokens < 1:
            raise ValueError(f"min_tokens {self.min_tokens} and max_tokens {self.max_tokens}")
        if self.stop and not self.detokenize:
            raise ValueError("stop strings are only supported when detokenize is True")


@dataclass
class LLM:
    """vLLM's entry point; the last one that was built is :attr:`last`."""

    model: str
    load_format: str
    dtype: str
    max_model_len: int
    seed: int
    gpu_memory_utilization: float
    tensor_parallel_size: int
    enable_sleep_mode: bool
    logprobs_mode: str
    enforce_eager: bool
    enable_chunked_prefill: bool | None = None
    max_num_batched_tokens: int | None = None

    last: ClassVar[Any] = None

    def __post_init__(self):
        LLM.last = self
        self.calls = []
        self.received = []
        self.n_written = 0
        self.spoil = lambda outputs: outputs
        assert self.load_format == "dummy" and self.logprobs_mode == "processed_logprobs"
        config = AutoConfig.from_pretrained(self.model)
        assert config.architectures, "vLLM finds a model's class by its name"
        self.module = AutoModelForCausalLM.from_config(config).to(getattr(torch, self.dtype)).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(self.model)
        self._prefixes = {}
        self._asleep = False
        self._lose_weights()

    def _lose_weights(self):
        with torch.no_grad():
            for tensor in self.module.state_dict().values():
                tensor.fill_(torch.nan)

    def collective_rpc(self, method, *, kwargs):
        assert method == "reload_weights" and kwargs.keys() == {"weights_iterator"}
        assert not self._asleep
        self._load(kwargs["weights_iterator"])
        return [None]

    def _load(self, weights):
        self.calls.append("reload_weights")
        own = self.module.state_dict()
        self.received = []
        with torch.no_grad():
            for name, weight in weights:
                assert weight.shape == own[name].shape
                own[name].copy_(weight)
                self.received.append(name)
        assert not any(tensor.isnan().any() for tensor in own.values())

    def reset_prefix_cache(self):
        self.calls.append("reset_prefix_cache")
        self._prefixes.clear()
        return True

    def sleep(self, level=1):
        assert self.enable_sleep_mode and not self._asleep and level == 2
        self.calls.append("sleep")
        self._asleep = True
        self._prefixes.clear()
        self._lose_weights()

    def wake_up(self):
        assert self._asleep
        self.calls.append("wake_up")
        self._asleep = False

    @torch.no_grad()
    def generate(self, prompts, sampling_params, *, use_tqdm):
        assert not self._asleep and not use_tqdm and len(prompts) == len(sampling_params)
        self.calls.append("generate")
        pairs = zip(prompts, sampling_params, strict=True)
        replies = [self._reply(prompt["prompt_token_ids"], params) for prompt, params in pairs]
        outputs, read = [None] * len(replies), {i: next(reply) for i, reply in enumerate(replies)}
        while read:
            self._read(read.values())
            for i in list(read):
                try:
                    read[i] = next(replies[i])
                except StopIteration as end:
                    outputs[i] = end.value
                    del read[i]
        return self.spoil(outputs)

    def _read(self, texts):
        """Compute the logits after texts, those of equal length at once."""
        new = sorted({tuple(ids) for ids in texts} - self._prefixes.keys(), key=len)
        for _, rows in itertools.groupby(new, len):
            batch = list(rows)
            self._prefixes |= zip(batch, self.module(input_ids=torch.tensor(batch)).logits[:, -1].float(), strict=True)

    def _reply(self, prompt, params):
        """Ask for the logits after each beginning of the reply; returns the whole one."""
        assert prompt and len(prompt) + params.max_tokens <= self.max_model_len
        generator = torch.Generator().manual_seed(params.seed) if params.seed is not None else None
        ids = []
        log_probs = []
        reason = "length"
        while len(ids) < params.max_tokens:
            yield prompt + ids
            processed = self._processed(prompt + ids, params, len(ids))
            if params.temperature == 0:
                id = int(processed.argmax())
            else:
                id = int(torch.multinomial(processed.exp(), 1, generator=generator))
            ids.append(id)
            log_probs.append({id: SimpleNamespace(logprob=float(processed[id]))})
            if self._stops(ids, params):
                reason = "stop"
                break
        assert params.logprobs == 0
        self.n_written += len(ids)
        completion = SimpleNamespace(token_ids=ids, logprobs=log_probs, finish_reason=reason)
        return SimpleNamespace(outputs=[completion])

    def _processed(self, ids, params, n_new):
        """Log-probabilities of the next token after everything that changes them."""
        logits = self._prefixes[tuple(ids)].clone()
        for id, bias in (params.logit_bias or {}).items():
            logits[id] += bias
        if n_new < params.min_tokens:
            logits[[*(params.stop_token_ids or []), self.tokenizer.eos_token_id]] = -torch.inf
        seen = torch.tensor(sorted(set(ids)))
        penalty = params.repetition_penalty
        logits[seen] = torch.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
        if params.temperature > 0:
            logits = logits / params.temperature
            if params.top_k > 0:
                logits[logits < logits.topk(params.top_k).values[-1]] = -torch.inf
            order = logits.argsort(descending=True)
            before = logits.softmax(-1)[order].cumsum(-1) - logits.softmax(-1)[order]
            logits[order[before >= params.top_p]] = -torch.inf
        return logits.log_softmax(-1)

    def _stops(self, ids, params):
        if ids[-1] in (params.stop_token_ids or []):
            return True
        if ids[-1] == self.tokenizer.eos_token_id and not params.ignore_eos:
            return True
        if not params.stop or len(ids) <= params.min_tokens:
            return False
        text = self.tokenizer.decode(ids, skip_special_tokens=params.skip_special_tokens)
        return any(stop in text for stop in params.stop)


def install(monkeypatch, version="0.33.0", n_devices=1, is_cpu=False):
    """Make it what ``import vllm`` finds, on a machine with GPUs."""
    module = ModuleType("vllm")
    platforms = ModuleType("vllm.platforms")
    platforms.current_platform = SimpleNamespace(is_cpu=lambda: is_cpu)
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    module.__version__, module.LLM, module.SamplingParams = version, LLM, SamplingParams
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setattr(backend, "device_count", lambda: n_devices)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "unset")  # which is changed, and put back with the rest
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "WARNING")
    return LLM
