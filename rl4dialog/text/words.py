"""Splits texts into sentences and words with nltk, without downloaded data.

``nltk.word_tokenize``, which reference implementations use, splits sentences with a model trained on newspapers, and
each sentence with the rules of the Penn Treebank. This module uses the same rules. It splits sentences with the same
algorithm (Punkt, Kiss and Strunk 2006), with a list of common abbreviations instead of trained ones.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from rl4dialog.core.yaml_loader import packaged_yaml

WORDS = {kind: words.split() for kind, words in packaged_yaml(Path(__file__).with_suffix(".yaml")).items()}


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences; none for a blank text."""
    return _splitters()[0].tokenize(text)


def split_words(text: str) -> list[str]:
    """Split a text into words and punctuation marks: ``don't stop.`` gives ``do``, ``n't``, ``stop`` and ``.``."""
    split = _splitters()[1].tokenize
    return [word for sentence in split_sentences(text) for word in split(sentence)]


@lru_cache(maxsize=1)
def _splitters() -> tuple[Any, Any]:
    from nltk.tokenize import NLTKWordTokenizer
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

    parameters = PunktParameters()
    parameters.abbrev_types = set(WORDS["abbreviations"])
    return PunktSentenceTokenizer(parameters), NLTKWordTokenizer()


def content_words(text: str) -> set[str]:
    """Return the words of a text in lower case, without function words and without a final ``s``."""
    words = set(re.findall(r"[^\W_]+", text.lower())).difference(WORDS["stop_words"])
    return {word.removesuffix("s") for word in words}


def three_sentence_summary(text: str) -> str:
    """The first three sentences, one per line.

    This is RL4LMs' post-processor of generated replies before evaluation (``generation_kwargs.post_processing_fn``).
    Rollouts are never post-processed: rewards and training use the sampled text.
    """
    return "\n".join(split_sentences(text)[:3])
