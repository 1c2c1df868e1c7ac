"""Generation with vLLM, using the policy's current weights.

vLLM only selects the tokens. The detector that the environment uses also finds the end of a reply here, and
log-probabilities are recomputed by the training forward pass. Because the two implementations round differently, a
ratio of probabilities from both would not be 1 before the first update (https://fengyao.notion.site/off-policy-rl).
The difference is logged.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from packaging.version import Version
from torch import Tensor
from torch.cuda import device_count
from transformers import PreTrainedModel

from rl4dialog.core.errors import ConfigError, GenerationError
from rl4dialog.functional.log_probs import NEVER
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.policies.models import embedding_rows, ids_without_token
from rl4dialog.text.end_of_turn import EndOfTurn

if TYPE_CHECKING:
    from rl4dialog.text.end_of_turn import EndOfTurn


MIN_VERSION = "0.22"
_TEMPERATURES = (0.01, 2.0)  # vLLM raises lower values and rejects higher ones
_DISCARD_WEIGHTS = 2  # sleep level


class Request(NamedTuple):
    """A prompt, the reply so far, and the seed for its continuation."""

    prompt: list[int]
    reply: list[int]
    seed: int


class Written(NamedTuple):
    """New tokens and their log-probabilities under the sampler's distribution, filters included, in nats."""

    ids: list[int]
    log_probs: list[float]


class VLLMEngine:
    """Generates replies on the GPU with given weights.

    Args:
        model: The model. Only its architecture is used.
        end_of_turn: Detection of reply ends, with the tokenizer.
        max_length: Maximum length of prompt and reply together, in tokens.
        dtype: Type of weights and computation, ``float32`` or ``bfloat16``.
        seed: Seed of all random draws that do not use a request's seed.
        gpu_memory_utilization: Fraction of GPU memory for weights and cache.
        tensor_parallel_size: Number of GPUs that the model is split across.
        sleep: Release GPU memory while the engine is idle.

    Raises:
        ConfigError: If vLLM is missing or too old, or there are too few GPUs.
        GenerationError: If the engine does not start.
    """

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
        self._vllm = import_vllm(tensor_parallel_size)
        self._end_of_turn = end_of_turn
        without_token = ids_without_token(end_of_turn.tokenizer, embedding_rows(model))
        self._logit_bias = dict.fromkeys(without_token, NEVER) or None
        # With several GPUs, separate processes hold the shards, and weights are sent through main memory.
        self._in_process = tensor_parallel_size == 1
        self._may_sleep, self._asleep = sleep, False
        self._folder = tempfile.TemporaryDirectory(prefix="rl4dialog_vllm_")
        config = copy.deepcopy(model.config)
        config.architectures = [type(model).__name__]
        config.save_pretrained(self._folder.name)
        end_of_turn.tokenizer.save_pretrained(self._folder.name)
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
            )

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Replace all weights, given by transformers' names."""
        if not self._in_process:
            weights = [(name, weight.cpu()) for name, weight in weights]
        with _vllm_errors("vLLM did not load the policy's weights"):
            if self._asleep:
                self._llm.wake_up()
                self._asleep = False
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
            if not self._llm.reset_prefix_cache():
                raise RuntimeError("it keeps cached prompts of the old weights")

    def rest(self) -> None:
        """Idle until the next :meth:`load`."""
        if self._may_sleep and not self._asleep:
            with _vllm_errors("vLLM did not enter sleep mode"):
                self._llm.sleep(level=_DISCARD_WEIGHTS)
            self._asleep = True

    def write(self, requests: Sequence[Request], settings: GenerationSettings, max_new_tokens: int) -> list[Written]:
        """Continue replies until they end or have ``max_new_tokens`` tokens, with those they had; at least one more.

        vLLM detects the turn marker in its own decoded text, so it may stop slightly early or late.
        """
        prompts = [{"prompt_token_ids": request.prompt + request.reply} for request in requests]
        params = [self._sampling_params(request, settings, max_new_tokens) for request in requests]
        with _vllm_errors("vLLM did not generate the replies"):
            outputs = self._llm.generate(prompts, params, use_tqdm=False)
            if len(outputs) != len(requests):
                raise RuntimeError(f"{len(requests)} were requested and {len(outputs)} returned")
            return [_read(output.outputs[0]) for output in outputs]

    def _sampling_params(self, request: Request, settings: GenerationSettings, max_new_tokens: int) -> Any:
        n_written = len(request.reply)
        ends, marker = sorted(self._end_of_turn.single_token_ids), self._end_of_turn.marker
        return self._vllm.SamplingParams(
            temperature=settings.temperature if settings.do_sample else 0.0,
            top_k=settings.top_k,
            top_p=settings.top_p,
            repetition_penalty=settings.repetition_penalty,
            seed=request.seed,
            max_tokens=max_new_tokens - n_written,
            # Without end tokens, vLLM would still suppress the tokenizer's end of sequence.
            min_tokens=max(0, settings.min_length - n_written) if ends else 0,
            ignore_eos=True,  # only the given ids end a reply
            stop_token_ids=ends,
            stop=[marker] if marker else None,
            detokenize=marker is not None,
            skip_special_tokens=False,
            include_stop_str_in_output=True,
            logprobs=0,  # of the sampled token only
            logit_bias=self._logit_bias,
        )


