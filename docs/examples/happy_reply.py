"""Sentiment control with a word-based classifier, trained on small_talk's emotion labels.

The classifier is naive Bayes: log P(happy | reply) is a sum over the words of the reply, with counts from the train
split. To use a transformers classifier instead, set ``id: learned_reward``.
"""

import math
from collections import Counter

from rl4dialog import BatchedRewardFunction, DataPoolRegistry, RewardFunctionRegistry
from rl4dialog.data.labels import HAPPINESS


@RewardFunctionRegistry.register("happy_reply")
class HappyReply(BatchedRewardFunction):
    """Probability that a reply is happy, with a uniform prior over both classes."""

    def __init__(self):
        self.counts = {True: Counter(), False: Counter()}
        for sample, _ in DataPoolRegistry.get("small_talk", {"split": "train"}):
            is_happy = HAPPINESS in sample.meta_data["emotion"]
            self.counts[is_happy].update(set(words(sample.references[0])))
        self.totals = {label: sum(counts.values()) for label, counts in self.counts.items()}

    def __call__(self, prompt_texts, gen_texts, ref_texts, dones, meta_infos=None):
        return [1 / (1 + math.exp(-self.log_odds(text))) for text in gen_texts]

    def log_odds(self, text):
        """Log-likelihood ratio of happy to other, in nats."""
        return sum(self.log_share(word, True) - self.log_share(word, False) for word in set(words(text)))

    def log_share(self, word, label):
        n_words = len(self.counts[True] | self.counts[False])
        return math.log((self.counts[label][word] + 1) / (self.totals[label] + n_words))


def words(text):
    """Lower-case words without punctuation."""
    return [word.strip(".,!?") for word in text.lower().split()]
