"""Seconds per iteration and memory per GPU of large runs, predicted from bytes, arithmetic and links; nothing is run.

``python -m benchmarks.scale`` prints the tables of docs/clusters.md: predictions beside what was measured on one GPU,
then each method for models of 0.5B to 70B on 1 to 64 GPUs. Left out are rewards, evaluations, and the waiting for the
longest reply of all processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

BANDWIDTH = 3.0e12  # bytes per second of an H100's memory, measured
ARITHMETIC = 800e12  # its multiplications and additions per second in bf16, measured
MEMORY = 80e9
NVLINK, NETWORK = 300e9, 40e9  # bytes per second and GPU that collectives reach within a node, and between nodes
PER_NODE = 8
# What a kernel reaches of the limits above, and seconds per step for launches: fixed, and per layer. Fitted to decoding
# 64 rows with models of 135M and 1B parameters.
REACHED_BANDWIDTH, REACHED_ARITHMETIC = 0.7, 0.4
LAUNCHES = {"eager": (9.6e-3, 0.43e-3), "graph": (1.7e-3, 0.10e-3), "vllm": (2.0e-3, 0.05e-3)}
FORWARDS_PER_UPDATE = 2.5  # launches of a forward and backward pass, in units of a decoding step


@dataclass(frozen=True)
class Model:
    """A decoder-only model: parameters, layers, and the width of the keys of a token in a layer."""

    name: str
    n_parameters: float
    n_layers: int
    key_width: int

    def cache(self, n_tokens: float) -> float:
        """Bytes of keys and values in bf16."""
        return n_tokens * self.n_layers * self.key_width * 2 * 2


@dataclass(frozen=True)
class Work:
    """An iteration: all replies, tokens of a prompt and of a reply, and optimizer steps."""

    n_replies: int = 512
    n_prompt: int = 512
    n_reply: int = 256
    n_steps: int = 8

    @property
    def n_tokens(self) -> int:
        return self.n_replies * (self.n_prompt + self.n_reply)


@dataclass(frozen=True)
class Method:
    """How a model is trained, and what generates its replies: ``eager``, ``graph`` or ``vllm``."""

    name: str
    sampler: str
    lora: bool = False
    shards: bool = False  # FSDP
    gathers_once: bool = False  # for all tokens of the replies: generation.gather_weights
    tensor_parallel: int = 0  # GPUs of one vLLM server on other machines; 0 is a copy in each process


METHODS = (
    Method("copies, all weights", "graph"),
    Method("copies, LoRA", "graph", lora=True),
    Method("copies, LoRA, vLLM", "vllm", lora=True),
    Method("FSDP, all weights", "eager", shards=True, gathers_once=True),
    Method("FSDP, LoRA", "eager", lora=True, shards=True, gathers_once=True),
    Method("FSDP, LoRA, `gather_weights: false`", "eager", lora=True, shards=True),
    Method("FSDP, LoRA, vLLM server", "vllm", lora=True, shards=True, tensor_parallel=PER_NODE),
)
MODELS = (
    Model("0.5B", 0.49e9, 24, 128),
    Model("1.5B", 1.54e9, 28, 256),
    Model("7B", 7.6e9, 28, 512),
    Model("14B", 14.8e9, 48, 1024),
    Model("32B", 32.8e9, 64, 1024),
    Model("70B", 70.6e9, 80, 1024),
)


def link(n_gpus: int) -> float:
    """Bytes per second that a collective over all GPUs reaches."""
    return NVLINK if n_gpus <= PER_NODE else NETWORK


def memory(model: Model, method: Method, n_gpus: int, work: Work) -> float:
    """Bytes per GPU: weights, gradients and Adam's moments in fp32, reference, copy for vLLM, keys and values."""
    rows = work.n_replies / n_gpus
    per_parameter = 4.0 if method.lora else 4 + 4 + 8 + 4  # adapters are their own reference
    held = per_parameter * model.n_parameters / (n_gpus if method.shards else 1)
    if method.gathers_once:
        held += 4 * model.n_parameters
    if method.sampler == "vllm" and not method.tensor_parallel:
        held += 2 * model.n_parameters
    if not method.tensor_parallel:
        held += model.cache(rows * (work.n_prompt + work.n_reply))
    return 1.15 * held + 4e9  # activations of a micro-batch with recomputed layers, fragments, CUDA itself


