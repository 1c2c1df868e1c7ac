"""Generation with vLLM in this process, using the policy's current weights, and its parts for servers.

vLLM only selects the tokens. The detector that the environment uses also finds the end of a reply here, and
log-probabilities are recomputed by the training forward pass. Because the two implementations round differently, a
ratio of probabilities from both would not be 1 before the first update (https://fengyao.notion.site/off-policy-rl).
The difference is logged.
"""

from __future__ import annotations

import copy
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from packaging.version import Version
from torch import Tensor
from torch.cuda import device_count
from transformers import PreTrainedModel

from rl4dialog.core.errors import ConfigError, GenerationError
from rl4dialog.core.registry import optional_module
from rl4dialog.features.vllm.transfer import pack_tied_head
from rl4dialog.functional.distributed import is_main_process
from rl4dialog.functional.log_probs import NEVER
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.decoding import Obs
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.policies.models import embedding_rows, ids_without_token
from rl4dialog.policies.sharding import whole_lora, whole_weights
from rl4dialog.text.end_of_turn import EndOfTurn

MIN_VERSION = "0.22"
_MAX_TEMPERATURE = 2.0  # vLLM rejects higher ones
_DISCARD_WEIGHTS = 2  # sleep level
_READ_AT_ONCE = 4096  # tokens of prompts in a step on a CPU, vLLM's default there
_N_CHECKS, _N_CHECKED = 3, 8  # checks of the weights, and their prompts, if settings change the distribution
_MAX_SAMPLER_KL = 0.2  # nats per token; in bf16, rounding makes up to 0.02
Written = tuple[list[list[int]], list[list[float]]]  # token ids of replies, and a number for each token


class VLLMSampler(ABC):
    """Generates for a causal policy, instead of its own sampler, with a copy of its weights.

    The seeds of the replies are drawn from torch's random state. The same state results in the same replies, except for
    rounding differences between batches. Of ``model``, only the architecture is used.
    """

    def __init__(self, model: PreTrainedModel, end_of_turn: EndOfTurn) -> None:
        self._end_of_turn = end_of_turn
        without_token = ids_without_token(end_of_turn.tokenizer, embedding_rows(model))
        self._logit_bias = dict.fromkeys(without_token, NEVER) or None
        self._outdated = True
        # Whether it was found to sample from the policy's own distribution, at first and after some changes of weights.
        self._is_checked, self._n_checks_left = False, _N_CHECKS
        self._is_ahead = False  # whether the last replies are of the weights before an update

    def weights_will_change(self) -> None:
        """Send the policy's weights again before the next generation."""
        self._outdated, self._is_checked = True, not self._n_checks_left

    def generate(self, policy: LMActorCriticPolicy, obs: Obs, settings: GenerationSettings, limit: int) -> Replies:
        """Generate one reply per prompt, like the policy's own sampler, with at most ``limit`` tokens."""
        check_settings(settings, "generation_kwargs")
        # At the temperature of the log-probabilities, and without what hides other weights.
        plain = GenerationSettings(temperature=policy.settings.temperature, max_new_tokens=settings.max_new_tokens)
        if not self._is_checked:
            self._is_checked, self._n_checks_left = True, self._n_checks_left - 1
            if settings != plain and policy.settings.do_sample:
                with torch.random.fork_rng(devices=[]):
                    some = {name: tensor[:_N_CHECKED] for name, tensor in obs.items()}
                    self.generate(policy, cast(Obs, some), plain, limit)
        prompts = prompts_of(obs)
        ids, log_probs = self._replies(policy, prompts, settings, limit)
        replies = Replies.from_ids(prompts, ids, policy.device)
        replies.log_probs = replies.unmasked_log_probs = replies.computed(
            policy.sequence_log_probs, policy.lockstep, policy.n_logits
        )
        # vLLM reports a greedy token's log-probability without the temperature, and greedy decoding draws no sample.
        if settings.do_sample:
            sampled = torch.tensor([log_prob for of_reply in log_probs for log_prob in of_reply])
            replies.sampler_log_probs = replies.scattered(sampled.to(policy.device))
            if settings == plain and not self._is_ahead:
                # vLLM must sample from the policy's own distribution, up to rounding.
                kl = float((replies.sampler_log_probs - replies.log_probs)[replies.response_mask].mean())
                if not kl < _MAX_SAMPLER_KL:
                    problem = f"{kl:.2g} nats per token, more than rounding could ({_MAX_SAMPLER_KL})"
                    cause = "it does not compute this model with the policy's weights; use backend: transformers"
                    raise GenerationError(f"vLLM's log-probabilities differ from the policy's by {problem}: {cause}")
        return replies

    def generate_ahead(self, obs: Obs, settings: GenerationSettings, limit: int) -> None:  # noqa: B027
        """Begin replies with the weights before an update, if the backend can while the policy is trained."""

    @abstractmethod
    def _replies(
        self, policy: LMActorCriticPolicy, prompts: list[list[int]], settings: GenerationSettings, limit: int
    ) -> Written:
        """Token ids of the replies with the policy's current weights, and their log-probabilities."""

    @abstractmethod
    def _complete(self, prompts: list[list[int]], params: list[dict[str, Any]]) -> list[list[tuple[int, float]]]:
        """New tokens after each prompt, and their log-probabilities. The params are those of :meth:`_params`."""

    def _write(
        self, prompts: list[list[int]], settings: GenerationSettings, limit: int, random: torch.Generator | None = None
    ) -> Written:
        """Token ids of the replies, and their log-probabilities under the sampler's distribution, in nats."""
        ids: list[list[int]] = [[] for _ in prompts]
        log_probs: list[list[float]] = [[] for _ in prompts]
        unfinished = list(range(len(prompts)))
        # vLLM detects the turn marker in its own decoded text, so it may stop slightly early, and continues, or late.
        while unfinished:
            seeds = torch.randint(2**31, (len(unfinished),), generator=random).tolist()
            params = [
                self._params(len(ids[i]), seed, settings, limit) for i, seed in zip(unfinished, seeds, strict=True)
            ]
            written = self._complete([prompts[i] + ids[i] for i in unfinished], params)
            asked, unfinished = unfinished, []
            for i, tokens in zip(asked, written, strict=True):
                for token, log_prob in tokens:
                    ids[i].append(token)
                    log_probs[i].append(log_prob)
                    if self._end_of_turn.is_end(ids[i]) or len(ids[i]) == limit:
                        break
                else:
                    unfinished.append(i)
        return ids, log_probs

    def _params(self, n_written: int, seed: int, settings: GenerationSettings, limit: int) -> dict[str, Any]:
        """Arguments of ``SamplingParams`` to continue a reply of ``n_written`` tokens up to its end or the limit."""
        ends, marker = sorted(self._end_of_turn.single_token_ids), self._end_of_turn.marker
        return {
            "temperature": settings.temperature if settings.do_sample else 0.0,
            "top_k": settings.top_k,
            "top_p": settings.top_p,
            "repetition_penalty": settings.repetition_penalty,
            "seed": seed,
            "max_tokens": limit - n_written,
            # Without end tokens, vLLM would still suppress the tokenizer's end of sequence.
            "min_tokens": max(0, settings.min_length - n_written) if ends else 0,
            "ignore_eos": True,  # only the given ids end a reply
            "stop_token_ids": ends,
            "stop": [marker] if marker else None,
            "skip_special_tokens": False,
            "include_stop_str_in_output": True,
            "logprobs": 0,  # of the sampled token only
            "logit_bias": self._logit_bias,
        }


