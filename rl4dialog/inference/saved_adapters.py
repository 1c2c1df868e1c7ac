"""Tells whether the published model of a run is the one that was trained, if adapters were merged into it.

Earlier versions merged adapters of a head or an embedding into the weights that both share, so each got the changes of
the other. The adapters beside the model show what was trained.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

from rl4dialog.core.pretrained import load_model
from rl4dialog.inference.loading import model_folder, read_text_config
from rl4dialog.policies.lora import ADAPTER_FOLDER
from rl4dialog.policies.models import embedding_rows
from rl4dialog.training.doctor.subject import Finding

_N_TEXTS, _N_TOKENS = 8, 16  # random texts, to measure with


@torch.no_grad()
def merged_adapters(run: Path) -> Finding:
    """Check that adapters were merged only into weights that no other layer shares. No code of the run is run."""
    config = read_text_config(run)
    folder = model_folder(run)
    if not (folder / ADAPTER_FOLDER).is_dir():
        return Finding("pass", f"{folder} has the weights that were trained: there are no adapters")
    auto_class: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    hint = "Pass a complete run."
    published = load_model(auto_class, str(folder), "language model", hint, with_values=True, dtype=torch.float32)
    names, trained = _as_trained(copy.deepcopy(published), folder / ADAPTER_FOLDER)
    if not names:
        return Finding("pass", f"{folder} is the model that was trained: no layers share merged adapters")
    difference = (_log_probs(published.eval()) - _log_probs(trained.eval())).abs().max()
    measured = (
        f"{folder} is not the model that was trained: the adapters of {', '.join(names)} were merged into weights that "
        f"other layers share, which changes log-probabilities by up to {float(difference):.2g} nats"
    )
    advice = f"use the initial model with {folder / ADAPTER_FOLDER} (peft), or train again; then export or push again"
    return Finding("fail" if difference > 1e-3 else "pass", measured, advice)


def _as_trained(model: PreTrainedModel, adapter: Path) -> tuple[list[str], PreTrainedModel]:
    """The model in which each layer has its own adapters, and the names of layers with adapters in shared weights.

    Adapters that were merged into weights of several layers are taken back.
    """
    from peft import PeftModel
    from peft.tuners.lora import LoraLayer

    sharing: dict[int, list[Any]] = defaultdict(list)
    for module in model.modules():
        if isinstance(weight := getattr(module, "weight", None), Tensor):
            sharing[id(weight)].append(module)
    shared = [layers for layers in sharing.values() if len(layers) > 1]
    merged = [layers[0].weight.clone() for layers in shared]  # peft's file may have the initial weights, too
    peft_model = PeftModel.from_pretrained(model, str(adapter))
    names: list[str] = []
    changes: dict[nn.Module, Tensor] = {}
    adapted: dict[str, Any] = {name: each for name, each in model.named_modules() if isinstance(each, LoraLayer)}
    for name, layer in adapted.items():
        if any(layer.get_base_layer() in layers for layers in shared):
            names.append(name)
            changes[layer.get_base_layer()] = layer.get_delta_weight("default")
    for layers, weight in zip(shared, merged, strict=True):
        initial = weight - sum(changes.get(layer, 0.0) for layer in layers)
        for layer in layers:
            layer.weight = nn.Parameter(initial + changes.get(layer, 0.0), requires_grad=False)
    return names, peft_model.unload()


def _log_probs(model: PreTrainedModel) -> Tensor:
    """Log-probabilities of all tokens after each token of random texts. Shape (texts, tokens, V)."""
    shape, generator = (_N_TEXTS, _N_TOKENS), torch.Generator().manual_seed(0)
    ids = torch.randint(embedding_rows(model), shape, generator=generator)
    inputs = {"input_ids": ids, **({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})}
    logits: Tensor = model(**inputs).logits
    return logits.float().log_softmax(dim=-1)