def rollout_s(model: Model, method: Method, n_gpus: int, work: Work) -> float:
    """Seconds for the replies, with those of all GPUs side by side."""
    n_engines = max(n_gpus // (method.tensor_parallel or 1), 1)
    share = method.tensor_parallel or 1
    rows = work.n_replies / n_engines
    read = 2 * model.n_parameters if method.sampler != "eager" else 8 * model.n_parameters  # fp32, cast for each step
    read += model.cache(rows * (work.n_prompt + work.n_reply / 2))
    fixed, per_layer = LAUNCHES[method.sampler]
    step = max(
        read / share / (REACHED_BANDWIDTH * BANDWIDTH),
        2 * model.n_parameters * rows / share / (REACHED_ARITHMETIC * ARITHMETIC),
    )
    seconds = work.n_reply * (step + fixed + per_layer * model.n_layers)
    seconds += 2 * model.n_parameters * work.n_replies * work.n_prompt / n_gpus / (REACHED_ARITHMETIC * ARITHMETIC)
    if method.shards and not method.tensor_parallel:
        n_gathers = 1 if method.gathers_once else work.n_reply
        seconds += n_gathers * _gather_s(model, n_gpus)
    if method.tensor_parallel:
        seconds += 2 * model.n_parameters / NETWORK / PER_NODE  # the new weights, over the links of a node
    return seconds


def update_s(model: Model, method: Method, n_gpus: int, work: Work) -> tuple[float, float]:
    """Seconds for arithmetic and memory, and for links: log-probabilities twice, gradients, optimizer steps."""
    n, trained = model.n_parameters, 0.01 * model.n_parameters if method.lora else model.n_parameters
    per_token = 2 * 2 + (4 if method.lora else 6) + 2  # own and reference log-probabilities; recomputed layers
    computing = per_token * n * work.n_tokens / n_gpus / (REACHED_ARITHMETIC * ARITHMETIC)
    computing += work.n_steps * 28 * trained / (n_gpus if method.shards else 1) / BANDWIDTH
    fixed, per_layer = LAUNCHES["eager"]
    computing += work.n_steps * FORWARDS_PER_UPDATE * (fixed + per_layer * model.n_layers)
    if n_gpus == 1:
        return computing, 0.0
    if method.shards:  # each step gathers forward and backward, and reduces gradients; two passes before
        passes = 2 * work.n_steps + 2
        return computing, passes * _gather_s(model, n_gpus) + work.n_steps * 4 * trained / link(n_gpus)
    return computing, work.n_steps * 2 * 4 * trained / link(n_gpus)


def _gather_s(model: Model, n_gpus: int) -> float:
    return 4 * model.n_parameters * (n_gpus - 1) / n_gpus / link(n_gpus) if n_gpus > 1 else 0.0


def measured_rows() -> Iterator[tuple[str, str, str]]:
    """What one H100 measured, and what is predicted for it: decoding 64 rows, rollouts and iterations."""
    small, gpt2, big = Model("135M", 0.135e9, 30, 192), Model("GPT-2", 0.124e9, 12, 768), Model("1B", 1.24e9, 16, 512)
    for model, sampler, n_reply, found in (
        (small, "eager", 128, 64 * 128 / 2683),
        (small, "graph", 128, 64 * 128 / 15703),
        (big, "graph", 20, 64 * 20 / 14135),
    ):
        predicted = rollout_s(model, Method("", sampler), 1, Work(64, 48, n_reply))
        yield f"{model.name}, 64 replies of {n_reply} tokens, {sampler}", f"{found:.2f}", f"{predicted:.2f}"
    for n_reply, n_steps, rollout, update in ((20, 8, "0.28", "0.32"), (128, 2, "2.5", "0.16")):
        work, method = Work(64, 48, n_reply, n_steps), Method("", "eager")
        what = f"GPT-2 small, PPO, 64 replies of {n_reply} tokens"
        yield f"{what}: rollout", rollout, f"{rollout_s(gpt2, method, 1, work):.2f}"
        yield f"{what}: update", update, f"{sum(update_s(gpt2, method, 1, work)):.2f}"
    work = Work(64, 48, 20, 8)
    total = rollout_s(big, Method("", "eager"), 1, work) + sum(update_s(big, Method("", "eager"), 1, work))
    yield "1B, PPO, 64 replies of 20 tokens: iteration", "1.2 to 1.4", f"{total:.2f}"


def predicted_rows(numbers_of_gpus: tuple[int, ...] = (1, 8, 64), work: Work | None = None) -> Iterator[list[str]]:
    """For each model and method, ``rollout + update + links`` in seconds by number of GPUs; a dash where it misfits."""
    work = work or Work()
    for model in MODELS:
        for method in METHODS:
            cells = []
            for n_gpus in numbers_of_gpus:
                is_alone = n_gpus == 1 and (method.shards or method.tensor_parallel)
                if is_alone or memory(model, method, n_gpus, work) > MEMORY:
                    cells.append("-")
                    continue
                computing, links = update_s(model, method, n_gpus, work)
                parts = (rollout_s(model, method, n_gpus, work), computing, links)
                cells.append(f"**{sum(parts):,.0f}** ({' + '.join(f'{part:,.0f}' for part in parts)})")
            if set(cells) != {"-"}:
                yield [model.name, method.name, *cells]


if __name__ == "__main__":
    print("| on one H100 | measured (s) | predicted (s) |\n|---|---|---|")
    for row in measured_rows():
        print(f"| {' | '.join(row)} |")
    print("\n| model | method | 1 GPU | 8 GPUs | 64 GPUs |\n|---|---|---|---|---|")
    for cells in predicted_rows():
        print(f"| {' | '.join(cells)} |")
