"""Diversity and repetition: of a corpus of texts, and of what the agent says in a conversation."""

from __future__ import annotations

import bisect
import math
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median, pstdev

from rl4dialog.core.arguments import Count
from rl4dialog.core.protocols import MetricResult
from rl4dialog.core.types import AGENT, PARTNER, Dialogue
from rl4dialog.scores.base import Batch, PerDialogueMetric, ReplyMetric, TextMetric
from rl4dialog.text.words import split_words

_Gram = tuple[str, ...]
_Grams = Counter[_Gram]


@dataclass(eq=False)
class DiversityMetric(TextMetric):
    """Lengths in words, type-token ratios, and distinct, unique and entropy (bits) of n-grams of order 1 to 3.

    ``distinct-1`` is the type-token ratio; because it decreases with the number of words, ``msttr`` is its mean over
    windows of a fixed length. Every key also exists without punctuation (``-nopunct``, ``_nopunct``); GEM keeps
    punctuation marks of several characters there, such as "...". ``seq-rep-4`` is not from GEM: it is the share of a
    text's 4-grams that repeat earlier ones (Welleck et al. 2020, arXiv 1908.04319), and alone has a score per text.

    Args:
        window_size: Words per window of the mean segmental type-token ratio.
    """

    window_size: Count = 100

    def measure(self, batch: Batch) -> MetricResult:
        words = [lowercase_words(text) for text in batch.gen_texts]
        bare = [[word for word in text if not set(word) <= set(string.punctuation)] for text in words]
        found = {**self._measure(words, ""), **self._measure(bare, "-nopunct")}
        result: MetricResult = {f"diversity_metrics/{key}": (None, value) for key, value in found.items()}
        repeated = [repetition(text) for text in words]
        return {**result, "diversity_metrics/seq-rep-4": (repeated, mean(repeated))}

    def _measure(self, texts: list[list[str]], suffix: str) -> dict[str, float]:
        lengths = [len(text) for text in texts]
        found = {
            f"msttr-{self.window_size}{suffix.replace('-', '_')}": self._segmental_ttr(texts),
            f"total_length{suffix}": float(sum(lengths)),
            f"mean_pred_length{suffix}": float(mean(lengths)),
            f"std_pred_length{suffix}": pstdev(lengths),
            f"median_pred_length{suffix}": float(median(lengths)),
            f"min_pred_length{suffix}": float(min(lengths)),
            f"max_pred_length{suffix}": float(max(lengths)),
        }
        shorter: _Grams = Counter()
        for n in (1, 2, 3):
            counts = ngrams(texts, n)
            total = counts.total()
            found[f"distinct-{n}{suffix}"] = len(counts) / total if total else 0.0
            found[f"vocab_size-{n}{suffix}"] = float(len(counts))
            found[f"unique-{n}{suffix}"] = float(sum(count == 1 for count in counts.values()))
            found[f"entropy-{n}{suffix}"] = _entropy(counts)
            if n > 1:
                found[f"cond_entropy-{n}{suffix}"] = _conditional_entropy(counts, shorter)
            shorter = counts
        return found

    def _segmental_ttr(self, texts: list[list[str]]) -> float:
        """Mean type-token ratio of complete windows; of all words if there is no complete window."""
        words = [word for text in texts for word in text]
        size = self.window_size
        windows = [words[i : i + size] for i in range(0, len(words) - size + 1, size)] or [words]
        return float(mean(len(set(window)) / len(window) if window else 0.0 for window in windows))


def lowercase_words(text: str) -> list[str]:
    """Split a text into words and punctuation marks, in lower case."""
    return [word.lower() for word in split_words(text)]


def repetition(words: Sequence[str], n: int = 4) -> float:
    """Share of n-grams that occur earlier in the text; 0 if there are none."""
    counts = ngrams([words], n)
    return 1 - len(counts) / counts.total() if counts else 0.0


def ngrams(texts: Sequence[Sequence[str]], n: int) -> _Grams:
    """Count the n-grams within texts that are split into words."""
    return Counter(tuple(text[i : i + n]) for text in texts for i in range(len(text) - n + 1))


def _entropy(counts: _Grams) -> float:
    total = counts.total()
    return -sum(c / total * math.log2(c / total) for c in counts.values()) + 0.0 if total else 0.0


def _conditional_entropy(counts: _Grams, shorter: _Grams) -> float:
    """Entropy of an n-gram's last word given the words before it.

    As in the GEM metrics, p(last | before) is p(n-gram) / p(before), each relative to the n-grams of its own order. In
    short texts the quotient can exceed 1, and the entropy can be negative.
    """
    total, total_shorter = counts.total(), shorter.total()
    if not total:
        return 0.0
    return 0.0 - sum(
        c / total * math.log2((c / total) / (shorter[gram[:-1]] / total_shorter)) for gram, c in counts.items()
    )