@contextmanager
def _vllm_errors(what: str) -> Iterator[None]:
    """Convert errors of vLLM, with a description of the failed step."""
    try:
        yield
    except Exception as error:
        raise GenerationError(f"{what}: {str(error) or type(error).__name__}") from error


def _read(completion: Any) -> Written:
    ids = [int(id) for id in completion.token_ids]
    if not ids:
        raise RuntimeError(f"one is empty (finish reason: {completion.finish_reason})")
    return Written(ids, [candidates[id].logprob for candidates, id in zip(completion.logprobs, ids, strict=True)])


def import_vllm(tensor_parallel_size: int) -> Any:
    """Import and check the package vllm."""
    # Run the engine in this process, where it can read the policy's weights directly.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    try:
        import vllm
    except ImportError as error:
        raise ConfigError(
            f"generation.backend: vllm needs the package vllm: pip install 'rl4dialog[vllm]' ({error})"
        ) from error
    if Version(vllm.__version__) < Version(MIN_VERSION):
        raise ConfigError(f"generation.backend: vllm needs vllm {MIN_VERSION} or newer, not {vllm.__version__}")
    n_devices = device_count()
    if n_devices < tensor_parallel_size:
        raise ConfigError(
            f"generation.backend: vllm with tensor_parallel_size: {tensor_parallel_size} needs as many CUDA devices, "
            f"but this machine has {n_devices}; backend: transformers needs none"
        )
    return vllm


def check_settings(settings: GenerationSettings, where: str) -> None:
    """Check that vLLM supports these settings with the same meaning."""
    if settings.no_repeat_ngram_size:
        raise ConfigError(f"{where}.no_repeat_ngram_size is not supported with generation.backend: vllm")
    if settings.typical_p < 1:
        raise ConfigError(f"{where}.typical_p is not supported with generation.backend: vllm")
    lowest, highest = _TEMPERATURES
    if settings.do_sample and not lowest <= settings.temperature <= highest:
        raise ConfigError(
            f"{where}.temperature must be between {lowest} and {highest} with generation.backend: vllm, "
            f"not {settings.temperature}"
        )


class VLLMBackend:
    """Generates for a causal policy; see :class:`~rl4dialog.policies.generation.GenerationBackend`.

    The seeds of the replies are drawn from torch's random state. The same state results in the same replies, except for
    rounding differences between batches.
    """

    def __init__(self, engine: VLLMEngine) -> None:
        self._engine = engine
        self._outdated = True

    def weights_will_change(self) -> None:
        """Reload the policy's weights before the next generation."""
        self._engine.rest()
        self._outdated = True

    def generate(
        self, policy: LMActorCriticPolicy, obs: dict[str, Tensor], settings: GenerationSettings, limit: int
    ) -> Replies:
        """Generate one reply per prompt, like the policy's own sampler."""
        check_settings(settings, "generation_kwargs")
        if self._outdated:
            self._engine.load(_weights(policy))
            self._outdated = False
        prompt_mask = obs["prompt_mask"].bool()
        prompts = [ids[mask].tolist() for ids, mask in zip(obs["prompt_ids"].cpu(), prompt_mask.cpu(), strict=True)]
        written = self._write(prompts, settings, policy.end_of_turn, limit)

        replies = Replies.from_ids(prompts, [reply.ids for reply in written], policy.device)
        replies.log_probs = replies.unmasked_log_probs = replies.computed(policy.sequence_log_probs)
        # vLLM reports a greedy token's log-probability without the temperature, and greedy decoding draws no sample.
        if settings.do_sample:
            sampled = torch.tensor([log_prob for reply in written for log_prob in reply.log_probs])
            replies.sampler_log_probs = replies.scattered(sampled.to(policy.device))
        return replies

    def _write(
        self, prompts: list[list[int]], settings: GenerationSettings, end_of_turn: EndOfTurn, max_new_tokens: int
    ) -> list[Written]:
        replies = [Written([], []) for _ in prompts]
        unfinished = list(range(len(prompts)))
        while unfinished:
            seeds = torch.randint(2**31, (len(unfinished),)).tolist()
            requests = [Request(prompts[i], replies[i].ids, seed) for i, seed in zip(unfinished, seeds, strict=True)]
            written = self._engine.write(requests, settings, max_new_tokens)
            unfinished = [
                i
                for i, new in zip(unfinished, written, strict=True)
                if not _append(replies[i], new, end_of_turn, max_new_tokens)
            ]
        return replies


def _append(reply: Written, new: Written, end_of_turn: EndOfTurn, max_new_tokens: int) -> bool:
    """Extend a reply up to its end. Returns whether the end was reached."""
    for token, log_prob in zip(new.ids, new.log_probs, strict=True):
        reply.ids.append(token)
        reply.log_probs.append(log_prob)
        if end_of_turn.is_end(reply.ids) or len(reply.ids) == max_new_tokens:
            return True
    return False


def _weights(policy: LMActorCriticPolicy) -> list[tuple[str, Tensor]]:
    """Weights as in a checkpoint of the language model: merged adapters, buffers included, tied weights only once."""
    model = policy.language_model if policy.lora is None else policy.lora.merged()
    by_memory: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict().items():
        by_memory.setdefault(tensor.data_ptr(), (name, tensor))
    return list(by_memory.values())
