"""Perplexity of the references under the language model being trained."""

from __future__ import annotations

from typing import Any, Literal

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError, ModelError
from rl4dialog.core.pretrained import has_random_weights, load_pretrained
from rl4dialog.core.protocols import BaseMetric, MetricResult
from rl4dialog.metrics.checks import check_lengths


class CausalPerplexityMetric(BaseMetric):
    """Strided perplexity of all references joined: exp of the mean negative log-likelihood per predicted token.

    Args:
        stride: Tokens scored per window; each window's context is as long as the model's positions allow.
        tokenizer_id: Folder or hub id of a tokenizer; by default the run's tokenizer.
        model_type: ``causal``.
        use_text_from_meta_data: Use ``meta_data["reference"]`` instead of the references.
        tokenizer: The run's tokenizer.
    """

    def __init__(
        self,
        stride: Count,
        tokenizer_id: str | None = None,
        model_type: Literal["causal"] = "causal",
        use_text_from_meta_data: bool = False,
        tokenizer: Any = None,
    ) -> None:
        self._stride, self._use_meta_data = stride, use_text_from_meta_data
        self._tokenizer = tokenizer
        if tokenizer_id is not None and not has_random_weights(tokenizer_id):
            from transformers import AutoTokenizer

            self._tokenizer = load_pretrained(
                AutoTokenizer,
                tokenizer_id,
                "metric 'causal_perplexity': tokenizer",
                "Without tokenizer_id, the run's tokenizer is used.",
            )

    def compute(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None = None,
        model: Any = None,
        split_name: str | None = None,
    ) -> MetricResult:
        if split_name == "train":
            return {}
        check_lengths(generated_texts, prompt_texts, reference_texts, meta_infos)
        if model is None or self._tokenizer is None:
            raise ValueError("causal_perplexity needs a model and a tokenizer")
        import torch

        if self._use_meta_data:
            texts = _texts_of(meta_infos)
        else:
            texts = [text for references in reference_texts for text in references]
        ids = self._tokenizer("\n\n".join(texts), return_tensors="pt", truncation=False, verbose=False)["input_ids"]
        if ids.numel() < 2:
            raise ValueError("causal_perplexity needs at least two tokens of reference text")
        _check_vocabulary(self._tokenizer, int(ids.max()), model.get_input_embeddings().weight.shape[0])
        window = getattr(model.config.get_text_config(), "max_position_embeddings", None) or ids.shape[1]
        was_training = model.training
        model.eval()
        try:
            mean_nll = self._mean_nll(model, ids, window)
        finally:
            model.train(was_training)
        # Unlike math.exp, torch returns infinity instead of raising an error.
        return {"fluency_metrics/perplexity": (None, float(torch.tensor(mean_nll, dtype=torch.float64).exp()))}

    def _mean_nll(self, model: Any, ids: Any, window: int) -> float:
        """Mean negative log-likelihood (nats) of every token except the first, each predicted once."""
        import torch

        stride = min(self._stride, window)
        total, n_predicted = 0.0, 0
        with torch.inference_mode():
            for start in range(0, ids.shape[1], stride):
                end = min(start + stride, ids.shape[1])
                begin = max(0, end - window)
                inputs = ids[:, begin:end].to(model.device)
                log_probs = model(inputs).logits.float().log_softmax(-1)[0, :-1]
                # The very first token has no context to be predicted from.
                first = max(start - begin, 1)
                chosen = log_probs.gather(1, inputs[0, 1:, None])[first - 1 :]
                total -= float(chosen.sum())
                n_predicted += len(chosen)
        return total / n_predicted


def _check_vocabulary(tokenizer: Any, largest_used_id: int, n_embeddings: int) -> None:
    """Refuse another model's tokenizer, even if these texts use only valid ids."""
    # Special tokens added only for padding need no embedding.
    special = set(tokenizer.all_special_ids)
    largest = max((id for id in tokenizer.get_vocab().values() if id not in special), default=0)
    largest = max(largest, largest_used_id)
    if largest >= n_embeddings:
        raise ModelError(
            f"metric 'causal_perplexity': token id {largest} is outside the model's vocabulary of {n_embeddings}; use "
            f"the model's own tokenizer"
        )


def _texts_of(meta_infos: list[dict[str, Any]] | None) -> list[str]:
    try:
        return [info["reference"] for info in meta_infos or []]
    except (KeyError, TypeError) as error:
        raise DataError(
            "metric 'causal_perplexity': use_text_from_meta_data needs samples with meta_data['reference']; disable it "
            "to use the references"
        ) from error
