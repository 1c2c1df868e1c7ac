"""Metrics of image captions: CIDEr, SPICE and their sum, SPIDEr.

CIDEr (Vedantam et al. 2015, arXiv 1411.5726) compares n-grams that are rare elsewhere. SPICE (Anderson et al. 2016,
arXiv 1607.08822) compares objects, attributes and relations, found by a parser. It is a Java program; its jar and
libraries are part of the package pycocoevalcap. SPIDEr is from Liu et al. 2017, arXiv 1612.00370.
"""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.scores.adapters import BatchedMetricReward
from rl4dialog.scores.base import Batch, SentenceMetric
from rl4dialog.text.words import split_words

_JAR = "spice-1.0.jar"
_CORENLP = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
_CORENLP_URL = "https://nlp.stanford.edu/software/stanford-corenlp-full-2015-12-09.zip"
_MAX_ORDER = 4
_LENGTH_SIGMA = 6.0
_Grams = dict[tuple[str, ...], float]


class CiderMetric(SentenceMetric):
    """CIDEr-D, 0 to 10: clipped cosine of tf-idf n-grams of order 1 to 4, with a penalty for length differences.

    This is the variant of COCO's evaluation and RL4LMs. Document frequencies are computed over the references of all
    samples scored together, so the score of a text depends on the others, and a single sample scores 0. Case is kept,
    as in RL4LMs, which splits words with spaCy, and scores only the last of several samples with the same prompt.
    """

    def sentence_scores(self, batch: Batch) -> dict[str, list[float]]:
        texts = [split_words(text) for text in batch.gen_texts]
        references = [[split_words(reference) for reference in each] for each in batch.ref_texts]
        return {"lexical/cider": cider_scores(texts, references)}


def cider_scores(texts: list[list[str]], references: list[list[list[str]]]) -> list[float]:
    """CIDEr-D of each text, 0 to 10, from the words of texts and of their references."""
    counts = [[_ngrams(reference) for reference in each] for each in references]
    document_frequency = Counter(gram for each in counts for gram in set().union(*each))
    log_n = math.log(len(texts))
    idf = {gram: log_n - math.log(frequency) for gram, frequency in document_frequency.items()}

    def weigh(grams: Counter[tuple[str, ...]]) -> _Grams:
        return {gram: count * idf.get(gram, log_n) for gram, count in grams.items()}

    scores = []
    for words, their_references, their_counts in zip(texts, references, counts, strict=True):
        vector = weigh(_ngrams(words))
        total = sum(
            _similarity(vector, weigh(grams)) * math.exp(-((len(words) - len(other)) ** 2) / (2 * _LENGTH_SIGMA**2))
            for other, grams in zip(their_references, their_counts, strict=True)
        )
        scores.append(10 * total / len(their_references))
    return scores


def _ngrams(words: list[str]) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for n in range(1, _MAX_ORDER + 1) for i in range(len(words) - n + 1))


def _similarity(text: _Grams, reference: _Grams) -> float:
    """Mean cosine over the orders; counts of an n-gram are clipped to those in the reference."""
    dots, text_squares, reference_squares = ([0.0] * (_MAX_ORDER + 1) for _ in range(3))
    for gram, weight in text.items():
        text_squares[len(gram)] += weight**2
        dots[len(gram)] += min(weight, reference.get(gram, 0.0)) * reference.get(gram, 0.0)
    for gram, weight in reference.items():
        reference_squares[len(gram)] += weight**2
    norms = [math.sqrt(a * b) for a, b in zip(text_squares, reference_squares, strict=True)]
    return sum(dot / norm for dot, norm in zip(dots, norms, strict=True) if norm) / _MAX_ORDER


