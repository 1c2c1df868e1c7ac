"""Perplexity of the replies under another language model: fluency without a reference."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.core.pretrained import has_random_weights, load_model, load_pretrained
from rl4dialog.core.protocols import BaseMetric, MetricResult
from rl4dialog.data.dialogue_text import reply_text
from rl4dialog.metrics.checks import check_lengths
from rl4dialog.metrics.sequence_classifier import max_tokens
from rl4dialog.text.prompts import encoder_of

_WHO = "metric 'reply_perplexity'"
_HINT = "Set model_name: <folder of a causal model>, a .gguf file, a hub id, or builtin/smollm2-135m-instruct."


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
        from transformers import AutoConfig, AutoTokenizer

        if has_random_weights(model_name):
            raise ConfigError(f"{_WHO}: model_name is {model_name!r}, which has random weights. {_HINT}")
        config = load_pretrained(AutoConfig, model_name, f"{_WHO}: model", _HINT)
        if config.is_encoder_decoder:
            raise ModelError(f"{_WHO}: {model_name!r} is an encoder-decoder; the model must be decoder-only. {_HINT}")
        self._tokenizer = load_pretrained(AutoTokenizer, model_name, f"{_WHO}: tokenizer", _HINT)
        if not encoder_of(self._tokenizer).ids("\n"):
            raise ModelError(f"{_WHO}: the tokenizer of {model_name!r} has no token for a line break. {_HINT}")
        self._max_length = max_tokens(self._tokenizer, config)
        self._name, self._batch_size, self._precision, self._splits = model_name, batch_size, precision, splits

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
        totals = [0.0] * len(rows)
        # Texts of similar length share a batch, to reduce padding.
        order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]) + len(rows[i][1]))
        for start in range(0, len(order), self._batch_size):
            batch = order[start : start + self._batch_size]
            for i, total in zip(batch, self._log_likelihoods([rows[i] for i in batch]), strict=True):
                totals[i] = total
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

    def _log_likelihoods(self, rows: list[tuple[list[int], list[int]]]) -> list[float]:
        """Log-likelihood (nats) of each reply."""
        import torch

        from rl4dialog.functional.log_probs import token_log_probs
        from rl4dialog.functional.masks import padded

        # Padding on the right, after all tokens that count, changes nothing in a causal model.
        ids, mask = (each.to(self._model.device) for each in padded([context + reply for context, reply in rows]))
        with torch.inference_mode():
            logits = self._model(input_ids=ids, attention_mask=mask.long(), use_cache=False).logits
        found = []
        for row, (context, reply) in enumerate(rows):
            first, end = len(context), len(context) + len(reply)
            found.append(float(token_log_probs(logits[row, first - 1 : end - 1], ids[row, first:end]).sum()))
        return found

    @cached_property
    def _model(self) -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        dtype = torch.bfloat16 if self._precision == "bf16" else torch.float32
        model = load_model(AutoModelForCausalLM, self._name, f"{_WHO}: model", _HINT, dtype=dtype)
        return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def _perplexity(log_likelihood: float, n_tokens: int) -> float:
    import torch

    # Unlike math.exp, torch returns infinity instead of raising an error.
    return float(torch.tensor(-log_likelihood / n_tokens, dtype=torch.float64).exp())
