"""METEOR (Banerjee and Lavie 2005), computed by nltk."""

from __future__ import annotations

import io
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import ModelError
from rl4dialog.metrics.sentence_metric import SentenceMetric
from rl4dialog.text.words import split_words

_DEBIAN_WORDNET = Path("/usr/share/wordnet")
# WordNet 3 numbers its lexicographers' files from 0 to 44.
_N_LEXNAMES = 45


class MeteorMetric(SentenceMetric):
    """Best METEOR over the references.

    nltk looks up synonyms by the stems of words, so that "automobile" (stem "automobil") has none, and "auto" has.

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

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Read WordNet at once, so that workers that are forked afterwards share it."""
        self.__dict__.update(state)
        if self._synonyms:
            _load_wordnet(self._wordnet_path)

    def sentence_score(self, text: str, references: list[str]) -> float:
        """METEOR of one text, 0 to 1."""
        from nltk.translate.meteor_score import meteor_score

        wordnet = _load_wordnet(self._wordnet_path) if self._synonyms else _NoSynonyms()
        words = split_words(text)
        if not words:
            return 0.0
        return float(meteor_score([split_words(reference) for reference in references], words, wordnet=wordnet))

    def sentence_scores(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None,
    ) -> dict[str, list[float]]:
        scores = [self.sentence_score(t, r) for t, r in zip(generated_texts, reference_texts, strict=True)]
        return {self.key: scores}


class _NoSynonyms:
    """A WordNet that knows no words."""

    def synsets(self, word: str) -> list[Any]:
        del word
        return []


@lru_cache(maxsize=4)
def _load_wordnet(path: str | None) -> Any:
    from nltk.corpus import wordnet

    if path is None:
        try:
            wordnet.ensure_loaded()
            return wordnet
        except LookupError:
            path = str(_DEBIAN_WORDNET)
    try:
        return _read_database(path)
    except (OSError, LookupError) as error:
        raise ModelError(
            f"METEOR needs WordNet, and there is none in nltk's data or in {path}. Run `apt-get install "
            f"wordnet-base`, or download nltk's data 'wordnet' (nltk_data), or give wordnet_path; with "
            f"`synonyms: false` only words and stems are matched, and no WordNet is needed."
        ) from error


def _read_database(path: str) -> Any:
    """Read WordNet's own database files.

    Raises:
        OSError: If a file is missing.
    """
    import nltk
    from nltk.corpus.reader.wordnet import WordNetCorpusReader

    class Reader(WordNetCorpusReader):  # type: ignore[misc]
        """Reads folders without ``lexnames`` too, which Debian leaves out; METEOR never asks for those names."""

        def open(self, file: str) -> Any:
            if file == "lexnames" and not (Path(path) / file).exists():
                return io.StringIO("".join(f"{i} file{i} 0\n" for i in range(_N_LEXNAMES)))
            return super().open(file)

        def map_wn(self, version: str = "wordnet") -> None:
            """Make no mapping to nltk's own WordNet, which only other languages need."""

    if not (Path(path) / "index.noun").is_file():
        raise FileNotFoundError(f"no index.noun in {path}")
    # nltk opens files only below the folders that it was told of.
    if path not in nltk.data.path:
        nltk.data.path.append(path)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The multilingual functions")
        return Reader(path, omw_reader=None)
