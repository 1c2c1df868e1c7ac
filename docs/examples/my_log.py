"""A custom datapool of logged conversations: a waiter, paid for orders and for short conversations."""

import random

from rl4dialog import DataPoolRegistry, Dialogue, Sample, TextGenPool, Turn
from rl4dialog.core.types import AGENT, PARTNER
from rl4dialog.data.dialogue_format import DialogueFormat

DRINKS = ("tea", "coffee", "juice")
QUESTIONS = {"would you like a drink ?": "what do you have ?", "what do you wish ?": "something to drink ."}


@DataPoolRegistry.register("waiter")
class Waiter(TextGenPool):
    """Conversations of a waiter with guests. Each offer costs 1, and the guest's drink earns 5."""

    has_rewards = True

    @classmethod
    def prepare(cls, split, n=200):
        rng, form, conversations = random.Random(f"waiter/{split}"), DialogueFormat("eou", None), []
        for number in range(n if split == "train" else 10):
            wish, question = rng.choice(DRINKS), rng.choice(list(QUESTIONS))
            turns = [Turn("hello !", PARTNER), Turn(question, AGENT), Turn(QUESTIONS[question], PARTNER)]
            for offer in rng.sample(DRINKS, 3):
                reward, answer = (4.0, "yes , please !") if offer == wish else (-1.0, "no , thanks .")
                turns += [Turn(f"{offer} ?", AGENT, reward=reward), Turn(answer, PARTNER)]
                if offer == wish:
                    break
            conversations.append(Dialogue(f"{split}_{number}", tuple(turns), n_given=1))
        pool = cls([Sample(d.id, form.prompt(["hello !"]), [d.turns[1].text]) for d in conversations])
        pool.use_format(form)
        pool.logged = conversations
        return pool

    def conversations(self):
        yield from self.logged  # an iterator can also read them from a file, one at a time
