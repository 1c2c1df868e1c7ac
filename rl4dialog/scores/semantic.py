"""Similarity to the references by models: word vectors, BERTScore and BLEURT.

BLEURT (Sellam et al. 2020, arXiv 2004.04696) predicts human ratings. The original runs on TensorFlow. Its checkpoints
are available for transformers, as BERT with one output and equal scores (``Elron/bleurt-base-128`` and five others).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rl4dialog.core.arguments import Count
from rl4dialog.core.downloads import cache_only_without_network
from rl4dialog.core.errors import ConfigError, DataError, ModelError
from rl4dialog.core.pretrained import load_model, load_pretrained
from rl4dialog.scores.adapters import BatchedMetricReward
from rl4dialog.scores.base import Batch, SentenceMetric
from rl4dialog.scores.classifiers import SequenceClassifier, max_tokens
from rl4dialog.scores.language_models import cosines
from rl4dialog.text.words import split_words

BleurtCheckpoint = Literal[
    "bleurt-tiny-128", "bleurt-tiny-512", "bleurt-base-128", "bleurt-base-512", "bleurt-large-128", "bleurt-large-512"
]
_DEFAULT_BLEURT: BleurtCheckpoint = "bleurt-base-128"


class VectorFile:
    """Vectors from a text file with a word and its numbers per line, with or without word2vec's header line.

    Only file offsets are kept in memory; a line is read when its word is looked up.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path).expanduser()
        self._places: dict[str, int] = {}
        self._known: dict[str, np.ndarray] = {}
        self._n_dimensions = 0
        try:
            self._index()
        except OSError as error:
            cure = "download and unpack a text file, such as glove.6B.zip from https://nlp.stanford.edu/projects/glove"
            problem = f"the file of word vectors {path!r} cannot be read ({error.strerror or error})"
            raise DataError(f"{problem}; {cure}") from error

    def __call__(self, text: str) -> np.ndarray:
        """Look up the vectors of a text's words, as written or in lower case. Shape (words, dimensions)."""
        candidates = [word if word in self._places else word.lower() for word in split_words(text)]
        found = [self._vector(word) for word in candidates if word in self._places]
        return np.array(found).reshape(len(found), self._n_dimensions)

    def _index(self) -> None:
        if self._path.exists() and not self._path.is_file():
            raise OSError("not a regular file")
        with self._path.open("rb") as file:
            place, line = 0, file.readline()
            if len(line.split()) == 2:  # word2vec's header: numbers of words and dimensions
                place, line = file.tell(), file.readline()
            self._n_dimensions = len(line.split()) - 1
            if self._n_dimensions < 1:
                raise DataError(f"{self._path} is not a file of word vectors: it has no line with a word and numbers")
            while line:
                # A few words in GloVe contain spaces.
                word = line.rstrip().rsplit(b" ", self._n_dimensions)[0].decode("utf-8", "replace")
                self._places.setdefault(word, place)
                place, line = file.tell(), file.readline()

    def _vector(self, word: str) -> np.ndarray:
        if word not in self._known:
            with self._path.open("rb") as file:
                file.seek(self._places[word])
                numbers = file.readline().rstrip().rsplit(b" ", self._n_dimensions)[1:]
            try:
                self._known[word] = np.array([float(number) for number in numbers]).reshape(self._n_dimensions)
            except ValueError as error:
                needed = f"{self._n_dimensions} numbers, as in the first line"
                raise DataError(f"{self._path}: the word {word!r} does not have {needed}: {error}") from error
        return self._known[word]


class ModelEmbeddings:
    """The input embeddings of a transformers model, one vector per token."""

    def __init__(self, model_name: str) -> None:
        from transformers import AutoModel, AutoTokenizer

        what, hint = "model for word vectors", "Pass the folder of a model, or a hub id if there is a network."
        self._tokenizer = load_pretrained(AutoTokenizer, model_name, what, hint)
        model = load_model(AutoModel, model_name, what, hint, new_head=True)
        self._vectors = model.get_input_embeddings().weight.detach().float().cpu().numpy()

    def __call__(self, text: str) -> np.ndarray:
        """Look up the vectors of a text's tokens. Shape (tokens, dimensions)."""
        ids = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return self._vectors[np.array(ids, dtype=int)]


class EmbeddingSimilarityMetric(SentenceMetric):
    """Cosine similarity of word vectors to the best reference: ``average``, ``greedy`` and ``extrema``.

    A text without any known word scores 0.

    Args:
        path: Text file of word vectors (GloVe, word2vec).
        model_name: Folder or hub id of a model whose input embeddings are used instead.
    """

    def __init__(self, path: str | None = None, model_name: str | None = None) -> None:
        if (path is None) == (model_name is None):
            choices = "path: <text file of word vectors, such as GloVe's> or model_name: <folder or hub id of a model>"
            raise ConfigError(f"metric 'embedding_similarity' needs either {choices}")
        # Maps a text to the vectors of its known words. Shape (words, dimensions).
        self._vectors: Callable[[str], np.ndarray]
        self._vectors = VectorFile(path) if path is not None else ModelEmbeddings(str(model_name))

    def sentence_scores(self, batch: Batch) -> dict[str, list[float]]:
        best = []
        for text, references in zip(batch.gen_texts, batch.ref_texts, strict=True):
            vectors = self._vectors(text)
            best.append(np.max([similarities(vectors, self._vectors(each)) for each in references], axis=0))
        columns = zip(("average", "greedy", "extrema"), np.stack(best, axis=1).tolist(), strict=True)
        return {f"semantic/embedding_{name}": scores for name, scores in columns}


