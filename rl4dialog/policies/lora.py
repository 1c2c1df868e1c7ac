"""Low-rank adapters (Hu et al. 2021, arXiv 2106.09685), using peft."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from rl4dialog.core.errors import ConfigError, ModelError, nearest_hint
from rl4dialog.core.registry import optional_module
from rl4dialog.core.types import is_whole_number
from rl4dialog.functional.distributed import copy_all
from rl4dialog.policies.models import fill, without_weights

ADAPTER_FOLDER = "adapter"


class LoRA:
    """Freezes a language model and trains low-rank adapters in it.

    The model object stays the same. With the adapters disabled it equals the initial model, so it serves as its own
    reference without a second copy. An adapted layer no longer shares its weights with other layers, as embedding and
    head often do: merging its adapter would change the others, too.
    """

    def __init__(self, model: PreTrainedModel, settings: Mapping[str, Any]) -> None:
        peft = _peft()
        check_settings(settings)
        _check_layers(model, settings.get("layers_to_transform"))
        _check_names(model, settings)
        _check_rank(model, settings.get("r", 8))
        try:
            with warnings.catch_warnings():
                # GPT-2 stores transposed weights, which peft detects.
                warnings.filterwarnings("ignore", message="fan_in_fan_out|Model has `tie_word_embeddings")
                self._peft_model = peft.get_peft_model(model, peft.LoraConfig(**settings))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"lora: {error}; {_targets_hint(model)}") from error
        if getattr(self._peft_model.active_peft_config, "target_modules_to_tie", None):
            raise ConfigError("lora.ensure_weight_tying: such adapters cannot be merged; remove it, target one layer")
        _untie_adapted(model)

    def off(self) -> AbstractContextManager[None]:
        """Disable the adapters within the context."""
        return self._peft_model.disable_adapter()

    def merged(self) -> PreTrainedModel:
        """A copy of the model with merged adapters, independent of peft."""
        for module in self._peft_model.modules():
            # RecurrentGemma's layers hold the last batch's state, which cannot be copied as part of a graph.
            if isinstance(getattr(module, "recurrent_states", None), Tensor):
                module.recurrent_states = None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Model with `tie_word|Input and output embeddings")
            merged = copy.deepcopy(self._peft_model).merge_and_unload()
        # As _untie_adapted left it; peft takes it for a property of the head alone.
        merged.config.tie_word_embeddings = self._peft_model.get_base_model().config.tie_word_embeddings
        for module in merged.modules():
            module.__dict__.pop("forward", None)  # of a recomputed layer; it would call the original layer
        return merged

    def save_pretrained(self, folder: Path) -> None:
        """Save only the adapters, in peft's format."""
        self._peft_model.save_pretrained(folder)

    def load(self, folder: Path) -> None:
        """Load adapters saved by :meth:`save_pretrained`."""
        peft = _peft()
        own = peft.get_peft_model_state_dict(self._peft_model)
        try:
            state = peft.load_peft_weights(str(folder), device="cpu")
            if has_same := set(state) == set(own):
                copy_all(own, state)
        except (OSError, ValueError, RuntimeError, ModelError) as error:
            raise ModelError(f"{folder} has no adapters that fit this model: {error}") from error
        if not has_same:
            raise ModelError(f"the adapters in {folder} have other settings")

    def keep_structure(self) -> None:
        """Keep the model without its weights, before these are sharded, for :meth:`whole`."""
        self._structure = without_weights(self._peft_model)

    def whole(self, weights: Mapping[str, Tensor]) -> LoRA:
        """The same adapters and model with weights that are gathered from the shards."""
        whole = copy.copy(self)
        whole._peft_model = copy.deepcopy(self._structure)
        fill(whole._peft_model.get_base_model(), weights)
        return whole


def check_settings(settings: Mapping[str, Any]) -> None:
    """Check a ``lora`` block before a model is loaded."""
    known = list(_peft().LoraConfig.__dataclass_fields__)
    for key in settings:
        if key not in known:
            raise ConfigError(f"unknown key 'lora.{key}'{nearest_hint(key, known)}; see peft.LoraConfig")
    r = settings.get("r", 8)
    if not is_whole_number(r, at_least=1):
        raise ConfigError(f"lora.r must be a whole number of at least 1, not {r!r}")


