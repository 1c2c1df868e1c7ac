"""A language model that is not trained, and the cosine of vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.core.pretrained import has_random_weights, load_model, load_pretrained
from rl4dialog.scores.classifiers import batches, max_tokens

if TYPE_CHECKING:
    from torch import Tensor


class FrozenLanguageModel:
    """A decoder-only language model, which is loaded on first use. Results are always float32.

    ``model_name`` is a folder, a ``.gguf`` file, a hub id or a pretrained ``builtin/...`` model; ``who`` uses it.
    """

    role = "model"
    hint = "Set model_name: <folder of a causal model>, a .gguf file, a hub id, or builtin/smollm2-135m-instruct."

    def __init__(
        self, model_name: str, who: str, batch_size: int = 8, precision: Literal["fp32", "bf16"] = "fp32"
    ) -> None:
        from transformers import AutoConfig, AutoTokenizer

        if has_random_weights(model_name):
            raise ConfigError(f"{who}: model_name is {model_name!r}, which has random weights. {self.hint}")
        self.config: Any = load_pretrained(AutoConfig, model_name, f"{who}: model", self.hint)
        if self.config.is_encoder_decoder:
            problem = f"{model_name!r} is an encoder-decoder; the {self.role} must be decoder-only"
            raise ModelError(f"{who}: {problem}. {self.hint}")
        self.tokenizer: Any = load_pretrained(AutoTokenizer, model_name, f"{who}: tokenizer", self.hint)
        self.max_length = max_tokens(self.tokenizer, self.config)
        self._name, self._who, self._batch_size, self._precision = model_name, who, batch_size, precision

    def token_log_probs(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Log-probability (nats) of each token of each text, except the first one. Shape (tokens - 1,) per text."""
        from rl4dialog.functional.log_probs import token_log_probs

        return self._of_each(rows, lambda output: output.logits, lambda each, ids: token_log_probs(each[:-1], ids[1:]))

    def mean_states(self, rows: Sequence[Sequence[int]], layer: int) -> list[np.ndarray]:
        """Mean hidden state over the tokens of each text, at least one each. Shape (hidden size,) per text."""
        return self._of_each(
            rows, lambda output: output.hidden_states[layer], lambda each, ids: each.float().mean(0), hidden=True
        )

    def _of_each(
        self,
        rows: Sequence[Sequence[int]],
        chosen: Callable[[Any], Tensor],
        compute: Callable[[Tensor, Tensor], Tensor],
        hidden: bool = False,
    ) -> list[np.ndarray]:
        """What is computed from the chosen output for each text, (tokens, ...), and from its tokens, (tokens,)."""
        import torch

        from rl4dialog.functional.masks import padded

        found: list[np.ndarray] = [np.zeros(0)] * len(rows)
        for batch in batches(list(map(len, rows)), self._batch_size):
            # Padding on the right, after all tokens that count, changes nothing in a causal model.
            ids, mask = (each.to(self._model.device) for each in padded([rows[i] for i in batch]))
            settings = {"use_cache": False, "output_hidden_states": hidden}
            with torch.inference_mode():
                output = chosen(self._model(input_ids=ids, attention_mask=mask.long(), **settings))
                for row, i in enumerate(batch):
                    n = len(rows[i])
                    found[i] = compute(output[row, :n], ids[row, :n]).cpu().numpy()
        return found

    @property
    def generation_config(self) -> Any:
        """The model's generation config, which can name further end-of-sequence tokens."""
        return self._model.generation_config

    @cached_property
    def _model(self) -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        dtype = torch.bfloat16 if self._precision == "bf16" else torch.float32
        model = load_model(AutoModelForCausalLM, self._name, f"{self._who}: model", self.hint, dtype=dtype)
        return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cosine of each pair of vectors; 0 for the zero vector. Shapes (A, d) and (B, d) to (A, B)."""
    norms = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=1)[None]
    return np.divide(a @ b.T, norms, out=np.zeros(norms.shape), where=norms > 0)
