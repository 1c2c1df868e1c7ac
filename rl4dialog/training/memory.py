"""Memory use of a run: predicted from shapes and by tracing the model without its weights, and measured."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from rl4dialog.algorithms.on_policy.clipped import SUPERVISED_BATCH_SIZE
from rl4dialog.catalog import AlgorithmRegistry
from rl4dialog.core.config import OnPolicyConfig
from rl4dialog.core.errors import RL4DialogError
from rl4dialog.core.process_memory import machine_mib, peak_resident_mib, resident_mib
from rl4dialog.functional.distributed import n_processes
from rl4dialog.functional.masks import FIXED_COST, SHARING_COST, length_groups, rows_per_pass
from rl4dialog.policies.casts import tensors_at, wide_places
from rl4dialog.policies.decoding import keeps_states, most_gaps
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.policies.gradient_steps import checkpoint_layers
from rl4dialog.policies.graph_sampler import eager_reason, power_of_two, refusal, uncaptured
from rl4dialog.policies.lora import LoRA
from rl4dialog.policies.models import CACHED, CONTINUED, UNCACHED, embedding_rows, language_model_without_weights
from rl4dialog.text.prompts import encoder_of
from rl4dialog.training.building.conversations import n_weight_copies
from rl4dialog.training.building.policy import policy_class
from rl4dialog.training.building.texts import Lengths, Texts

_FLOAT = 4


@dataclass(frozen=True)
class PassSizes:
    """Sizes of a pass with gradients."""

    n_rows: int
    n_prompts: int  # number of prompts that are read: fewer than rows if these share them
    prompt: int  # tokens of a prompt
    response: int  # tokens after it
    n_scored: int  # tokens of a row whose logits are needed
    n_trunks: int = 1  # models that read the rows: policy, and a separate critic


def predict_activations(architecture: Callable[[], PreTrainedModel], sizes: PassSizes, recomputes: bool) -> int:
    """Predict the bytes that a pass keeps for its backward pass, plus the needs of that pass."""
    # Unlike meta tensors, fake tensors follow the code paths of the device's kernels.
    with FakeTensorMode(), _FakeExperts():
        fake = architecture()
        trunk_bytes, head_bytes = _activations(fake, sizes)
        # The backward pass of a layer also holds gradients of its activations, or recomputed activations.
        layer_bytes = trunk_bytes // fake.config.get_text_config().num_hidden_layers
        if recomputes:
            checkpoint_layers(fake)
            trunk_bytes, head_bytes = _activations(fake, sizes)
            layer_bytes *= 2
    return sizes.n_trunks * trunk_bytes + head_bytes + layer_bytes


class _FakeExperts(TorchFunctionMode):
    """Replaces the product with all experts by one with a single expert: same sizes, and supported in float32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch._grouped_mm:
            return args[0] @ args[1][0]
        return func(*args, **(kwargs or {}))


def _activations(model: PreTrainedModel, sizes: PassSizes) -> tuple[int, int]:
    """Bytes that the trunk, and the head with its log-softmax of scored tokens, keep for the backward pass."""

    def zeros(length: int, n_rows: int = sizes.n_rows) -> Tensor:
        return torch.zeros(n_rows, length, dtype=torch.long)

    with _counting_saved(model.parameters()) as trunk_bytes:
        if model.config.is_encoder_decoder:
            encoded = model.get_encoder()(input_ids=zeros(sizes.prompt)).last_hidden_state
            decoder = model.get_decoder()
            hidden = decoder(input_ids=zeros(sizes.response), encoder_hidden_states=encoded, use_cache=False)
        elif 2 * sizes.n_prompts <= sizes.n_rows:  # read each prompt once, like the causal policy
            cache = model.base_model(input_ids=zeros(sizes.prompt, sizes.n_prompts), use_cache=True).past_key_values
            cache.batch_select_indices(zeros(1)[:, 0])
            hidden = model.base_model(input_ids=zeros(sizes.response), past_key_values=cache, use_cache=True)
        else:
            hidden = model.base_model(input_ids=zeros(sizes.prompt + sizes.response), use_cache=False)
        hidden = hidden.last_hidden_state[:, -sizes.n_scored :].reshape(sizes.n_rows * sizes.n_scored, -1)
    with _counting_saved(model.parameters()) as head_bytes:
        logits = model.get_output_embeddings()(hidden).float()
        log_probs = logits.log_softmax(dim=-1)
        (log_probs.gather(-1, zeros(sizes.n_scored).view(-1, 1)).sum() + (log_probs.exp() * log_probs).sum()).sum()
    # The logits themselves, and their gradient.
    return trunk_bytes(), head_bytes() + 2 * _FLOAT * logits.numel()