def check_restores(settings: Mapping[str, Any]) -> None:
    """Check that a model without its adapters, which is the reference, equals the initial one."""
    if settings.get("bias", "none") != "none":
        raise ConfigError("lora.bias: biases of the model would be trained in the reference, too; remove it")
    initial = settings.get("init_lora_weights", True)
    if str(initial).split("_")[0] in ("pissa", "olora", "corda", "loftq", "lora"):
        raise ConfigError(f"lora.init_lora_weights: {initial} moves weights of the reference into adapters; remove it")


def _peft() -> Any:
    return optional_module("peft", "lora", "lora")


def _check_layers(model: PreTrainedModel, layers: int | list[int] | None) -> None:
    config = model.config
    n_layers = max(getattr(config, name, 0) for name in ("num_hidden_layers", "encoder_layers", "decoder_layers"))
    chosen = [layers] if isinstance(layers, int) else layers or []
    missing = [layer for layer in chosen if not (is_whole_number(layer, at_least=0) and layer < n_layers)]
    if missing and n_layers:  # peft ignores a layer that does not exist
        raise ConfigError(f"lora.layers_to_transform: the model has the layers 0 to {n_layers - 1}, not {missing[0]!r}")


def _check_names(model: PreTrainedModel, settings: Mapping[str, Any]) -> None:
    """Check that all listed modules exist; peft ignores those that do not if others do."""
    names = [name for name, _ in model.named_modules()]
    for key in ("target_modules", "modules_to_save", "exclude_modules"):
        listed = settings.get(key)
        for wanted in listed if isinstance(listed, list) else ():
            if not any(f".{name}".endswith(f".{wanted}") for name in names):
                near = nearest_hint(wanted, {name.rpartition(".")[2] for name in names}) or f"; {_targets_hint(model)}"
                raise ConfigError(f"lora.{key}: the model has no module {wanted!r}{near}")


def _check_rank(model: PreTrainedModel, rank: int) -> None:
    """Check that adapters are smaller than what they adapt."""
    matrices = [weight.shape for weight in model.parameters() if weight.dim() == 2]
    if matrices and rank > (largest := max(map(min, matrices))):
        raise ConfigError(f"lora.r is {rank:,}, but no layer of the model has a rank above {largest:,}; lower it")


def _untie_adapted(model: PreTrainedModel) -> None:
    """Give each adapted layer weights of its own."""
    from peft.tuners.lora import LoraLayer
    from peft.utils import ModulesToSaveWrapper

    adapted = [module for module in model.modules() if isinstance(module, (LoraLayer, ModulesToSaveWrapper))]
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if model.config.is_encoder_decoder and embedding in adapted:
        called = model.get_encoder().get_input_embeddings()
        if called is not embedding:
            name = next(name for name, module in model.get_encoder().named_modules() if module is called)
            raise ConfigError(f"lora: encoder and decoder read embeddings of their own, which are named {name!r}")
    owners = Counter(id(weight) for module in model.modules() for weight in module._parameters.values())
    for layer in adapted:
        base = layer.get_base_layer() if isinstance(layer, LoraLayer) else None
        weight = getattr(base, "weight", None)
        if base is not None and weight is not None and owners[id(weight)] > 1:
            owners[id(weight)] -= 1
            base.weight = nn.Parameter(weight.detach().clone(), requires_grad=weight.requires_grad)
    # Encoder-decoders keep it: without it, transformers would not fill the embeddings of both sides from one. It reads
    # a saved head of other values in any case.
    if (embedding in adapted or head in adapted) and not model.config.is_encoder_decoder:
        model.config.tie_word_embeddings = embedding.weight is head.weight


def _targets_hint(model: PreTrainedModel) -> str:
    linear = (name for name, module in model.named_modules() if isinstance(module, (nn.Linear, Conv1D)))
    kinds = sorted({name.rpartition(".")[2] for name in linear})
    return f"lora.target_modules can be {', '.join(kinds)}"