class SpiceMetric(SentenceMetric):
    """SPICE F-score from 0 to 1; 0 for a blank text.

    Args:
        spice_path: Folder of ``spice-1.0.jar`` and its ``lib``; by default that of the installed pycocoevalcap.
        java: Name or path of the Java program.
        memory: Maximum memory, in Java's notation.
        cache_path: Folder for parsed sentences, so that references are parsed only once.
    """

    def __init__(
        self, spice_path: str | None = None, java: str = "java", memory: str = "8G", cache_path: str | None = None
    ) -> None:
        self._folder = _find_folder(spice_path)
        program = shutil.which(java)
        if program is None:
            cure = "run `apt-get install default-jre-headless`, or set java: <path of the program>"
            raise ModelError(f"metric 'spice' needs Java, and the program {java!r} was not found; {cure}")
        self._command = [program, f"-Xmx{memory}", "-jar", str(self._folder / _JAR)]
        self._options = ["-subset", "-silent"]
        if cache_path is not None:
            cache = Path(cache_path).expanduser().resolve()
            try:
                cache.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"metric 'spice': cache_path {cache_path!r} cannot be used: {error}") from error
            self._options += ["-cache", str(cache)]

    def sentence_scores(self, batch: Batch) -> dict[str, list[float]]:
        tasks = []
        for row, (text, references) in enumerate(zip(batch.gen_texts, batch.ref_texts, strict=True)):
            words = [" ".join(split_words(each)) for each in (text, *references)]
            if words[0] and any(words[1:]):
                tasks.append({"image_id": row, "test": words[0], "refs": [each for each in words[1:] if each]})
        scores = [0.0] * len(batch)
        for found in self._run(tasks) if tasks else []:
            score = float(found["scores"]["All"]["f"])
            # SPICE reports NaN if neither text contains anything to compare.
            scores[found["image_id"]] = 0.0 if math.isnan(score) else score
        return {"lexical/spice": scores}

    def _run(self, tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory() as scratch:
            source, target = Path(scratch) / "texts.json", Path(scratch) / "scores.json"
            source.write_text(json.dumps(tasks), encoding="utf-8")
            command = [*self._command, str(source), "-out", str(target), *self._options]
            done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, check=False)
            try:
                scores: list[dict[str, Any]] = json.loads(target.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                # The indented lines of a stack trace are omitted.
                said = " ".join(line for line in (done.stderr or done.stdout).splitlines() if line[:1].strip())
                problem = f"Java ended with status {done.returncode} and without scores"
                said = f"its output: {said[:500] or 'none'}. SPICE was written for Java 8"
                raise ModelError(f"metric 'spice': {problem}; {said}") from error
        return scores


def _find_folder(spice_path: str | None) -> Path:
    """Return the folder of the jar and its libraries, after checking that it is complete."""
    package = importlib.util.find_spec("pycocoevalcap") if spice_path is None else None
    if spice_path is not None:
        folder = Path(spice_path).expanduser().resolve()
    elif package is not None and package.submodule_search_locations:
        folder = Path(next(iter(package.submodule_search_locations))) / "spice"
    else:
        cure = f"run `pip install pycocoevalcap`, or set spice_path: <folder of {_JAR} and lib>"
        raise ModelError(f"metric 'spice' needs its Java program; {cure}")
    if not (folder / _JAR).is_file():
        raise ModelError(f"metric 'spice': there is no {_JAR} in {folder}; run `pip install pycocoevalcap`")
    if missing := [name for name in _CORENLP if not (folder / "lib" / name).is_file()]:
        cure = f"download {_CORENLP_URL} and copy the files from it"
        raise ModelError(f"metric 'spice' needs the parser {' and '.join(missing)} in {folder / 'lib'}; {cure}")
    return folder


class SpiderMetric(SpiceMetric):
    """Weighted sum of SPICE (0 to 1) and CIDEr (0 to 10); a term with weight 0 is not computed.

    As with CIDEr, the score of a text depends on the others.

    Args:
        spice_coeff: Weight of SPICE.
        cider_coeff: Weight of CIDEr.
    """

    def __init__(self, spice_coeff: float = 0.5, cider_coeff: float = 0.5, **kwargs: Any) -> None:
        self._spice_coeff, self._cider_coeff = spice_coeff, cider_coeff
        if spice_coeff:
            super().__init__(**kwargs)

    def sentence_scores(self, batch: Batch) -> dict[str, list[float]]:
        spice = cider = [0.0] * len(batch)
        if self._spice_coeff:
            (spice,) = super().sentence_scores(batch).values()
        if self._cider_coeff:
            (cider,) = CiderMetric().sentence_scores(batch).values()
        pairs = zip(spice, cider, strict=True)
        return {"lexical/spider": [self._spice_coeff * a + self._cider_coeff * b for a, b in pairs]}


class SpiderReward(BatchedMetricReward, metric=SpiderMetric):
    """Weighted sum of SPICE and CIDEr of the reply.

    CIDEr weights words by how rare they are in the references of all replies scored together, which are those that end
    in the same step of the environments: with few environments (``env.n_envs``) it is noisy, and with one it is 0.
    """
