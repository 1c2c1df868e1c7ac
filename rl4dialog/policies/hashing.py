"""Hashes of weights: two models with the same hash have the same names and the same bits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn


def weights_hash(model: nn.Module) -> str:
    """Hash of all parameters and buffers of a model, wherever they lie."""
    return tensors_hash(model.state_dict())


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """Hash of tensors and their names, in whatever order they come."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        # As bytes: numpy does not know every type of torch, such as bfloat16.
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
