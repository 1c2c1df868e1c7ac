"""A custom datapool that generates its samples."""

from rl4dialog import DataPoolRegistry, Sample, TextGenPool

NAMES = {"train": ["Ada", "Ben", "Cleo", "Dan"], "val": ["Eve"], "test": ["Finn"]}


@DataPoolRegistry.register("greetings")
class Greetings(TextGenPool):
    """Greetings with possible replies."""

    @classmethod
    def prepare(cls, split, greeting="hello"):
        samples = [
            Sample(f"{split}_{name}", f"{greeting}, this is {name}. <EOU>", [f"hello {name}!"], {"name": name})
            for name in NAMES[split]
        ]
        pool = cls(samples)
        pool.end_of_turn = "<EOU>"  # ends a reply, in addition to the tokenizer's end-of-sequence tokens
        return pool
