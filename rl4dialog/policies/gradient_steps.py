"""Optimizers, recomputed layers, and optimizer steps over all processes that skip non-finite gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from stable_baselines3.common.policies import BasePolicy
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.modeling_layers import GradientCheckpointingLayer

from rl4dialog.core.errors import ConfigError, TrainingError, nearest_hint, shown
from rl4dialog.core.registry import import_object
from rl4dialog.functional.distributed import all_reduce_gradients, full_tensor

OPTIMIZERS = {
    "adam": "torch.optim:Adam",
    "adamw": "torch.optim:AdamW",
    "adam_8bit": "bitsandbytes.optim:Adam8bit",
    "adamw_8bit": "bitsandbytes.optim:AdamW8bit",
}
"""The 8-bit variants store Adam's moments in a quarter of the memory (Dettmers et al. 2021, arXiv 2110.02861)."""


def optimizer_class(name: str | type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return the optimizer class of a name; a class is returned unchanged."""
    if isinstance(name, type):
        return name
    where = "alg.policy.args.optimizer_class"
    if name not in OPTIMIZERS:
        raise ConfigError(f"{where}: unknown {name!r}{nearest_hint(name, OPTIMIZERS)} (known: {', '.join(OPTIMIZERS)})")
    try:
        return import_object(OPTIMIZERS[name])
    except ImportError as error:
        raise ConfigError(f"{where}: {name} needs the package bitsandbytes: pip install 'rl4dialog[8bit]'") from error


def check_optimizer(name: str | type[torch.optim.Optimizer], kwargs: Mapping[str, Any]) -> None:
    """Check that an optimizer exists and accepts its arguments."""
    chosen: Any = optimizer_class(name)
    try:
        chosen([torch.nn.Parameter(torch.zeros(1))], lr=1.0, **kwargs)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        message = f"alg.policy.args.optimizer_kwargs: {shown(kwargs)} does not fit {name!r}: {error}"
        raise ConfigError(message) from error


def with_defaults(
    chosen: type[torch.optim.Optimizer], kwargs: Mapping[str, Any] | None, weight_decay: float | None
) -> dict[str, Any]:
    """Complete an optimizer's arguments with ``weight_decay``, if given, and better defaults than torch's."""
    kwargs = {**(kwargs or {}), **({} if weight_decay is None else {"weight_decay": weight_decay})}
    if chosen in (torch.optim.Adam, torch.optim.AdamW):
        # https://arxiv.org/abs/2403.17031 (detail 8): this affects the approximate KL of the first updates.
        kwargs.setdefault("eps", 1e-5)
        if not {"foreach", "capturable", "differentiable"} & kwargs.keys():
            kwargs.setdefault("fused", True)  # one pass over the weights instead of one per operation
    return kwargs


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Layers of the contained language models, as marked by transformers."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def checkpoint_layers(model: nn.Module) -> None:
    """Recompute each layer (Chen et al. 2016, arXiv 1604.06174); transformers' own switch would enable dropout."""
    layers = layers_of(model)
    if not layers:
        what = f"{type(model).__name__} has no layers that can be recomputed"
        raise ConfigError(f"alg.policy.args.gradient_checkpointing: {what}")
    for layer in layers:
        layer.forward = _recomputed(layer.forward)  # type: ignore[method-assign]


class _OneLayer(Cache):
    """What a compiled layer sees of a cache: its own layer, so that no layer is compiled for its number."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        layer: Any = self.layers[0]
        return layer.update(key_states, value_states, *args, **kwargs)


def compile_layers(model: nn.Module) -> None:
    """Compile each layer; layers of a kind share what is compiled, once for each way in which they are called."""
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    for layer in layers_of(model):
        layer.compile()
        if indices := [vars(each)["layer_idx"] for each in layer.modules() if "layer_idx" in vars(each)]:
            layer._compiled_call_impl = _with_one_layer(layer._compiled_call_impl, indices[0])


def _with_one_layer(call: Any, index: int) -> Any:
    def own(argument: Any) -> Any:
        is_cache = type(argument) in (Cache, DynamicCache) and isinstance(argument.layers[index], CacheLayerMixin)
        return _OneLayer(layers=[argument.layers[index]]) if is_cache else argument

    return lambda *args, **kwargs: call(*map(own, args), **{name: own(each) for name, each in kwargs.items()})


def _recomputed(forward: Any) -> Any:
    @wraps(forward)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return wrapper


def skips_by_itself(optimizer: Any, grad_norm: Tensor) -> bool:
    """Whether a step need not wait for the norm of its gradient: kernels of mixed precision can skip themselves."""
    return grad_norm.device.type == "cuda" and getattr(optimizer, "_step_supports_amp_scaling", False)


# An extreme ratio in one minibatch is an isolated event. This many skipped steps in a row mean that training failed.
MAX_SKIPPED_IN_A_ROW = 10


class StepGuard:
    """Skips steps with a non-finite gradient, so that weights never become NaN; raises after `MAX_SKIPPED_IN_A_ROW`."""

    def __init__(self) -> None:
        self._n_skipped = 0
        self.n_in_a_row, self._iteration = 0, 0
        self._unread: list[Tensor] = []  # norms of steps that the device took or skipped

    def begin_iteration(self, iteration: int) -> None:
        """Reset the count; ``iteration`` is used in the error message."""
        self._iteration, self._n_skipped = iteration, 0

    @property
    def n_skipped(self) -> int:
        """Number of steps that were skipped in this iteration; raises if too many follow one another."""
        norms, self._unread = self._unread, []
        for norm in torch.stack(norms).cpu() if norms else ():
            self.allows(norm)
        return self._n_skipped

    def allows(self, grad_norm: Tensor) -> bool:
        """Whether a step with this gradient norm over all processes, so that all decide the same, may be taken."""
        if torch.isfinite(grad_norm):
            self.n_in_a_row = 0
            return True
        self._n_skipped += 1
        self.n_in_a_row += 1
        if self.n_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise TrainingError(
                f"iteration {self._iteration}: the gradient of {MAX_SKIPPED_IN_A_ROW} optimizer steps in a row was not "
                f"finite (NaN or infinite), so the weights are unchanged. Check alg.args.learning_rate (lower it), the "
                f"scale of the reward (reward_fn.normalize, reward_fn.clip), precision (try fp32)"
            )
        return False

    def step(self, policy: BasePolicy, max_grad_norm: float) -> Tensor:
        """Take a step with the gradient of all processes, if finite; returns its norm before it was scaled down."""
        all_reduce_gradients(policy.parameters())
        groups: list[Any] = [policy.parameters()]
        if len(policy.optimizer.param_groups) > 1:
            groups = [group["params"] for group in policy.optimizer.param_groups]
        norms = [full_tensor(nn.utils.clip_grad_norm_(parameters, max_grad_norm)) for parameters in groups]
        grad_norm = norms[0] if len(norms) == 1 else torch.stack(norms).norm()
        optimizer: Any = policy.optimizer
        if skips_by_itself(optimizer, grad_norm) and not getattr(policy, "sharded", False):
            optimizer.found_inf = (grad_norm - grad_norm).ne_(0)  # 1 if it is not finite: inf - inf is not a number
            optimizer.step()
            optimizer.found_inf = None
            self._unread.append(grad_norm)
        elif self.allows(grad_norm):
            optimizer.step()
        return grad_norm

    @contextmanager
    def around(self, optimizer: Optimizer, max_grad_norm: float = math.inf) -> Iterator[None]:
        """Guard steps in external code: without gradients they change nothing. Gradients are summed, then clipped."""

        def drop_if_not_finite(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            all_reduce_gradients(parameters)
            if not self.allows(nn.utils.clip_grad_norm_(parameters, max_grad_norm)):
                for parameter in parameters:
                    parameter.grad = None

        hook = optimizer.register_step_pre_hook(drop_if_not_finite)
        try:
            yield
        finally:
            hook.remove()
