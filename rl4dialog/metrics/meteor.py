"""METEOR (Banerjee and Lavie 2005), computed by nltk."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import ModelError
from rl4dialog.core.protocols import BaseMetric, MetricResult
from rl4dialog.metrics.checks import check_lengths

_DEBIAN_WORDNET = Path("/usr/share/wordnet")


class MeteorMetric(BaseMetric):
    """Best METEOR over the references; words are split by nltk's tokenizer that needs no data.

    Args:
        synonyms: Also match synonyms of WordNet, as METEOR is defined. Without it only words and stems are matched,
            and the key says so (``lexical/meteor_exact_stem``).
        wordnet_path: Folder of WordNet's database files; by default nltk's data or Debian's ``wordnet-base``.

    Raises:
        ModelError: If synonyms are asked for and there is no WordNet.
    """

    def __init__(self, synonyms: bool = True, wordnet_path: str | None = None) -> None:
        self._synonyms, self._wordnet_path = synonyms, wordnet_path
        self.key = "lexical/meteor" if synonyms else "lexical/meteor_exact_stem"
        if synonyms:
            _load_wordnet(wordnet_path)

    def sentence_score(self, text: str, references: list[str]) -> float:
        """METEOR of one text, 0 to 1."""
        from nltk.translate.meteor_score import meteor_score

        wordnet = _load_wordnet(self._wordnet_path) if self._synonyms else _NoSynonyms()
        words = _tokenize(text)
        if not words:
            return 0.0
        return float(meteor_score([_tokenize(reference) for reference in references], words, wordnet=wordnet))

    def compute(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None = None,
        model: Any = None,
        split_name: str | None = None,
    ) -> MetricResult:
        check_lengths(generated_texts, reference_texts)
        scores = [self.sentence_score(t, r) for t, r in zip(generated_texts, reference_texts, strict=True)]
        return {self.key: (scores, sum(scores) / len(scores))}


class _NoSynonyms:
    """A WordNet that knows no words."""

    def synsets(self, word: str) -> list[Any]:
        del word
        return []


def _tokenize(text: str) -> list[str]:
    from nltk.tokenize import NLTKWordTokenizer

    words: list[str] = NLTKWordTokenizer().tokenize(text)
    return words


@lru_cache(maxsize=4)
def _load_wordnet(path: str | None) -> Any:
    from nltk.corpus import wordnet
    from nltk.corpus.reader.wordnet import WordNetCorpusReader

    if path is None:
        try:
            wordnet.ensure_loaded()
            return wordnet
        except LookupError:
            path = str(_DEBIAN_WORDNET)
    try:
        reader = WordNetCorpusReader(path, omw_reader=None)
        reader.synsets("dog")
        return reader
    except (OSError, LookupError) as error:
        raise ModelError(
            f"METEOR needs WordNet, and there is none in nltk's data or in {path}. Install Debian's package "
            f"wordnet-base, or nltk's data 'wordnet', or give wordnet_path; with synonyms: false only words and "
            f"stems are matched, and no WordNet is needed."
        ) from error