class VLLMBackend(VLLMSampler):
    """Generates with an engine here, for ``max_length`` tokens of prompt and reply; ``seed`` is for its own draws."""

    def __init__(
        self,
        model: PreTrainedModel,
        end_of_turn: EndOfTurn,
        max_length: int,
        dtype: str,
        seed: int = 0,
        gpu_memory_utilization: float = 0.3,
        tensor_parallel_size: int = 1,
        sleep: bool = False,
    ) -> None:
        super().__init__(model, end_of_turn)
        self._vllm = import_vllm(tensor_parallel_size, sleep)
        # With several GPUs, separate processes hold the shards, and weights are sent through main memory.
        self._in_process = tensor_parallel_size == 1
        self._may_sleep, self._asleep = sleep, False
        self._folder = tempfile.TemporaryDirectory(prefix="rl4dialog_vllm_")
        config = copy.deepcopy(model.config)
        config.architectures = [type(model).__name__]
        config.save_pretrained(self._folder.name)
        end_of_turn.tokenizer.save_pretrained(self._folder.name)
        is_cpu = _is_for_cpus()
        with _vllm_errors("vLLM did not start"):
            self._llm = self._vllm.LLM(
                model=self._folder.name,
                load_format="dummy",
                dtype=dtype,
                max_model_len=max_length,
                seed=seed,
                gpu_memory_utilization=gpu_memory_utilization,
                tensor_parallel_size=tensor_parallel_size,
                enable_sleep_mode=sleep,
                logprobs_mode="processed_logprobs",
                enforce_eager=is_cpu,  # without graphs, compiling only delays the start
                # On a CPU, a prompt that is read in parts ends the engine if its reply has a seed.
                enable_chunked_prefill=False if is_cpu else None,
                max_num_batched_tokens=max(max_length, _READ_AT_ONCE) if is_cpu else None,
            )

    def weights_will_change(self) -> None:
        """Reload the policy's weights before the next generation, and idle until then."""
        super().weights_will_change()
        if self._may_sleep and not self._asleep:
            with _vllm_errors("vLLM did not enter sleep mode"):
                self._llm.sleep(level=_DISCARD_WEIGHTS)
            self._asleep = True

    def _replies(
        self, policy: LMActorCriticPolicy, prompts: list[list[int]], settings: GenerationSettings, limit: int
    ) -> Written:
        if self._outdated:
            self._load(weights_to_send(policy))
            self._outdated = False
        return self._write(prompts, settings, limit)

    def _load(self, weights: list[tuple[str, Tensor]]) -> None:
        """Replace all weights, given by transformers' names."""
        if not self._in_process:
            weights = [(name, weight.cpu()) for name, weight in weights]
        with _vllm_errors("vLLM did not load the policy's weights"):
            if self._asleep:
                self._llm.wake_up()
                self._asleep = False
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
            if _is_for_cpus():
                self._llm.apply_model(pack_tied_head)
            if not self._llm.reset_prefix_cache():
                raise RuntimeError("it keeps cached prompts of the old weights")

    def _complete(self, prompts: list[list[int]], params: list[dict[str, Any]]) -> list[list[tuple[int, float]]]:
        with _vllm_errors("vLLM did not generate the replies"):
            inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
            of_vllm = [self._vllm.SamplingParams(**each, detokenize=each["stop"] is not None) for each in params]
            outputs = self._llm.generate(inputs, of_vllm, use_tqdm=False)
            if len(outputs) != len(inputs):
                raise RuntimeError(f"{len(inputs)} were requested and {len(outputs)} returned")
            return [_read(output.outputs[0]) for output in outputs]


