"""Sampling of replies from a static cache; on a CUDA device, each step is replayed as one graph.

A step reads and writes tensors of fixed size and address: the last tokens, keys and values of all columns, and what was
sampled. So its kernels can be recorded once and started together. Filters, draw and log-probabilities are those of
`generation.choose`, which the token-by-token sampler uses too: nothing in a filter needs to know of graphs, but it must
not read a number back to Python. Prompts are read without a graph, by the same decoder.

Rows that have ended stay in the batch, and their tokens are dropped, until half as many rows would do. Every few steps,
the host reads what was sampled and decides which rows have ended. On other devices, steps are called instead of
replayed, with the same results.

A graph is trusted no further than it was seen to be right. Its first replay must do what a called step does from the
same random state, and so must one graph's in each iteration. `graph_gaps` of the policy compares a rollout with the
training pass.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar
from weakref import WeakSet

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionCacheLayerMixin,
)

from rl4dialog.core.errors import TrainingError
from rl4dialog.functional.log_probs import scale_logits
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.casts import Place, in_place, tensors_at, wide_places
from rl4dialog.policies.decoding import CausalDecoder, Head, decodes_the_same, most_gaps, tolerance
from rl4dialog.policies.generation import (
    DIVERGED,
    GenerationSettings,
    SampledTokens,
    all_steps,
    choose,
    ending_tokens,
    sample_steps,
    sampled,
)
from rl4dialog.policies.models import UNCACHED, UNCAPTURED
from rl4dialog.text.end_of_turn import EndOfTurn

_Key = tuple[int, int, GenerationSettings]  # rows, columns
LOOK_EVERY = 8  # steps from one look at what was sampled to the next; half of them, if the device is ahead of the host
_MIN_COLUMNS = 64
_WARM_UP_STEPS = 3  # before a capture, as torch.cuda.graph asks for
_NOT_FINITE = -1  # in the place of a token

_logger = logging.getLogger(__name__)


class GraphSampler:
    """Samples replies of a decoder-only model, for which there is no :func:`refusal`.

    The weights of the ``model`` may change, but not their addresses. ``trunk`` is the model without its head,
    ``n_columns`` the largest number of tokens of a prompt and its reply, and ``n_new`` that of a reply alone. Buffers
    for ``n_rows`` replies are made at once, so that graphs of fewer ones stay.
    """

    broken: ClassVar[str | None] = None  # why this process records no graph any more
    _living: ClassVar[WeakSet[GraphSampler]] = WeakSet()
    _graphs: dict[_Key, Any]
    _pool: Any

    def __init__(
        self,
        model: PreTrainedModel,
        trunk: nn.Module,
        head: Head,
        end_of_turn: EndOfTurn,
        n_columns: int,
        n_new: int,
        n_rows: int = 1,
        is_check: bool = False,
    ) -> None:
        self._model, self._trunk, self._head, self._end_of_turn = model, trunk, head, end_of_turn
        self._is_check = is_check  # whether a graph that fails is an error
        self._n_columns, self._n_new, self._device = n_columns, n_new, model.device
        self._n_rows = power_of_two(n_rows)
        self._adds_mask = model.config._attn_implementation == "eager"  # instead of choosing by it
        self._random = torch.Generator(self._device)
        self._ends: Tensor | None = None
        self._buffers: _Buffers | None = None
        self._addresses: list[int] = []
        self._drop_graphs()
        self._cast_places: list[Place] = []
        self._cast_weights: list[Tensor] = []
        self._captures = model.device.type == "cuda"
        self._n_kept = -1  # bytes that stayed for the last update; -1 before the first one
        self._living.add(self)
        self.is_busy = False  # whether a stream has begun and not ended: its tokens are in the only buffers
        self.was_used = False  # since the last update

    @torch.no_grad()
    def steps(
        self,
        decoder: CausalDecoder,
        obs: Mapping[str, Tensor],
        settings: GenerationSettings,
        limit: int,
        random: torch.Generator | None = None,
        look_every: int = LOOK_EVERY,
    ) -> Generator[SampledTokens, None, Replies]:
        """Sample one reply per prompt, like :func:`~rl4dialog.policies.generation.sample_steps`.

        ``random`` gives one number, the seed of all draws of this call: no draw depends on earlier graphs or calls. The
        tokens of several steps follow one another after each look.

        Raises:
            TrainingError: If logits are not finite.
        """
        self.is_busy = self.was_used = True
        try:
            seed = torch.randint(2**62, (), device=None if random is None else random.device, generator=random)
            settings, n_rows = replace(settings, max_new_tokens=None), len(decoder.context)
            self._renew_casts()
            with self._with_casts():
                hidden = decoder.next_hidden(None)
                n_needed, size = decoder.mask.shape[1] + self._n_new, power_of_two(n_rows)
                is_talk = decoder.prompt_cache is not None
                most = self._n_columns + (most_gaps(self._n_columns - self._n_new) if is_talk else 0)
                n_columns = min(power_of_two(n_needed, _MIN_COLUMNS), max(n_needed, most))
                n_all = most if is_talk else n_columns  # the same for all turns, so that no graph is recorded anew
                if (buffers := self._loaded_buffers(size, n_columns, n_all, decoder)) is not None:
                    self._random.manual_seed(int(seed))
                    hidden = torch.cat([hidden, hidden[:1].expand(size - n_rows, -1)])
                    self._choose(hidden, buffers.view(size, n_columns), settings)
                del decoder
            if buffers is None:
                decoder = CausalDecoder(self._trunk, obs["prompt_ids"], obs["prompt_mask"], self._head)
                return (yield from sample_steps(decoder, obs, settings, self._end_of_turn, limit, random=random))

            replies: list[list[int]] = [[] for _ in range(n_rows)]
            unfinished, n_steps = list(range(n_rows)), 1
            n_ahead = look_every // 2 if self._captures else 0
            looks = deque([buffers.copied(0, 1)])
            while True:
                # The device makes the next tokens while the host reads these.
                while len(looks) <= bool(n_ahead) and n_steps < limit:
                    begin, n_steps = n_steps, min(n_steps + look_every - n_ahead, limit)
                    for _ in range(begin, n_steps):
                        self._run(buffers, size, n_columns, settings)
                    looks.append(buffers.copied(begin, n_steps))
                seen, seen_log_probs = looks.popleft()()
                for ids_of_step, log_probs in zip(seen.tolist(), seen_log_probs, strict=True):
                    ids = [ids_of_step[row] for row in unfinished]
                    if _NOT_FINITE in ids:
                        raise TrainingError(DIVERGED)
                    rows = torch.tensor(unfinished)
                    yield SampledTokens(rows, torch.tensor(ids), log_probs[rows])
                    for row, token in zip(unfinished, ids, strict=True):
                        replies[row].append(token)
                    unfinished = [row for row in unfinished if not self._end_of_turn.is_end(replies[row])]
                    if not unfinished:
                        break
                if not unfinished or (not looks and n_steps == limit):
                    break
                if power_of_two(len(unfinished)) < size:
                    size = power_of_two(len(unfinished))
                    buffers.keep(unfinished, size)

            # Tokens after the end of a reply never happened.
            lengths = [*map(len, replies)]
            mask = torch.arange(self._n_new, device=self._device) < buffers.moved(lengths).unsqueeze(1)
            numbers = buffers.numbers[..., :n_rows].transpose(1, 2).where(mask, 0.0)
            return sampled(obs, settings, buffers.ids[:, :n_rows].T.where(mask, 0), mask, numbers, max(lengths))
        finally:
            self.is_busy = False

    def _run(self, buffers: _Buffers, size: int, n_columns: int, settings: GenerationSettings) -> None:
        """One step of the first ``size`` rows: read the last tokens and choose the next ones."""
        key, view = (size, n_columns, settings), buffers.view(size, n_columns)
        step = partial(self._called, view, settings)
        if self._captures and not self.broken and key not in self._graphs:
            try:
                self._graphs[key] = self._captured(view, step)
                self._unseen.add(key)
            except RuntimeError as error:  # such as too little memory
                self._give_up(key, str(error))
        graph = self._graphs.get(key)
        if graph is None:
            step()
        elif key not in self._unseen:
            graph.replay()
        else:
            self._unseen.discard(key)
            if (difference := self._difference(view, graph.replay, step)) is not None:
                self._give_up(key, f"its replay differs from a called step: {difference}")

    def _give_up(self, key: _Key, reason: str) -> None:
        if self._is_check:
            raise RuntimeError(reason)
        self._graphs[key] = None
        _logger.warning("no CUDA graph for %d rows of %d columns (%s): their steps are called", *key[:2], reason)

    def _difference(self, view: _View, *ways: Callable[[], None]) -> str | None:
        """How the tokens of a step done in two ways differ, if by more than rounding; what the second one did stays."""
        restore, found = self._restoring(view), []
        for i, way in enumerate(ways):
            if i:
                restore()
            way()
            log_probs = view.numbers[0, view.t - 1, view.rows].where(view.rows < view.ids.shape[1] - 1, 0.0)
            found.append((view.last_ids[:, 0].clone(), log_probs))
        (ids, log_probs), (their_ids, their_log_probs) = found
        is_same = ids == their_ids
        largest = (log_probs - their_log_probs).where(is_same, 0.0).abs().max()
        difference, n_other = torch.stack([largest, (~is_same).sum()]).tolist()
        if not difference <= tolerance(self._model):
            return f"by {difference:.2g} nats"
        return f"{n_other:.0f} of {len(ids)} tokens" if n_other > len(ids) // 8 else None  # two can be equally likely

    def _captured(self, view: _View, step: Callable[[], None]) -> Any:
        """Record a step, and leave what it reads as it was; see the notes on CUDA graphs in torch's documentation."""
        restore, graph = self._restoring(view), torch.cuda.CUDAGraph()
        stream, current = torch.cuda.Stream(self._device), torch.cuda.current_stream(self._device)
        with suppress(RuntimeError):  # not in every build; then the first graph names the pool
            self._pool = self._pool or torch.cuda.graph_pool_handle()
        try:
            # On the model's device, and back on this stream also after a capture that failed.
            with torch.cuda.stream(current):
                stream.wait_stream(current)
                with torch.cuda.stream(stream):
                    for _ in range(_WARM_UP_STEPS):
                        step()
                        restore()
                current.wait_stream(stream)
                graph.register_generator_state(self._random)
                try:
                    # Threads other than this one, such as NCCL's, may call what a capture forbids.
                    with torch.cuda.graph(graph, self._pool, stream, capture_error_mode="thread_local"):
                        step()
                except RuntimeError as error:
                    self._end_capture(graph, error)
                    raise
            self._pool = self._pool or graph.pool()
        finally:
            restore()
        return graph

    def _end_capture(self, graph: Any, error: RuntimeError) -> None:
        """Close what a capture that failed has opened. Not all of it can be, so this process uses no other graph."""
        GraphSampler.broken = f"a capture failed in this process: {error}"
        graph.reset()
        with suppress(RuntimeError):  # torch leaves its memory open if CUDA does not end the capture itself
            torch._C._cuda_endAllocateToPool(self._device.index or 0, self._pool)
            torch._C._cuda_releasePool(self._device.index or 0, self._pool)
        self._drop_graphs()
        self._random = torch.Generator(self._device)  # the other may stay a part of the capture

    def _called(self, view: _View, settings: GenerationSettings) -> None:
        with self._with_casts():
            self._step(view, settings)

    def _drop_graphs(self) -> None:
        """Forget all graphs and their memory."""
        self._graphs, self._pool = {}, None
        self._unseen: set[_Key] = set()  # whose next replay is compared with a called step

    def _restoring(self, view: _View) -> Callable[[], None]:
        """A function that makes what a step changes what it is now."""
        before, random = [tensor.clone() for tensor in view.changing], self._random.get_state()

        def restore() -> None:
            for tensor, value in zip(view.changing, before, strict=True):
                tensor.copy_(value)
            self._random.set_state(random)

        return restore

    def _step(self, view: _View, settings: GenerationSettings) -> None:
        mask, dtype, kind = view.mask, self._model.dtype, self._device.type
        is_cast = torch.is_autocast_enabled(kind)
        if self._adds_mask or kind == "cuda":  # where each layer would do it otherwise
            dtype = torch.get_autocast_dtype(kind) if is_cast and not self._adds_mask else dtype
            mask = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
        # Weights are cast beforehand; a cache of other casts would outlive the capture.
        with torch.autocast(kind, torch.get_autocast_dtype(kind), enabled=is_cast, cache_enabled=False):
            output = self._trunk(
                input_ids=view.last_ids,
                attention_mask=mask,
                position_ids=view.positions,
                past_key_values=view.cache,
                use_cache=True,
            )
            view.column.add_(1)
            view.positions.add_(1)
            self._choose(output.last_hidden_state[:, -1].contiguous(), view, settings)

    def _choose(self, hidden: Tensor, view: _View, settings: GenerationSettings) -> None:
        """Choose the next tokens and write them to where the next step and the host read."""
        logits = scale_logits(self._head(hidden), settings.temperature)
        if self._ends is None:  # in the first step of all, which is not recorded
            self._ends = ending_tokens(self._end_of_turn, logits)
        held_back = self._ends & (view.t < settings.min_length) if settings.min_length else None
        chosen = choose(logits, logits, view.context, settings, settings.processors(), held_back, self._draw)
        is_finite = logits.amax(dim=-1).isfinite()
        place = view.t, view.rows
        view.ids.index_put_(place, chosen.ids.where(is_finite, _NOT_FINITE))
        for numbers, values in zip(view.numbers, chosen[1:], strict=True):
            numbers.index_put_(place, values)
        view.last_ids.copy_(chosen.ids.unsqueeze(1))
        view.context.index_copy_(1, view.t + view.first_reply_column, view.last_ids)
        view.mask.index_fill_(3, view.column, True)
        view.t.add_(1)

    def _draw(self, allowed: Tensor) -> Tensor:
        """Draw from the softmax of logits, by an exponential race, because torch.multinomial reads numbers back."""
        waits = torch.empty_like(allowed).exponential_(generator=self._random)
        return (allowed.softmax(dim=-1) / waits).argmax(dim=-1)

    def _loaded_buffers(self, size: int, n_columns: int, n_all: int, decoder: CausalDecoder) -> _Buffers | None:
        """Buffers with a decoder's prompts, if there is memory. Graphs of other buffers or addresses are dropped."""
        addresses = [each.data_ptr() for each in (*self._model.parameters(), *self._model.buffers())]
        buffers = self._buffers
        n_known = (0, 0) if buffers is None else (buffers.n_rows, buffers.n_columns)
        n_rows, n_all = max(size, self._n_rows, n_known[0]), max(n_columns, n_all, n_known[1])
        if buffers is None or (n_rows, n_all) != n_known:
            self._buffers = buffers = None  # free its memory first
            self._drop_graphs()
        if addresses != self._addresses:
            self._drop_graphs()
            self._addresses = addresses
        try:
            self._buffers = buffers = buffers or _Buffers(n_rows, n_all, self._n_new, self._device)
            buffers.load(decoder, n_columns)
            return buffers
        except torch.OutOfMemoryError as error:
            what = "no static cache of %d rows with %d tokens (%s): these replies are sampled token by token"
            _logger.warning(what, n_rows, n_all, error)
        self._buffers = None
        return None

    @classmethod
    def release_all(cls) -> None:
        """Free memory of all samplers of this process, those of partners included, before an update."""
        for sampler in [*cls._living]:
            if not sampler.is_busy:
                sampler._release()

    def _release(self) -> None:
        """Free what the update may need, with its graphs. The next call makes it again."""
        layers = [] if self._buffers is None else self._buffers.layers
        tensors = [each for pair in layers for each in pair] + self._cast_weights
        n_bytes = sum(tensor.nbytes for tensor in tensors)
        # What stayed for the last update may stay again. Before the first one, nobody knows how much it needs.
        if n_bytes - max(self._n_kept, 0) > spare_bytes(self._device) // (8 if self._n_kept < 0 else 2):
            self._buffers, self._cast_places, self._cast_weights, n_bytes = None, [], [], 0
            self._drop_graphs()
        self._n_kept = n_bytes
        if self._graphs:  # one graph after the other is compared again
            key = next(iter(self._graphs))
            self._graphs[key] = self._graphs.pop(key)
            self._unseen.add(key)

    def _renew_casts(self) -> None:
        """Under autocast, cast the weights that every step would cast, to tensors whose addresses stay."""
        if not torch.is_autocast_enabled(self._device.type):
            return
        dtype = torch.get_autocast_dtype(self._device.type)
        if not self._cast_weights:
            self._cast_places = wide_places(self._model, dtype)
            self._cast_weights = [torch.empty_like(each, dtype=dtype) for each in tensors_at(self._cast_places)]
        if self._cast_weights:
            torch._foreach_copy_(self._cast_weights, tensors_at(self._cast_places))

    def _with_casts(self) -> AbstractContextManager[None]:
        """Let the model use the casts of its weights, with the same results as if autocast had made them."""
        return in_place(self._cast_places, self._cast_weights)


