"""A decoder-only language model that is not trained, and measures texts: log-probabilities and hidden states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.core.pretrained import has_random_weights, load_model, load_pretrained
from rl4dialog.metrics.sequence_classifier import max_tokens

if TYPE_CHECKING:
    from torch import Tensor

_HINT = "Set model_name: <folder of a causal model>, a .gguf file, a hub id, or builtin/smollm2-135m-instruct."


class FrozenLanguageModel:
    """A language model, which is loaded on first use.

    Args:
        model_name: A folder, a ``.gguf`` file, a hub id or a pretrained ``builtin/...`` model.
        who: What uses it, for messages.
        batch_size: Texts per forward pass.
        precision: Type of the weights. Results are always float32.

    Attributes:
        config: Its config.
        tokenizer: Its tokenizer.
        max_length: Maximum number of tokens of a text.
    """

    def __init__(
        self, model_name: str, who: str, batch_size: int = 8, precision: Literal["fp32", "bf16"] = "fp32"
    ) -> None:
        self.config, self.tokenizer = read_decoder(model_name, who, _HINT)
        self.max_length = max_tokens(self.tokenizer, self.config)
        self._name, self._who, self._batch_size, self._precision = model_name, who, batch_size, precision

    def token_log_probs(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Log-probability (nats) of each token of each text, except the first one. Shape (tokens - 1,) per text."""
        import torch

        from rl4dialog.functional.log_probs import token_log_probs

        found: list[np.ndarray] = [np.zeros(0)] * len(rows)
        with torch.inference_mode():
            for i, ids, logits in self._outputs(rows, lambda output: output.logits):
                found[i] = token_log_probs(logits[:-1], ids[1:]).cpu().numpy()
        return found

    def mean_states(self, rows: Sequence[Sequence[int]], layer: int) -> list[np.ndarray]:
        """Mean hidden state over the tokens of each text. Shape (hidden size,) per text.

        Args:
            rows: Token ids of the texts, at least one each.
            layer: Index among the hidden states: 0 for the embeddings, -1 for the last layer.
        """
        import torch

        found: list[np.ndarray] = [np.zeros(0)] * len(rows)
        with torch.inference_mode():
            for i, _, states in self._outputs(rows, lambda output: output.hidden_states[layer], hidden=True):
                found[i] = states.float().mean(0).cpu().numpy()
        return found

    def _outputs(
        self, rows: Sequence[Sequence[int]], chosen: Any, hidden: bool = False
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield number, tokens and chosen output of each text. Shapes (tokens,) and (tokens, ...)."""
        from rl4dialog.functional.masks import padded

        # Texts of similar length share a batch, to reduce padding.
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        for start in range(0, len(order), self._batch_size):
            batch = order[start : start + self._batch_size]
            # Padding on the right, after all tokens that count, changes nothing in a causal model.
            ids, mask = (each.to(self._model.device) for each in padded([rows[i] for i in batch]))
            output = self._model(
                input_ids=ids, attention_mask=mask.long(), use_cache=False, output_hidden_states=hidden
            )
            for row, i in enumerate(batch):
                n = len(rows[i])
                yield i, ids[row, :n], chosen(output)[row, :n]

    @property
    def generation_config(self) -> Any:
        """The model's generation config, which can name further end-of-sequence tokens."""
        return self._model.generation_config

    @cached_property
    def _model(self) -> Any:
        return load_decoder(self._name, self._who, _HINT, self._precision)


def read_decoder(model_name: str, who: str, hint: str, role: str = "model") -> tuple[Any, Any]:
    """Read config and tokenizer of a pretrained decoder-only language model.

    Args:
        model_name: A folder, a ``.gguf`` file, a hub id or a pretrained ``builtin/...`` model.
        who: What uses it, for messages.
        hint: What to do about an error, for messages.
        role: What the model is there, for messages.
    """
    from transformers import AutoConfig, AutoTokenizer

    if has_random_weights(model_name):
        raise ConfigError(f"{who}: model_name is {model_name!r}, which has random weights. {hint}")
    config = load_pretrained(AutoConfig, model_name, f"{who}: model", hint)
    if config.is_encoder_decoder:
        raise ModelError(f"{who}: {model_name!r} is an encoder-decoder; the {role} must be decoder-only. {hint}")
    return config, load_pretrained(AutoTokenizer, model_name, f"{who}: tokenizer", hint)


def load_decoder(model_name: str, who: str, hint: str, precision: Literal["fp32", "bf16"]) -> Any:
    """Load a model of :func:`read_decoder` for passes without gradients, on the GPU if there is one."""
    import torch
    from transformers import AutoModelForCausalLM

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    model = load_model(AutoModelForCausalLM, model_name, f"{who}: model", hint, dtype=dtype)
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
