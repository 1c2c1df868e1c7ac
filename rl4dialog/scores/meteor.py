"""METEOR (Banerjee and Lavie 2005), computed by nltk."""

from __future__ import annotations

import io
import os
import warnings
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rl4dialog.core.errors import ModelError
from rl4dialog.scores.adapters import MetricReward
from rl4dialog.scores.base import Batch, SentenceMetric
from rl4dialog.text.words import split_words

_DEBIAN_WORDNET = Path("/usr/share/wordnet")
# WordNet 3 has 45 lexicographer files, numbered from 0.
_N_LEXNAMES = 45


class MeteorMetric(SentenceMetric):
    """METEOR against the best reference.

    nltk looks up synonyms by word stems, so it finds none for "automobile" (stem "automobil"), but some for "auto".
    RL4LMs instead compares with the ``str(list)`` of the references.

    Args:
        synonyms: Also match synonyms from WordNet, as METEOR does; otherwise the key is ``lexical/meteor_exact_stem``.
        wordnet_path: Folder of WordNet's database files; by default nltk's data or Debian's ``wordnet-base``.
    """

    def __init__(self, synonyms: bool = True, wordnet_path: str | None = None) -> None:
        self._synonyms, self._wordnet_path = synonyms, wordnet_path
        self.key = "lexical/meteor" if synonyms else "lexical/meteor_exact_stem"
        if synonyms:
            _load_wordnet(wordnet_path)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load WordNet's index immediately, so that workers forked later share it."""
        self.__dict__.update(state)
        if self._synonyms:
            _load_wordnet(self._wordnet_path)

    def sentence_score(self, text: str, references: list[str]) -> float:
        from nltk.translate.meteor_score import meteor_score

        wordnet = _load_wordnet(self._wordnet_path) if self._synonyms else _NO_SYNONYMS
        words = split_words(text)
        if not words:
            return 0.0
        return float(meteor_score([split_words(reference) for reference in references], words, wordnet=wordnet))

    def sentence_scores(self, batch: Batch) -> dict[str, list[float]]:
        scores = [self.sentence_score(t, r) for t, r in zip(batch.gen_texts, batch.ref_texts, strict=True)]
        return {self.key: scores}


_NO_SYNONYMS = SimpleNamespace(synsets=lambda word: [])  # an empty WordNet


@lru_cache(maxsize=4)
def _load_wordnet(path: str | None) -> Any:
    try:
        return _read_database(_nltks_wordnet() or _DEBIAN_WORDNET if path is None else Path(path))
    except (OSError, LookupError) as error:
        cure = "Run `apt-get install wordnet-base`, download nltk's data 'wordnet' (nltk_data), set wordnet_path"
        place = path or f"nltk data or in {_DEBIAN_WORDNET}"
        raise ModelError(f"METEOR needs WordNet, missing in {place}. {cure}, or set `synonyms: false`.") from error


def _nltks_wordnet() -> Any:
    """The location of WordNet in nltk's data, as a folder or an archive, if it exists."""
    import nltk

    for place in ("corpora/wordnet", "corpora/wordnet.zip/wordnet/"):
        with suppress(LookupError):
            return nltk.data.find(place)
    return None


def _read_database(folder: Any) -> Any:
    """Read the index of WordNet's database files, from a folder or nltk's pointer to it."""
    import nltk
    from nltk.corpus.reader.wordnet import WordNetCorpusReader

    class Reader(WordNetCorpusReader):  # type: ignore[misc]
        """Also reads folders without ``lexnames``, which Debian omits and METEOR does not need.

        nltk keeps files open, and forked processes would share their positions: here each process opens its own.
        """

        _process: int | None = None

        def open(self, file: str) -> Any:
            if file == "lexnames" and isinstance(folder, Path) and not (folder / file).exists():
                return io.StringIO("".join(f"{i} file{i} 0\n" for i in range(_N_LEXNAMES)))
            return super().open(file)

        def map_wn(self, version: str = "wordnet") -> None:
            """Skip the mapping to nltk's own WordNet, which only other languages need."""

        def _data_file(self, pos: str) -> Any:
            if self._process != os.getpid():
                self._process = os.getpid()
                self._data_file_map: dict[str, Any] = {}
            return super()._data_file(pos)

        def close_files(self) -> None:
            while self._data_file_map:
                self._data_file_map.popitem()[1].close()

    if isinstance(folder, Path):
        if not (folder / "index.noun").is_file():
            raise FileNotFoundError(f"no index.noun in {folder}")
        # nltk opens only files below the folders in its search path.
        if str(folder) not in nltk.data.path:
            nltk.data.path.append(str(folder))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The multilingual functions")
        reader = Reader(str(folder) if isinstance(folder, Path) else folder, omw_reader=None)
    reader.close_files()  # left open by reading the index
    return reader


class MeteorReward(MetricReward, metric=MeteorMetric):
    """METEOR of the reply."""
