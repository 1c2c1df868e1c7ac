"""Perplexity: of the references under the trained model, and of the replies under another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError, ModelError
from rl4dialog.core.pretrained import has_random_weights, load_pretrained
from rl4dialog.core.protocols import MetricResult
from rl4dialog.data.dialogue_text import reply_text
from rl4dialog.scores.base import Batch, TextMetric
from rl4dialog.scores.language_models import FrozenLanguageModel
from rl4dialog.text.prompts import encoder_of

_WHO = "metric 'reply_perplexity'"


class CausalPerplexityMetric(TextMetric):
    """Strided perplexity of all references joined: exp of the mean negative log-likelihood per predicted token.

    Args:
        stride: Tokens scored per window; each window's context is as long as the model's positions allow.
        tokenizer_id: Folder or hub id of a tokenizer; by default the run's tokenizer.
        model_type: ``causal``.
        use_text_from_meta_data: Use ``meta_data["reference"]`` instead of the references.
        tokenizer: The run's tokenizer.
    """

    uses_model = True

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

            what, hint = "metric 'causal_perplexity': tokenizer", "Without tokenizer_id, the run's tokenizer is used."
            self._tokenizer = load_pretrained(AutoTokenizer, tokenizer_id, what, hint)

    def measure(self, batch: Batch) -> MetricResult:
        if batch.split_name == "train":
            return {}
        model = batch.model
        if model is None or self._tokenizer is None:
            raise ValueError("causal_perplexity needs a model and a tokenizer")
        texts: list[Any] = [text for references in batch.ref_texts for text in references]
        if self._use_meta_data:
            texts = [info.get("reference") for info in batch.meta_infos]
            if None in texts:
                who = "metric 'causal_perplexity': use_text_from_meta_data"
                raise DataError(f"{who} needs samples with meta_data['reference']; disable it to use the references")
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
        return {"fluency_metrics/perplexity": (None, _exp(mean_nll))}

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
        problem = f"token id {largest} is outside the model's vocabulary of {n_embeddings}"
        raise ModelError(f"metric 'causal_perplexity': {problem}; use the model's own tokenizer")


class ReplyPerplexityMetric(TextMetric):
    """Perplexity of replies, given the conversation before them, under a language model that is not trained.

    The perplexity is exp of the mean negative log-likelihood per token, over the tokens of all replies. The model reads
    lines such as ``User: hello``. The end of a reply's line counts as a token, so a reply that stops in the middle of a
    sentence is unlikely, too. The score of a single reply is its own perplexity.

    Args:
        model_name: A folder, a ``.gguf`` file, a hub id or a pretrained ``builtin/...`` model.
        batch_size: Replies per forward pass.
        precision: Type of the weights. Log-probabilities are always float32.
        splits: Splits to measure. Other splits do not get the metric, which takes a while with large models.
    """

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
            raise ModelError(f"{_WHO}: the tokenizer of {model_name!r} has no token for a line break")
        self._splits = splits

    def measure(self, batch: Batch) -> MetricResult:
        if batch.split_name is not None and batch.split_name not in self._splits:
            return {}
        texts = zip(batch.prompt_texts, batch.gen_texts, batch.meta_infos, strict=True)
        rows = [self._encoded(*each) for each in texts]
        log_probs = self._model.token_log_probs([context + reply for context, reply in rows])
        totals = [float(each[-len(reply) :].sum()) for each, (_, reply) in zip(log_probs, rows, strict=True)]
        counts = [len(reply) for _, reply in rows]
        each = [_exp(-total / count) for total, count in zip(totals, counts, strict=True)]
        return {"fluency_metrics/reply_perplexity": (each, _exp(-sum(totals) / sum(counts)))}

    def _encoded(self, prompt: str, reply: str, info: dict[str, Any]) -> tuple[list[int], list[int]]:
        """Tokens of the context, at least one, and of the reply with the end of its line."""
        encoder = encoder_of(self._tokenizer)
        before = reply_text(prompt, "", info).rstrip(" ")
        context = [*encoder.opening, *encoder.ids(before)]
        ids = encoder.continued(f" {reply.strip()}".rstrip(" ") + "\n", before)[-self._max_length + 1 :]
        return context[-(self._max_length - len(ids)) :], ids


def _exp(value: float) -> float:
    """The exponential; infinity if it is too large, for which math.exp raises an error."""
    import torch

    return float(torch.tensor(value, dtype=torch.float64).exp())
