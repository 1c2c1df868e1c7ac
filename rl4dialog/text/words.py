"""Splits texts into sentences and words with nltk, without downloaded data.

``nltk.word_tokenize``, which reference implementations use, splits sentences with a model trained on newspapers, and
each sentence with the rules of the Penn Treebank. This module uses the same rules. It splits sentences with the same
algorithm (Punkt, Kiss and Strunk 2006), with a list of common abbreviations instead of trained ones.
"""

from __future__ import annotations

import re
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


# Function words, ends of contractions ("don't", "I'll"), and words of questions and facts about anything: "do you like
# ...?", "my favorite ... is".
_STOP_WORD_LIST = """
a about all also am an and any are aren as at be been but by can could d did didn do does doesn doing don done for from
get go going got had has have having he her him his how i if in into is isn it just kind like likes ll lot love m many
me more most much my no not of off often on one or other our out re really s she so some t tell than that the their
them then there these they thing things this those to too up us ve very was were what when where which who whom whose
why will with would yes you your favorite favourite
"""
_STOP_WORDS = frozenset(_STOP_WORD_LIST.split())


def content_words(text: str) -> set[str]:
    """Return the words of a text in lower case, without function words and without a final ``s``."""
    words = set(re.findall(r"[^\W_]+", text.lower())).difference(_STOP_WORDS)
    return {word.removesuffix("s") for word in words}


def three_sentence_summary(text: str) -> str:
    """The first three sentences, one per line.

    This is RL4LMs' post-processor of generated replies before evaluation (``generation_kwargs.post_processing_fn``).
    Rollouts are never post-processed: rewards and training use the sampled text.
    """
    return "\n".join(split_sentences(text)[:3])
