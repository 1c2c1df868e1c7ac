"""Three forms of a custom reward: a function, a class that scores whole replies, and one called for every token."""

from rl4dialog import RewardFunction, RewardFunctionRegistry, SentenceRewardFunction


@RewardFunctionRegistry.register("about_six_words")
def about_six_words(prompt_text, gen_text, ref_texts, meta_info):
    """1 for a reply of six words, minus a sixth for each missing or extra word."""
    return max(0.0, 1 - abs(len(gen_text.split()) - 6) / 6)


@RewardFunctionRegistry.register("starts_with")
class StartsWith(SentenceRewardFunction):
    """A bonus for replies that start with a given word."""

    def __init__(self, word, bonus=1.0):
        self.word, self.bonus = word.lower(), bonus

    def score(self, prompt_text, gen_text, ref_texts, meta_info):
        words = gen_text.lower().split()
        return self.bonus if words[:1] == [self.word] else 0.0


@RewardFunctionRegistry.register("new_words")
class NewWords(RewardFunction):
    """Change in the number of distinct words caused by each token."""

    def __call__(self, prev_observation, action, current_observation, done, meta_info=None):
        before, now = (set(seen.context_text.split()) for seen in (prev_observation, current_observation))
        return float(len(now) - len(before))