class _View:
    """The part of the buffers that steps of ``size`` rows and ``n_columns`` columns use."""

    def __init__(self, buffers: _Buffers, size: int, n_columns: int) -> None:
        self.last_ids, self.positions = buffers.last_ids[:size], buffers.positions[:size]
        self.mask, self.context = buffers.mask[:size, ..., :n_columns], buffers.context[:size]
        self.rows, self.ids, self.numbers = buffers.rows[:size], buffers.ids, buffers.numbers
        self.t, self.column, self.first_reply_column = buffers.t, buffers.column, buffers.first_reply_column
        pairs = ((keys[:size, :, :n_columns], values[:size, :, :n_columns]) for keys, values in buffers.layers)
        self.cache = Cache(layers=[_FixedLayer(*pair, buffers.column) for pair in pairs])
        self.changing = self.last_ids, self.positions, self.mask, self.context, self.t, self.column


class _Buffers:
    """Tensors that steps read and write, for up to ``n_rows`` rows and ``n_columns`` keys and values of each."""

    def __init__(self, n_rows: int, n_columns: int, n_new: int, device: torch.device) -> None:
        self.n_rows, self.n_columns, self.first_reply_column = n_rows, n_columns, n_columns - n_new

        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.last_ids = zeros(n_rows, 1)  # tokens that the next step reads
        self.positions = zeros(n_rows, 1)  # their positions
        self.mask = zeros(n_rows, 1, 1, n_columns, dtype=torch.bool)  # columns to which they attend
        self.column = zeros(1)  # of the next token, the same for all rows
        self.t = zeros(1)  # number of sampled tokens per row
        self.context = zeros(n_rows, n_columns)  # for the filters; replies begin at `first_reply_column`
        self.rows = zeros(n_rows)  # the reply to which each row belongs, or `n_rows` for a row that is not needed
        self.replies: list[int] = []  # the same of needed rows, in main memory
        self.ids = zeros(n_new, n_rows + 1)  # sampled tokens by step and reply
        self.numbers = zeros(4, n_new, n_rows + 1, dtype=torch.float32)  # of these tokens, in the order of a `Choice`
        self.layers: list[tuple[Tensor, ...]] = []  # keys and values of each. Shape (n_rows, heads, n_columns, dim)
        self._views: dict[tuple[int, int], _View] = {}

    def view(self, size: int, n_columns: int) -> _View:
        """The part for steps of so many rows and columns; always the same object."""
        if (size, n_columns) not in self._views:
            self._views[size, n_columns] = _View(self, size, n_columns)
        return self._views[size, n_columns]

    def load(self, decoder: CausalDecoder, n_columns: int) -> None:
        """Take over the prompts that a decoder has read, and forget everything else."""
        n_rows, n_read = len(decoder.context), decoder.mask.shape[1]
        for tensor in (self.last_ids, self.mask, self.t, self.positions):
            tensor.zero_()
        self.ids.zero_()
        self.numbers.zero_()
        self.rows.fill_(self.n_rows)
        self.rows[:n_rows] = torch.arange(n_rows, device=self.rows.device)
        self.replies = [*range(n_rows)]
        self.column.fill_(n_read)
        self.mask[:n_rows, 0, 0, :n_read] = decoder.mask
        self.positions[:n_rows] = decoder.positions[:, -1:] + 1
        # Columns without a token repeat one of the context, which a filter has seen anyway.
        begin = self.first_reply_column - decoder.context.shape[1]
        self.context[:n_rows] = decoder.context[:, :1]
        self.context[:n_rows, begin : self.first_reply_column] = decoder.context
        unread: list[Tensor] = []
        for i, layer in enumerate(decoder.cache.layers):
            read: Any = layer.keys, layer.values  # type: ignore[union-attr]
            if i == len(self.layers):
                shapes = ((self.n_rows, each.shape[1], self.n_columns, each.shape[3]) for each in read)
                self.layers.append(tuple(each.new_zeros(shape) for each, shape in zip(read, shapes, strict=True)))
            keys, values = self.layers[i]
            keys[:n_rows, :, :n_read], values[:n_rows, :, :n_read] = read
            layer.keys = layer.values = None  # type: ignore[union-attr]  # its memory is for the layers that follow
            unread += [each[:, :, n_read:n_columns] for each in (keys, values)]
        torch._foreach_zero_(unread)  # masked, but a product of 0 and what was not a number would not be 0

    def keep(self, replies: list[int], size: int) -> None:
        """Move the rows of these replies to the first ``size`` rows."""
        row_of = {reply: row for row, reply in enumerate(self.replies)}
        index, self.replies = self.moved([row_of[reply] for reply in replies]), replies
        index = torch.cat([index, index[:1].expand(size - len(replies))])
        of_layers = [each for pair in self.layers for each in pair]
        for tensor in (self.last_ids, self.positions, self.mask, self.context, *of_layers):
            tensor[:size] = tensor[index]
        self.rows[:size] = self.rows[index]
        self.rows[len(replies) :] = self.n_rows

    def moved(self, numbers: list[int]) -> Tensor:
        """A copy on the device, without a wait for it."""
        return torch.tensor(numbers).to(self.rows.device, non_blocking=True)

    def copied(self, begin: int, end: int) -> Callable[[], list[Tensor]]:
        """Begin to copy ids and log-probabilities of these steps, (steps, rows) each; what is returned waits for it."""
        event = torch.cuda.Event() if self.rows.device.type == "cuda" else None
        # To pinned memory, as torch does for a copy that nobody waits for.
        found = [each[begin:end].to("cpu", non_blocking=event is not None) for each in (self.ids, self.numbers[0])]
        if event is not None:
            event.record(torch.cuda.current_stream(self.rows.device))

        def wait() -> list[Tensor]:
            if event is not None:
                event.synchronize()
            return found

        return wait