def similarities(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float]:
    """Similarities of two texts by the vectors of their words. Shapes (words, dimensions); all 0 without words.

    The cosine of the mean vectors (Foltz et al. 1998); the mean cosine of each word to its nearest neighbor in the
    other text, in both directions (Rus and Lintean 2012); and the cosine of the vectors with each dimension's value
    farthest from 0 (Forgues et al. 2014).
    """
    if not len(a) or not len(b):
        return 0.0, 0.0, 0.0
    near = cosines(a, b)
    extrema = (np.take_along_axis(each, np.abs(each).argmax(0)[None], 0) for each in (a, b))
    average = cosines(a.mean(0, keepdims=True), b.mean(0, keepdims=True))
    return float(average[0, 0]), float((near.max(1).mean() + near.max(0).mean()) / 2), float(cosines(*extrema)[0, 0])


class BertScoreMetric(SentenceMetric):
    """BERTScore F1 against the best reference; 0 for a blank text.

    Args:
        language: Language code that selects the package's default model.
        model_type: Folder or hub id of another model.
        num_layers: Layer whose hidden states are compared; required for models unknown to the package.
        batch_size: Texts per forward pass.
    """

    def __init__(
        self,
        language: str = "en",
        model_type: str | None = None,
        num_layers: Count | None = None,
        batch_size: Count = 64,
    ) -> None:
        from bert_score import BERTScorer
        from bert_score.utils import lang2model, model2layers
        from transformers import AutoConfig

        default = lang2model[language]
        layers = f"num_layers: {model2layers[default]}"
        hint = f"Without a network, set model_type: <folder of a downloaded {default}> and {layers}"
        # The package itself would prompt for permission to run a model's code.
        load_pretrained(AutoConfig, model_type or default, "metric 'bert_score': model", hint)
        try:
            with cache_only_without_network():
                self._scorer = BERTScorer(model_type, num_layers=num_layers, lang=language, batch_size=batch_size)
        except Exception as error:  # OSError, KeyError, ... depending on the cause
            problem = f"model {model_type or default!r} cannot be loaded ({error})"
            raise ModelError(f"metric 'bert_score': {problem}. {hint}") from error
        # A tokenizer without a maximum length reports 1e30, at which fast tokenizers fail.
        tokenizer = self._scorer._tokenizer
        tokenizer.model_max_length = min(max_tokens(tokenizer, self._scorer._model.config), 1_000_000)

    def sentence_scores(self, batch: Batch) -> dict[str, list[float]]:
        # The package cannot encode blank texts with transformers 5; a blank text has no overlap with any other.
        kept = [[reference for reference in references if reference.strip()] for references in batch.ref_texts]
        rows = [row for row, text in enumerate(batch.gen_texts) if text.strip() and kept[row]]
        scores = [0.0] * len(batch)
        if rows:
            found = self._scorer.score([batch.gen_texts[row] for row in rows], [kept[row] for row in rows])[2]
            for row, score in zip(rows, found.tolist(), strict=True):
                scores[row] = score
        return {"semantic/bert_score": scores}


class BertScoreReward(BatchedMetricReward, metric=BertScoreMetric):
    """BERTScore F1 of the reply."""


class BleurtMetric(SentenceMetric):
    """BLEURT against the best reference; mostly between 0 and 1, but unbounded.

    Args:
        config_name: Checkpoint: ``bleurt-{tiny,base,large}-{128,512}``, where the number is the maximum length of a
            pair in tokens.
        model_name: Folder or hub id of another model with one output, instead of ``config_name``.
        batch_size: Pairs per forward pass.
    """

    def __init__(
        self, config_name: BleurtCheckpoint | None = None, model_name: str | None = None, batch_size: Count = 64
    ) -> None:
        config_name = config_name or _DEFAULT_BLEURT
        name = model_name or f"Elron/{config_name}"
        hint = f"Set model_name: <folder of a downloaded Elron/{_DEFAULT_BLEURT}>, not a TensorFlow checkpoint."
        max_length = None if model_name else int(config_name.rsplit("-", 1)[1])
        self._classifier = SequenceClassifier.from_pretrained(
            name, batch_size, max_length, what="metric 'bleurt': model", hint=hint
        )
        n_outputs = self._classifier.model.config.num_labels
        if n_outputs != 1:
            raise ModelError(f"metric 'bleurt': model {name!r} has {n_outputs} outputs instead of one")

    def sentence_scores(self, batch: Batch) -> dict[str, list[float]]:
        rows = [row for row, references in enumerate(batch.ref_texts) for _ in references]
        references = [reference for references in batch.ref_texts for reference in references]
        ratings = self._classifier.logits(references, [batch.gen_texts[row] for row in rows])[:, 0].tolist()
        scores = [-float("inf")] * len(batch)
        for row, rating in zip(rows, ratings, strict=True):
            scores[row] = max(scores[row], rating)
        return {"semantic/bleurt": scores}


class BleurtReward(BatchedMetricReward, metric=BleurtMetric):
    """BLEURT of the reply against the best reference.

    Args:
        checkpoint: RL4LMs' name for ``config_name``.
    """

    def __init__(self, checkpoint: BleurtCheckpoint | None = None, **kwargs: Any) -> None:
        if checkpoint is not None:
            kwargs.setdefault("config_name", checkpoint)
        super().__init__(**kwargs)