def prompts_of(obs: Obs) -> list[list[int]]:
    """Token ids of the prompts, without padding."""
    masks = obs["prompt_mask"].bool().cpu()
    return [ids[mask].tolist() for ids, mask in zip(obs["prompt_ids"].cpu(), masks, strict=True)]


@contextmanager
def _vllm_errors(what: str) -> Iterator[None]:
    """Convert errors of vLLM, with a description of the failed step."""
    try:
        yield
    except Exception as error:
        raise GenerationError(f"{what}: {str(error) or type(error).__name__}") from error


def _read(completion: Any) -> list[tuple[int, float]]:
    """New tokens, and their log-probabilities."""
    ids = [int(id) for id in completion.token_ids]
    if not ids:
        raise RuntimeError(f"one is empty (finish reason: {completion.finish_reason})")
    return [(id, candidates[id].logprob) for candidates, id in zip(completion.logprobs, ids, strict=True)]


def _is_for_cpus() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def import_vllm(tensor_parallel_size: int, sleep: bool = False) -> Any:
    """Import and check the package vllm."""
    # Run the engine in this process, where it can read the policy's weights directly.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    vllm = optional_module("vllm", "vllm", "generation.backend: vllm")
    if Version(vllm.__version__) < Version(MIN_VERSION):
        raise ConfigError(f"generation.backend: vllm needs vllm {MIN_VERSION} or newer, not {vllm.__version__}")
    is_cpu = _is_for_cpus()
    n_devices = 1 if is_cpu else device_count()
    if is_cpu and sleep:
        raise ConfigError("generation.sleep frees memory of a GPU, but this vLLM runs on the CPU; remove it")
    if n_devices < tensor_parallel_size:
        wanted = f"vllm with tensor_parallel_size: {tensor_parallel_size} needs as many CUDA devices"
        found = f"this machine has {n_devices}; backend: transformers needs none"
        raise ConfigError(f"generation.backend: {wanted}, but {found}")
    return vllm


def check_settings(settings: GenerationSettings, where: str) -> None:
    """Check that vLLM supports these settings with the same meaning."""
    backend = "with generation.backend: vllm"
    for name in ("no_repeat_ngram_size", "typical_p"):
        if getattr(settings, name) != getattr(GenerationSettings, name):
            raise ConfigError(f"{where}.{name} is not supported {backend}")
    if settings.do_sample and settings.temperature > _MAX_TEMPERATURE:
        allowed = f"at most {_MAX_TEMPERATURE} {backend}"
        raise ConfigError(f"{where}.temperature must be {allowed}, not {settings.temperature}")


def weights_to_send(policy: LMActorCriticPolicy) -> list[tuple[str, Tensor]]:
    """Weights as in a checkpoint of the language model: merged adapters, buffers included, tied weights only once.

    In lockstep, only the main process has them, and all must call this.
    """
    lora = whole_lora(policy)
    weights = whole_weights(policy) if lora is None else None
    if not is_main_process() and policy.lockstep:
        return []  # the main process sends them
    if lora is not None:
        weights = lora.merged().state_dict()
    by_memory: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in (policy.language_model.state_dict() if weights is None else weights).items():
        by_memory.setdefault(tensor.data_ptr(), (name, tensor))
    return list(by_memory.values())
