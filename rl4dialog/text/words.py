"""Splitting texts into sentences and words with nltk, without any data that would have to be downloaded.

``nltk.word_tokenize``, which reference implementations call, splits sentences by a model trained on newspapers, and
then each sentence by the rules of the Penn Treebank. The rules are the same here. Sentences are split by the same
algorithm (Punkt, Kiss and Strunk 2006), told the common abbreviations instead of having learned them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

_ABBREVIATIONS = (
    *("mr", "mrs", "ms", "dr", "prof", "rev", "gen", "sen", "gov", "capt", "sgt", "jr", "sr", "st", "mt"),
    *("vs", "etc", "e.g", "i.e", "a.m", "p.m", "u.s", "u.k", "d.c", "inc", "ltd", "co", "corp"),
    *("jan", "feb", "aug", "sept", "oct", "nov", "dec"),
)


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, in order; none for a blank text."""
    sentences: list[str] = _splitters()[0].tokenize(text)
    return sentences


def split_words(text: str) -> list[str]:
    """Words and punctuation marks of a text: ``don't stop.`` gives ``do``, ``n't``, ``stop``, ``.``"""
    split = _splitters()[1].tokenize
    return [word for sentence in split_sentences(text) for word in split(sentence)]


@lru_cache(maxsize=1)
def _splitters() -> tuple[Any, Any]:
    from nltk.tokenize import NLTKWordTokenizer
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

    parameters = PunktParameters()
    parameters.abbrev_types = set(_ABBREVIATIONS)
    return PunktSentenceTokenizer(parameters), NLTKWordTokenizer()
