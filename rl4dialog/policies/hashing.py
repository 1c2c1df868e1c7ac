"""Hashes of weights. Models with the same hash have identical names and bits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn


def weights_hash(model: nn.Module) -> str:
    """Hash of all parameters and buffers of a model, independent of their device."""
    return tensors_hash(model.state_dict())


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """Hash of tensors and their names, independent of their order."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        # As bytes, because numpy lacks some of torch's types, such as bfloat16.
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
