"""Weights on their way to a vLLM server: a plugin of vLLM that receives them, and the trainer's side.

The workers of the server connect to the trainer and read all tensors. So it takes one port, works between machines with
and without GPUs, and a side that dies is noticed at once. vLLM's own engine for GPUs is ``nccl``.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor

ENGINE: Final = "rl4dialog"  # name of the weight transfer engine of `register`
_POLL_S = 0.1
_HELLO_S = 5.0


def register() -> None:
    """Add the engine to vLLM, in every process of a server (entry point group ``vllm.general_plugins``)."""
    try:
        from vllm.distributed.weight_transfer.base import WeightTransferEngine
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
    except ImportError:  # of an older vLLM, which is not used as a server
        return

    class Engine(WeightTransferEngine):  # type: ignore[misc]
        """Loads weights in a checkpoint's format."""

        init_info_cls = update_info_cls = dict
        _is_open = False

        def init_transfer_engine(self, init_info: Any = None) -> None:
            """Nothing to do: every update has its own connection."""

        shutdown = init_transfer_engine

        def start_weight_update(self) -> None:
            if self._is_open:  # broken off: without this, its weights would count as those of the next update
                finalize_layerwise_reload(self.model, self.model_config)
            self._is_open = True
            self._names = {name for name, _ in self.model.named_parameters()}
            initialize_layerwise_reload(self.model)

        def update_weights(self, update_info: dict[str, Any]) -> None:
            weights = ((name, weight.to(self.device)) for name, weight in received(**update_info))
            loaded = self.model.load_weights(weights)
            if loaded is not None and (missing := sorted(self._names - loaded)):
                raise RuntimeError(f"the policy is another model: it has no weights for {missing[0]}")

        receive_weights = update_weights

        def finish_weight_update(self) -> None:
            finalize_layerwise_reload(self.model, self.model_config)
            self._is_open = False
            if self.device.type == "cpu":
                pack_tied_head(self.model)

    if ENGINE not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(ENGINE, Engine)


def pack_tied_head(model: Any) -> None:
    """Let vLLM's CPU layers copy the weights of a tied output layer, which receives none itself, once more."""
    head = getattr(model, "lm_head", None)
    if head is not None:
        head.quant_method.process_weights_after_loading(head)


def described(weights: Sequence[tuple[str, Tensor]]) -> dict[str, Any]:
    """Names, types and shapes of weights, as vLLM's routes expect them."""
    return {
        "names": [name for name, _ in weights],
        "dtype_names": [str(weight.dtype).removeprefix("torch.") for _, weight in weights],
        "shapes": [list(weight.shape) for _, weight in weights],
    }


class Sender:
    """A port at which the workers of a server read weights. While it is open, the server belongs to this run."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._socket = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.host, self.port = self._socket.getsockname()[:2]
        self._timeout_s = timeout_s

    def send(
        self, weights: Sequence[tuple[str, Tensor]], n_workers: int, token: str, is_over: Callable[[], bool]
    ) -> None:
        """Send weights to all workers, unless the server has already given up."""
        self._socket.settimeout(_POLL_S)
        workers: list[socket.socket] = []
        try:
            while len(workers) < n_workers:
                try:
                    connection, _ = self._socket.accept()
                except TimeoutError:
                    if is_over():
                        return
                    continue
                connection.settimeout(_HELLO_S)
                with suppress(OSError):
                    if connection.recv(len(token), socket.MSG_WAITALL) == token.encode():
                        workers.append(connection)
                        connection.settimeout(self._timeout_s)
                        continue
                connection.close()  # somebody else's
            for _, weight in weights:
                data = _bytes(weight.detach().cpu().contiguous())
                for worker in workers:
                    worker.sendall(data)
        finally:
            for worker in workers:
                worker.close()


def received(
    host: str,
    port: int,
    token: str,
    timeout_s: float,
    names: Sequence[str],
    dtype_names: Sequence[str],
    shapes: Sequence[Sequence[int]],
) -> Iterator[tuple[str, Tensor]]:
    """Weights from a :class:`Sender`, on the CPU."""
    with socket.create_connection((host, port), timeout_s) as connection:
        connection.sendall(token.encode())
        for name, dtype_name, shape in zip(names, dtype_names, shapes, strict=True):
            weight = torch.empty(list(shape), dtype=getattr(torch, dtype_name), device="cpu")
            rest = _bytes(weight)
            while rest:
                n_read = connection.recv_into(rest)
                if not n_read:
                    raise ConnectionError("the trainer closed the connection before all weights were sent")
                rest = rest[n_read:]
            yield name, weight


def _bytes(weight: Tensor) -> memoryview:
    array: Any = weight.reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)
