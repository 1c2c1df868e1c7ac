"""Splits texts into sentences and words with nltk, without downloaded data.

``nltk.word_tokenize``, which reference implementations use, splits sentences with a model trained on newspapers, and
each sentence with the rules of the Penn Treebank. This module uses the same rules. It splits sentences with the same
algorithm (Punkt, Kiss and Strunk 2006), with a list of common abbreviations instead of trained ones.
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
    """Split a text into sentences; none for a blank text."""
    sentences: list[str] = _splitters()[0].tokenize(text)
    return sentences


def split_words(text: str) -> list[str]:
    """Split a text into words and punctuation marks: ``don't stop.`` gives ``do``, ``n't``, ``stop`` and ``.``."""
    split = _splitters()[1].tokenize
    return [word for sentence in split_sentences(text) for word in split(sentence)]


@lru_cache(maxsize=1)
def _splitters() -> tuple[Any, Any]:
    from nltk.tokenize import NLTKWordTokenizer
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

    parameters = PunktParameters()
    parameters.abbrev_types = set(_ABBREVIATIONS)
    return PunktSentenceTokenizer(parameters), NLTKWordTokenizer()
