"""Perplexity of the replies under another language model: fluency without a reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import ModelError
from rl4dialog.core.protocols import BaseMetric, MetricResult
from rl4dialog.data.dialogue_text import reply_text
from rl4dialog.metrics.checks import check_lengths
from rl4dialog.metrics.frozen_language_model import FrozenLanguageModel
from rl4dialog.text.prompts import encoder_of

_WHO = "metric 'reply_perplexity'"


class ReplyPerplexityMetric(BaseMetric):
    """Perplexity of replies, given the conversation before them, under a language model that is not trained.

    The perplexity is exp of the mean negative log-likelihood per token, over the tokens of all replies. The model reads
    lines such as ``User: hello``. The end of a reply's line counts as a token, so a reply that stops in the middle of a
    sentence is unlikely, too. The score of a single reply is its own perplexity.

    Args:
        model_name: A folder, a ``.gguf`` file, a hub id or a pretrained ``builtin/...`` model.
        batch_size: Replies per forward pass.
        precision: Type of the weights. Log-probabilities are always float32.
        splits: Splits to measure. Other splits do not get the metric, which takes a while with large models.

    Raises:
        ConfigError: If the model has random weights.
        ModelError: If the model cannot be loaded, is an encoder-decoder, or has no token for a line break.
    """

    needs_references = False

    def __init__(
        self,
        model_name: str,
        batch_size: Count = 8,
        precision: Literal["fp32", "bf16"] = "fp32",
        splits: Annotated[Sequence[Literal["train", "val", "test"]], Field(min_length=1)] = ("val", "test"),
    ) -> None:
        self._model = FrozenLanguageModel(model_name, _WHO, batch_size, precision)
        self._tokenizer, self._max_length = self._model.tokenizer, self._model.max_length
        if not encoder_of(self._tokenizer).ids("\n"):
            raise ModelError(
                f"{_WHO}: the tokenizer of {model_name!r} has no token for a line break; use another model"
            )
        self._splits = splits

    def compute(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None = None,
        model: Any = None,
        split_name: str | None = None,
    ) -> MetricResult:
        if split_name is not None and split_name not in self._splits:
            return {}
        check_lengths(generated_texts, prompt_texts, meta_infos)
        infos = meta_infos or [{}] * len(prompt_texts)
        rows = [self._encoded(*each) for each in zip(prompt_texts, generated_texts, infos, strict=True)]
        log_probs = self._model.token_log_probs([context + reply for context, reply in rows])
        totals = [float(each[-len(reply) :].sum()) for each, (_, reply) in zip(log_probs, rows, strict=True)]
        counts = [len(reply) for _, reply in rows]
        each = [_perplexity(total, count) for total, count in zip(totals, counts, strict=True)]
        return {"fluency_metrics/reply_perplexity": (each, _perplexity(sum(totals), sum(counts)))}

    def _encoded(self, prompt: str, reply: str, info: dict[str, Any]) -> tuple[list[int], list[int]]:
        """Tokens of the context, at least one, and of the reply with the end of its line."""
        encoder = encoder_of(self._tokenizer)
        before = reply_text(prompt, "", info).rstrip(" ")
        context = [*encoder.opening, *encoder.ids(before)]
        ids = encoder.continued(f" {reply.strip()}".rstrip(" ") + "\n", before)[-self._max_length + 1 :]
        return context[-(self._max_length - len(ids)) :], ids


def _perplexity(log_likelihood: float, n_tokens: int) -> float:
    import torch

    # Unlike math.exp, torch returns infinity instead of raising an error.
    return float(torch.tensor(-log_likelihood / n_tokens, dtype=torch.float64).exp())
