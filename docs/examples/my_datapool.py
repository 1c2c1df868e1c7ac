"""A datapool that makes its samples itself."""

from rl4dialog import DataPoolRegistry, Sample, TextGenPool

NAMES = {"train": ["Ada", "Ben", "Cleo", "Dan"], "val": ["Eve"], "test": ["Finn"]}


@DataPoolRegistry.register("greetings")
class Greetings(TextGenPool):
    """Greetings, and what may be answered."""

    @classmethod
    def prepare(cls, split, greeting="hello"):
        samples = [
            Sample(f"{split}_{name}", f"{greeting}, this is {name}. <EOU>", [f"hello {name}!"], {"name": name})
            for name in NAMES[split]
        ]
        pool = cls(samples)
        pool.end_of_turn = "<EOU>"  # ends a reply, beside the tokenizer's own end-of-sequence tokens
        return pool