class _FixedLayer(CacheLayerMixin):
    """Keys and values of one layer, written in place at a column that is the same for all rows."""

    is_compileable = True

    def __init__(self, keys: Tensor, values: Tensor, column: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self._column, self._n_columns = keys, values, column, keys.shape[2]
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        pass

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        assert self.keys is not None and self.values is not None
        self.keys.index_copy_(2, self._column, key_states.to(self.keys.dtype))
        self.values.index_copy_(2, self._column, value_states.to(self.values.dtype))
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._n_columns, 0

    def get_seq_length(self) -> int:
        return self._column[0]  # type: ignore[return-value]

    def get_max_length(self) -> int:
        return self._n_columns


def spare_bytes(device: torch.device) -> int:
    """Memory of a GPU that this process has never needed and could have; none of other devices."""
    if device.type != "cuda":
        return 0
    unused = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    return unused - torch.cuda.max_memory_allocated(device)


def power_of_two(n: int, at_least: int = 1) -> int:
    """The smallest power of two that is not below a number and ``at_least``."""
    return max(at_least, 1 << (n - 1).bit_length())


_NO_CACHE = "the model has no cache of keys and values that could be kept in one place"


def eager_reason(sampler: str, device_type: str, settings: GenerationSettings, of_model: str | None) -> str | None:
    """Why the model is called for each token, such as its own reason ``of_model``; else ``None``."""
    if sampler not in ("auto", "graph"):
        return f"generation.backend is {sampler}"
    if sampler == "auto" and device_type != "cuda":
        return "graphs need a CUDA device"
    return of_model or ("no_repeat_ngram_size compares tokens in Python" if settings.no_repeat_ngram_size else None)


def uncaptured(config: PretrainedConfig, dtype: torch.dtype, device_type: str) -> str | None:
    """Why no step of a model with weights of this type can be recorded on a device, else ``None``."""
    if device_type != "cuda":
        return None  # steps are called
    if hasattr(config, "num_experts_per_tok") and dtype != torch.bfloat16:
        return "experts whose weights are not bfloat16 read back from the GPU how many tokens each of them gets"
    return UNCAPTURED.get(config.model_type) or GraphSampler.broken


def refusal(config: PretrainedConfig, n_columns: int) -> str | None:
    """Why a model cannot have a static cache of so many columns, else ``None``; see also :func:`static_cache_holds`."""
    if config.model_type in UNCACHED:
        return _NO_CACHE
    for layer in DynamicCache(config=config).layers:
        if not isinstance(layer, DynamicLayer) or isinstance(layer, LinearAttentionCacheLayerMixin):
            return _NO_CACHE
        if isinstance(layer, DynamicSlidingWindowLayer) and layer.sliding_window < n_columns:
            return f"the model attends to {layer.sliding_window} tokens, fewer than the {n_columns} of prompt and reply"
    return None


def static_cache_holds(
    model: PreTrainedModel, trunk: nn.Module, head: Head, tokenizer: PreTrainedTokenizerBase, n_prompt: int
) -> bool:
    """Whether a model's log-probabilities after prompts of ``n_prompt`` tokens are the same with a static cache."""
    greedy, n_new = GenerationSettings(do_sample=False), 4
    sampler = GraphSampler(model, trunk, head, EndOfTurn(tokenizer, []), n_prompt + n_new, n_new, is_check=True)
    random = torch.Generator(model.device)  # the global one stays as it is

    def decode(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        obs, decoder = {"prompt_ids": ids, "prompt_mask": mask}, CausalDecoder(trunk, ids, mask, head)
        replies = all_steps(sampler.steps(decoder, obs, greedy, n_new, random))
        assert replies.log_probs is not None
        return replies.response_ids, replies.log_probs

    instead = "static cache cannot be used, so replies are sampled token by token (generation.backend: transformers)"
    return decodes_the_same(model, trunk, head, decode, n_prompt, instead)
