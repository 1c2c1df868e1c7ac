"""A reward that gets hacked, and a second part that makes hacking harder."""

from rl4dialog import DataPoolRegistry, RewardFunctionRegistry, SentenceRewardFunction


@RewardFunctionRegistry.register("short_reply")
def short_reply(prompt_text, gen_text, ref_texts, meta_info):
    """1 for a reply of at most five words, including one word, half a word and an empty reply."""
    return float(len(gen_text.split()) <= 5)


@RewardFunctionRegistry.register("known_words")
class KnownWords(SentenceRewardFunction):
    """Share of a reply's words that occur in the train split; 0 for replies with fewer than three words."""

    def __init__(self):
        pool = DataPoolRegistry.get("small_talk", {"split": "train"})
        self.known = {word for sample, _ in pool for word in words(sample.references[0])}

    def score(self, prompt_text, gen_text, ref_texts, meta_info):
        said = words(gen_text)
        return sum(word in self.known for word in said) / len(said) if len(said) >= 3 else 0.0


def words(text):
    """Lower-case words without punctuation."""
    return [word.strip(".,!?") for word in text.lower().split()]