@contextmanager
def _counting_saved(parameters: Iterable[Tensor]) -> Iterator[Callable[[], int]]:
    """Count the bytes of tensors that operations save for their backward passes, without parameters."""
    own = {parameter.untyped_storage()._cdata for parameter in parameters}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()._cdata
        if storage not in own:
            kept[storage] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield lambda: sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


MIB = 2**20
_CUDA_CONTEXT = 512 * MIB  # of one process: the driver's, and the workspaces of cuBLAS
_N_PROMPTS = 256
_MAX_ROWS = 4096


def peak_mib(device: torch.device) -> float:
    """Peak memory of this process in MiB: main memory, or memory allocated by torch on a GPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MIB
    if device.type == "mps":  # which counts no peak, but keeps what it once had
        return torch.mps.driver_allocated_memory() / MIB
    return peak_resident_mib()


@dataclass
class MemoryPlan:
    """Predicted memory in bytes, by purpose."""

    program: int  # current memory of the process: libraries, data, tokenizer. On a GPU, that of CUDA itself
    weights: int
    gradients: int  # equal to ``weights``, unless only adapters are trained
    optimizer: int  # Adam's two moments
    # Reference, mask policy, the base model under adapters, and copies of the policy: for self-play, before an update.
    frozen: int
    # Tensors kept for the backward pass of a micro-batch or of the supervised loss, whichever has more, including
    # logits; ``None`` if the model's code cannot be traced without its weights.
    activations: int | None
    rollout: int  # KV caches of prompts and replies being generated, casts, logits of a pass without gradients
    kept: int = 0  # of these, what stays during an update where there is room

    @property
    def total(self) -> int:
        """Peak of a run; a lower bound without ``activations``. Rollouts and updates do not overlap."""
        lasting = self.program + self.weights + self.gradients + self.optimizer + self.frozen
        return lasting + max(self.activations or 0, self.rollout)


# The prediction is off by up to a quarter (tests/end_to_end/test_memory.py).
MEMORY_SHARE = 0.8
LESS_MEMORY = "lower micro_batch_size, or use critic: shared, lora, gradient_checkpointing or precision: bf16"


def whole_memory(args: Mapping[str, Any]) -> tuple[float, str]:
    """The memory in MiB, used or not, where an algorithm with these arguments trains, and where that is."""
    if trains_on_gpu(args):
        return torch.cuda.mem_get_info()[1] / MIB, "on the GPU"
    return machine_mib(), "in main memory"


def trains_on_gpu(args: Mapping[str, Any]) -> bool:
    """Whether an algorithm with these arguments would train on a CUDA device of this machine."""
    return torch.cuda.is_available() and args.get("device", "auto") != "cpu"


def why_without_graphs(
    config: OnPolicyConfig, model: PreTrainedModel, lengths: Lengths, args: Mapping[str, Any]
) -> str | None:
    """Why the rollouts of a run will not be sampled with graphs; ``None`` if they will."""
    policy, device_type = policy_class(config), "cuda" if trains_on_gpu(args) else "cpu"
    of_model = policy.graph_refusal() or refusal(model.config, lengths.prompt + lengths.reply)
    settings = GenerationSettings.from_kwargs(config.own_generation_block.kwargs)
    dtype = torch.bfloat16 if config.lora is not None and config.precision == "bf16" else model.dtype
    of_model = of_model or uncaptured(model.config, dtype, device_type)
    return eager_reason(config.generation.backend, device_type, settings, of_model)


def predict_memory(config: OnPolicyConfig, texts: Texts, args: Mapping[str, Any]) -> MemoryPlan:
    """Predict the peak memory of each process of an RL run without loading weights."""
    lengths, rows = texts.lengths, row_sizes(config, texts, args)
    algorithm = AlgorithmRegistry.resolve(config.alg.id)
    critic = args.get("critic", "separate") if algorithm.needs_critic else "none"
    n_envs = math.ceil(config.env.n_envs / n_processes())
    # Every environment completes at least one conversation.
    n_rows = max(math.ceil(args["n_steps"] * n_envs / rows.n_agent_tokens), n_envs if rows.n_turns > 1 else 0)
    if args.get("batch_size") and args.get("n_epochs"):  # otherwise one minibatch is the whole iteration
        n_tokens = n_rows * rows.n_agent_tokens * n_processes()
        n_rows = math.ceil(n_rows / max(1, round(n_tokens / args["batch_size"])))
    on_gpu = trains_on_gpu(args)
    device_type = "cuda" if on_gpu else "cpu"
    fixed_cost = FIXED_COST[device_type] if args.get("split_by_length") else math.inf
    # Grouping takes quadratic time, so of a huge minibatch, evenly spaced rows stand for all.
    n_considered, micro_batch_size = min(n_rows, _MAX_ROWS), args.get("micro_batch_size")
    chosen = np.arange(n_considered) * n_rows // n_considered % len(rows.prompt_lengths)
    of_batch = rows.prompt_lengths[chosen] + rows.response
    # The largest micro-batch of a minibatch.
    largest = max(length_groups(of_batch, fixed_cost, micro_batch_size), key=lambda g: len(g) * max(of_batch[g]))
    n_rows = min(math.ceil(len(largest) * n_rows / n_considered), micro_batch_size or n_rows)
    prompt_length = int(of_batch[largest].max()) - rows.response
    n_prompts = n_rows
    if args.get("share_prompts") and not args.get("gradient_checkpointing"):
        n_prompts = min(math.ceil(n_rows / args.get("n_generations", 1)), len(texts.data.samples("train")))
    half = config.precision == "bf16"
    auto_class = policy_class(config).auto_class
    architecture = functools.partial(
        language_model_without_weights, config.model_name, texts.tokenizer, lengths.prompt, lengths.reply, auto_class
    )
    with torch.device("meta"):
        model = architecture()
        pays = (n_rows - n_prompts) * prompt_length >= SHARING_COST[device_type]
        can_share = model.config.model_type in CACHED and not keeps_states(model)
        if not (model.config.is_encoder_decoder or (pays and can_share)):
            n_prompts = n_rows
        has_graphs = why_without_graphs(config, model, lengths, args) is None
        if config.lora is not None:
            LoRA(model.bfloat16() if half else model, config.lora)
    weights = [*model.parameters(), *(model.base_model.parameters() if critic == "separate" else ())]
    trained = [p for p in weights if p.requires_grad]
    frozen = [p for p in weights if not p.requires_grad]
    own = [p for p in model.parameters() if p.requires_grad]
    moves, is_offloaded = args.get("reference") in ("ema", "reset"), bool(args.get("offload_reference"))
    has_copy = config.lora is None and args.get("reference") != "none"
    n_copies = (has_copy and not (on_gpu and is_offloaded)) + str(args.get("mask_type", "")).startswith("learned")
    n_opponents, has_beginning = n_weight_copies(config)
    # The initial policy is the reference, if this does not move. With adapters, a moving reference has a copy of them.
    is_held = has_copy and not moves and not is_offloaded
    n_copies_of_own = n_opponents + (has_beginning and not is_held) + (config.lora is not None and moves)
    limits = ("step_back", "target_kl")  # with which there are the weights before an update
    has_old = "step_back" not in algorithm.no_meaning and all(args.get(name) is not None for name in limits)
    frozen += [*model.parameters()] * n_copies + own * (n_copies_of_own + has_old)
    n_trunks = 2 if critic == "separate" else 1
    passes = [PassSizes(n_rows, n_prompts, prompt_length, rows.response, rows.n_agent_tokens, n_trunks)]
    if args.get("supervised_coef"):  # a pass of its own, never split, whose references are as long as replies
        n_rows, prompt = args.get("supervised_batch_size") or SUPERVISED_BATCH_SIZE, int(rows.prompt_lengths.max())
        learns_all = config.warm_start is not None and config.warm_start.loss_on == "all"
        n_scored = prompt + rows.response if learns_all else rows.n_agent_tokens
        passes.append(PassSizes(n_rows, n_rows, prompt, rows.response, n_scored))
    try:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            recomputes = bool(args.get("gradient_checkpointing"))
            activations = max(predict_activations(architecture, sizes, recomputes) for sizes in passes)
    except RL4DialogError:
        raise
    except Exception:  # code of some models depends on tensor values, which fake tensors lack
        activations = None
    vocabulary = embedding_rows(model)
    kept = 0
    remembers = config.env.args.max_turns > 1 and args.get("share_prompts", True)
    remembers = remembers and model.config.model_type in CONTINUED
    if has_graphs:
        n_places = power_of_two(n_envs)  # and in the graphs' pool, logits of a step before and after its filters
        n_columns = lengths.prompt + (most_gaps(lengths.prompt) if remembers else 0)
        kept = n_places * (_cache_bytes(model, n_columns, lengths.reply, half) + 4 * _FLOAT * vocabulary)
        kept += sum(2 * each.numel() for each in tensors_at(wide_places(model, torch.bfloat16)) if half)
        cache = kept
    else:
        cache = n_envs * _cache_bytes(model, rows.longest_prompt, lengths.reply, half)
    if remembers:
        cache += n_envs * _cache_bytes(model, rows.longest_prompt, 0, half)
    n_trained = _bytes_of(trained)
    pass_rows = min(n_envs, rows_per_pass(torch.device(device_type), rows.n_agent_tokens, vocabulary) or n_envs)
    pass_logits = 2 * _FLOAT * vocabulary * max(pass_rows * rows.n_agent_tokens, 3 * n_envs)
    if not on_gpu:
        import transformers.trainer  # noqa: F401  # the run will load it, and it counts as memory of the program
    return MemoryPlan(
        program=_CUDA_CONTEXT if on_gpu else int(resident_mib() * MIB),
        weights=n_trained,
        gradients=n_trained,
        optimizer=n_trained // 2 if str(args.get("optimizer_class")).endswith("8bit") else 2 * n_trained,
        frozen=_bytes_of(frozen),
        activations=activations,
        rollout=cache * (2 if args.get("mask_type") else 1) + pass_logits,
        kept=kept if on_gpu else 0,
    )


@dataclass(frozen=True)
class RowSizes:
    """Sizes of the rows that a run trains on, if all utterances have their maximum length."""

    prompt_lengths: np.ndarray  # prompt lengths of some rows. Shape (n,)
    longest_prompt: int  # longest prompt of a reply, which includes the conversation before it
    response: int  # tokens after the prompt, including answers of the partner
    n_agent_tokens: int  # agent tokens among them
    n_turns: int = 1  # turns in a row: 1 unless they are joined


def row_sizes(config: OnPolicyConfig, texts: Texts, args: Mapping[str, Any]) -> RowSizes:
    """Predict the rows of a run. Without ``max_partner_length``, answers are taken to be as long as replies."""
    reply, limit, max_turns = texts.lengths.reply, texts.lengths.prompt, config.env.args.max_turns
    samples, answer = texts.data.samples("train"), 0
    some = [sample.prompt_or_input_text for sample in samples[:: max(1, len(samples) // _N_PROMPTS)]]
    first = np.clip([len(texts.tokenizer(text, verbose=False)["input_ids"]) for text in some], 1, limit)
    if config.env.args.conversation_partner is not None:
        frame, ids = texts.data.pools["train"].frame(), encoder_of(texts.tokenizer).ids
        answer = (config.env.args.max_partner_length or reply) + len(ids(frame.to_agent)) + len(ids(frame.to_partner))
    # The prompt of each turn contains the conversation so far, up to the limit, from which on all turns are alike.
    n_prompts = min(max_turns, math.ceil(limit / (reply + answer)) + 1)
    prompts = np.concatenate([first + turn * (reply + answer) for turn in range(n_prompts)]).clip(max=limit)
    longest = int(prompts.max())
    if max_turns == 1 or not (args.get("join_turns", True) and policy_class(config).joins_turns):
        return RowSizes(prompts, longest, reply, reply)
    # A turn before which context was dropped begins a new row.
    n_turns = max(1, min(max_turns, (limit - int(first.max())) // (reply + answer) + 1))
    return RowSizes(first, longest, n_turns * reply + (n_turns - 1) * answer, n_turns * reply, n_turns)


def _cache_bytes(model: PreTrainedModel, prompt_length: int, reply_length: int, half: bool) -> int:
    """Bytes of the KV cache, or of the recurrent state, of one reply."""
    config = model.config.get_text_config(decoder=True)
    if config.model_type in UNCACHED:
        return 0
    if getattr(config, "num_attention_heads", None) is None:
        # A recurrent model, whose state has a fixed size.
        cache, ids = DynamicCache(config=model.config), torch.zeros(1, 2, dtype=torch.long, device=model.device)
        with torch.no_grad():
            model.base_model(input_ids=ids, cache_params=cache, use_cache=True)
        states = [layer for layer in cache.layers if isinstance(layer, LinearAttentionCacheLayerMixin)]
        tensors = [t for layer in states for of in (layer.conv_states, layer.recurrent_states) for t in of.values()]
        return _bytes_of(tensor for tensor in tensors if tensor is not None)
    n_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or getattr(config, "d_kv", None)
    head_size = head_size or config.hidden_size // config.num_attention_heads
    n_bytes = 2 if half else model.dtype.itemsize  # autocast makes keys and values half as wide as the weights
    return int(2 * config.num_hidden_layers * (prompt_length + reply_length) * n_heads * head_size * n_bytes)


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
