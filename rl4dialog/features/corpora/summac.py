"""SummaC: consistency of a summary with its source, by natural language inference.

SummaC (Laban et al. 2022, arXiv 2111.09525) compares each sentence of the text (the hypothesis) with each sentence of
the prompt (the premise). SummaC-ZS takes the best premise; SummaC-Conv applies a small trained layer to all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.core.yaml_loader import packaged_yaml
from rl4dialog.scores.base import Batch, ReplyMetric
from rl4dialog.scores.classifiers import NliModel
from rl4dialog.text.words import split_sentences

_TABLES = packaged_yaml(Path(__file__).with_suffix(".yaml"))
# Shorter pieces are skipped, because they are mostly splitting errors.
_MIN_CHARACTERS = 11
_LABELS = {"e": 0, "c": 1, "n": 2}
_UNIT = "(sentence|2sents|paragraph|document|mixed)"
Granularity = Annotated[str, Field(pattern=f"^{_UNIT}(-{_UNIT})?$")]
Bins = Annotated[str, Field(pattern="^(percentile|even[1-9][0-9]*)$")]
NliLabels = Annotated[str, Field(pattern="^[ecn]+$")]
Reduction = Literal["max", "mean", "min"]
_REDUCE: dict[str, Callable[..., Any]] = {"min": np.min, "mean": np.mean, "max": np.max}
_MAX_SENTENCES = 10
_WEIGHTS_URL = "https://github.com/tingofurro/summac/raw/master/summac_conv_vitc_sent_perc_e.bin"


class SummaCZSMetric(ReplyMetric):
    """SummaC-ZS: mean score of the best premise for each sentence of the text; 0 if all sentences are very short.

    Args:
        model_name: ``mnli``, ``vitc``, ... as in the reference implementation, or a folder or hub id of an NLI model.
        granularity: Compared units: ``sentence``, ``2sents``, ``paragraph``, ``document`` or ``mixed``; or two of them
            with a hyphen, for prompt and text.
        op1: Aggregation over premises: ``max``, ``mean`` or ``min``.
        op2: Aggregation over sentences of the text.
        use_ent: Whether to add entailment.
        use_con: Whether to subtract contradiction.
        max_doc_sents: Maximum number of units of the prompt.
        batch_size: Pairs per forward pass.
    """

    def __init__(
        self,
        model_name: str = "mnli",
        granularity: Granularity = "paragraph",
        op1: Reduction = "max",
        op2: Reduction = "mean",
        use_ent: bool = True,
        use_con: bool = True,
        max_doc_sents: Count = 100,
        batch_size: Count = 64,
    ) -> None:
        who = "metric 'summaCZS'"
        self._op1, self._op2 = _REDUCE[op1], _REDUCE[op2]
        if not (use_ent or use_con):
            raise ConfigError(f"{who}: at least one of use_ent and use_con must be true")
        self._use_entailment, self._use_contradiction = use_ent, use_con
        self._tables = _NliTables([model_name], granularity, max_doc_sents, batch_size, who)

    def sentence_scores(self, batch: Batch) -> dict[str, list[float]]:
        tables = self._tables(batch.prompt_texts, batch.gen_texts)
        return {"consistency/summaczs": [self._score(table[0]) for table in tables]}

    def _score(self, table: np.ndarray) -> float:
        entailment, contradiction = self._op1(table[0], axis=0), self._op1(table[1], axis=0)
        if not self._use_contradiction:
            return float(self._op2(entailment))
        return float(self._op2((entailment if self._use_entailment else 1.0) - contradiction))


class SummaCConvMetric(ReplyMetric):
    """SummaC-Conv: probability that the text is consistent, from a trained layer over histograms of the premises.

    The defaults are those of the published layer. RL4LMs uses the layer untrained, with random weights.

    Args:
        start_file: Weights of the layer (torch's ``.bin``, or ``.safetensors``).
        models: NLI models as in SummaC-ZS, those that the layer was trained with.
        bins: Bins of the histograms: ``percentile``, or ``even50`` for 50 bins of equal width.
        granularity: As in SummaC-ZS.
        nli_labels: Probabilities to use, as letters of ``ecn`` (entailment, contradiction, neutral).
        agg: Aggregation over sentences of the text: ``mean``, ``min``, ``max``, or ``all`` three.
        max_doc_sents: Maximum number of units of the prompt.
        batch_size: Pairs per forward pass.
    """

    def __init__(
        self,
        start_file: str | None = None,
        models: Sequence[str] = ("vitc",),
        bins: Bins = "percentile",
        granularity: Granularity = "sentence",
        nli_labels: NliLabels = "e",
        agg: Reduction | Literal["all"] = "mean",
        max_doc_sents: Count = 100,
        batch_size: Count = 64,
    ) -> None:
        who = "metric 'summaCConv'"
        self._labels = [index for letter, index in _LABELS.items() if letter in nli_labels]
        self._edges = np.array(_TABLES["percentiles"])
        if bins != "percentile":
            self._edges = np.linspace(0, 1, int(bins.removeprefix("even")) + 1)
        # The final layer has three inputs in any case.
        self._aggregates = list(_REDUCE.values()) if agg == "all" else [_REDUCE[agg]] * 3
        n_inputs = len(models) * len(self._labels) * (len(self._edges) - 1)
        self._weights = _load_weights(start_file, n_inputs, who)
        self._tables = _NliTables(models, granularity, max_doc_sents, batch_size, who)

    def sentence_scores(self, batch: Batch) -> dict[str, list[float]]:
        tables = self._tables(batch.prompt_texts, batch.gen_texts)
        return {"consistency/summacconv": [self._score(table) for table in tables]}

    def _score(self, tables: np.ndarray) -> float:
        chosen = tables[:, self._labels].reshape(-1, *tables.shape[2:])
        histograms = [
            np.concatenate([np.histogram(row[:, sentence], bins=self._edges)[0] for row in chosen])
            for sentence in range(min(chosen.shape[2], _MAX_SENTENCES))
        ]
        weights = self._weights
        outputs = np.array(histograms) @ weights["mlp.weight"][0] + weights["mlp.bias"][0]
        features = np.array([aggregate(outputs) for aggregate in self._aggregates])
        inconsistent, consistent = weights["layer_final.weight"] @ features + weights["layer_final.bias"]
        return float(1 / (1 + np.exp(inconsistent - consistent)))


class _NliTables:
    """NLI probabilities for all pairs of a unit of the source and a unit of the text."""

    def __init__(
        self, models: Sequence[str], granularity: str, max_source_pieces: int, batch_size: int, who: str
    ) -> None:
        names = granularity.split("-")
        self._split_source, self._split_text = _SPLITTERS[names[0]], _SPLITTERS[names[-1]]
        self._max_source_pieces = max_source_pieces
        self._models = [NliModel(_TABLES["models"].get(name, name), batch_size, who) for name in models]

    def __call__(self, sources: list[str], texts: list[str]) -> list[np.ndarray]:
        """Return a table per text. Shape (models, 3, source units, text units); zeros (models, 3, 1, 1) if empty."""
        pieces = [
            (self._split_source(source)[: self._max_source_pieces], self._split_text(text))
            for source, text in zip(sources, texts, strict=True)
        ]
        pairs = [(premise, hypothesis) for left, right in pieces for premise in left for hypothesis in right]
        premises, hypotheses = [premise for premise, _ in pairs], [hypothesis for _, hypothesis in pairs]
        # Shape (pairs, models, classes).
        found = np.stack([model.probabilities(premises, hypotheses) for model in self._models], axis=1)
        nothing = np.zeros((len(self._models), 3, 1, 1))
        ends, tables = np.cumsum([len(left) * len(right) for left, right in pieces])[:-1], []
        for (left, right), part in zip(pieces, np.split(found, ends), strict=True):
            table = part.reshape(len(left), len(right), *nothing.shape[:2])
            tables.append(table.transpose(2, 3, 0, 1) if len(part) else nothing)
        return tables


def _sentences(text: str) -> list[str]:
    return [piece for piece in split_sentences(text) if len(piece) >= _MIN_CHARACTERS]


def _two_sentences(text: str) -> list[str]:
    sentences = _sentences(text)
    return [" ".join(sentences[i : i + 2]) for i in range(len(sentences))]


def _paragraphs(text: str) -> list[str]:
    pieces = [piece.strip() for piece in text.split("\n\n" if "\n\n" in text else "\n")]
    return [piece for piece in pieces if len(piece) >= _MIN_CHARACTERS]


_SPLITTERS: dict[str, Callable[[str], list[str]]] = {
    "sentence": _sentences,
    "2sents": _two_sentences,
    "paragraph": _paragraphs,
    "document": lambda text: [text],
    "mixed": lambda text: _sentences(text) + _paragraphs(text),
}


def _load_weights(start_file: str | None, n_inputs: int, who: str) -> dict[str, np.ndarray]:
    """The layer's four arrays, loaded without unpickling code."""
    if start_file is None:
        raise ModelError(f"{who} needs start_file: <weights of its trained layer>; download {_WEIGHTS_URL}")
    path = Path(start_file).expanduser()
    shapes = {"mlp.weight": (1, n_inputs), "mlp.bias": (1,), "layer_final.weight": (2, 3), "layer_final.bias": (2,)}
    try:
        if path.suffix == ".safetensors":
            from safetensors.numpy import load_file

            weights = load_file(path)
        else:
            import torch

            loaded = torch.load(path, map_location="cpu", weights_only=True)
            weights = {name: tensor.float().numpy() for name, tensor in loaded.items()}
        found = {name: weights[name].shape for name in shapes}
    except Exception as error:  # OSError, KeyError, and errors of torch and safetensors
        problem = f"cannot be read as the layer's weights ({type(error).__name__}: {error})"
        raise ModelError(f"{who}: {start_file!r} {problem}. Download {_WEIGHTS_URL}") from error
    if found != shapes:
        needed = f"models, bins and nli_labels need {shapes}"
        raise ModelError(f"{who}: the weights in {start_file!r} have the shapes {found}; {needed}")
    return weights
