"""Hashes of weights. Models with the same hash have identical names and bits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


def weights_hash(model: nn.Module) -> str:
    """Hash of all parameters and buffers of a model, independent of their device."""
    return tensors_hash(model.state_dict())


def model_key(model: PreTrainedModel) -> list[Any]:
    """Weights and settings of a language model, as JSON values: without where, and by which version, it was saved."""
    settings = [json.loads(config.to_json_string()) for config in (model.config, model.generation_config)]
    for each in settings:
        for key in ("_name_or_path", "transformers_version"):
            each.pop(key, None)
    return [weights_hash(model), *settings]


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """Hash of tensors and their names, independent of their order."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        # As bytes, because numpy lacks some of torch's types, such as bfloat16.
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