@dataclass(eq=False)
class SelfBleuMetric(ReplyMetric):
    """Mean BLEU of each text against all others as references, 0 to 1; 1 if all texts are identical.

    It is sacrebleu's smoothed sentence BLEU. Counts are shared between the comparisons, so the run time is linear
    instead of quadratic in the number of texts. A single text scores 0.

    Args:
        max_ngram_order: Longest n-gram.
        lowercase: Whether to ignore case.
    """

    max_ngram_order: Count = 4
    lowercase: bool = False

    def sentence_scores(self, batch: Batch) -> dict[str, list[float]]:
        from sacrebleu.metrics import BLEU
        from sacrebleu.metrics.helpers import extract_all_word_ngrams
        from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

        split, order = Tokenizer13a(), self.max_ngram_order
        texts = [split((text.lower() if self.lowercase else text).rstrip()) for text in batch.gen_texts]
        counts, lengths = zip(*[extract_all_word_ngrams(text, 1, order) for text in texts], strict=True)
        if len(texts) == 1:
            return {"diversity_metrics/self_bleu": [0.0]}
        most, by_length = _most_frequent(counts), sorted(lengths)
        scores = []
        for row, (grams, length) in enumerate(zip(counts, lengths, strict=True)):
            # Matches of each order, with counts clipped to the highest one in another text.
            correct = [0] * order
            for gram, count in grams.items():
                highest, owner, second = most[gram]
                correct[len(gram) - 1] += min(count, second if owner == row else highest)
            total = [max(length - n, 0) for n in range(order)]
            counted = correct, total, length, _closest_other(by_length, length)
            score = BLEU.compute_bleu(*counted, smooth_method="exp", effective_order=True, max_ngram_order=order)
            scores.append(score.score / 100)
        return {"diversity_metrics/self_bleu": scores}


def _most_frequent(counts: Sequence[dict[_Gram, int]]) -> dict[_Gram, tuple[int, int, int]]:
    """For each n-gram, its highest count in a text, the row of that text, and the highest count in another text."""
    most: dict[_Gram, tuple[int, int, int]] = {}
    for row, grams in enumerate(counts):
        for gram, count in grams.items():
            highest, owner, second = most.get(gram, (0, -1, 0))
            most[gram] = (count, row, highest) if count > highest else (highest, owner, max(second, count))
    return most


def _closest_other(by_length: list[int], length: int) -> int:
    """The length closest to a text's own among the others; the shorter one in a tie."""
    at = bisect.bisect_left(by_length, length)
    around = by_length[max(at - 1, 0) : at] + by_length[at + 1 : at + 2]
    return min(around, key=lambda other: (abs(other - length), other))


@dataclass(eq=False)
class ConversationDiversityMetric(PerDialogueMetric):
    """Distinct n-grams and repetition over all utterances of the agent in a conversation.

    ``distinct-1`` to ``distinct-3`` are distinct n-grams divided by n-grams (Li et al. 2016, arXiv 1510.03055, who
    divide by words and count over a whole corpus). ``self_repetition`` is the share of n-grams that occurred in an
    earlier utterance of the agent, and ``partner_echo`` the share that occurred in an earlier one of its partner (the
    external and partner repetition of See et al. 2019, arXiv 1902.08654). ``repeated_utterances`` is the
    share of utterances that equal an earlier one of the agent, except for whitespace.

    Shares are over the utterances that have an earlier one to repeat. Of the sample's history, only what the partner
    said counts, as earlier utterances. Blank utterances are ignored. Words are lowercase.

    Args:
        n: Words per n-gram of ``self_repetition`` and ``partner_echo``.
    """

    n: Count = 3

    def dialogue_scores(self, dialogues: list[Dialogue]) -> dict[str, list[float]]:
        scores = []
        for dialogue in dialogues:
            words = [lowercase_words(turn.text) for turn in dialogue.turns]
            said = zip(dialogue.said, words[dialogue.n_given :], strict=True)
            own = [text for turn, text in said if turn.speaker == AGENT]
            counts = {n: ngrams(own, n) for n in (1, 2, 3)}
            distinct = {f"distinct-{n}": _share(len(grams), grams.total()) for n, grams in counts.items()}
            texts = [" ".join(text.split()) for text in dialogue.texts(AGENT) if text.strip()]
            repeated = {"repeated_utterances": _share(len(texts) - len(set(texts)), len(texts) - 1)}
            scores.append({**distinct, **_repetition(dialogue, words, self.n), **repeated})
        return {f"conversation_diversity/{key}": [each[key] for each in scores] for key in scores[0]}


def _repetition(dialogue: Dialogue, words: list[list[str]], n: int) -> dict[str, float]:
    """Shares of the agent's n-grams that occurred in earlier utterances of each speaker."""
    earlier: dict[int, set[_Gram]] = {}
    found, total = Counter[int](), Counter[int]()
    for i, turn in enumerate(dialogue.turns):
        if not words[i] or (i < dialogue.n_given and turn.speaker == AGENT):
            continue
        grams = ngrams([words[i]], n)
        for speaker, before in earlier.items() if turn.speaker == AGENT else ():
            found[speaker] += sum(count for gram, count in grams.items() if gram in before)
            total[speaker] += grams.total()
        earlier.setdefault(turn.speaker, set()).update(grams)
    return {
        "self_repetition": _share(found[AGENT], total[AGENT]),
        "partner_echo": _share(found[PARTNER], total[PARTNER]),
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole > 0 else math.nan
