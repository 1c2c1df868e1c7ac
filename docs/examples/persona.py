"""Persona dialogue: a reward for mentioning the persona, and a few dialogues in the format of PersonaChat.

``python docs/examples/persona.py FOLDER`` writes the dialogues. Replace them with ConvAI2's text files for real data.
"""

import random
import sys
from pathlib import Path

from rl4dialog import RewardFunctionRegistry

PLAIN = {"a", "am", "and", "are", "do", "have", "i", "is", "it", "my", "of", "the", "to", "what", "yes", "you", "your"}
LOVES = ["chess", "jazz", "hiking", "baking", "poetry", "football"]
PETS = ["a black cat", "two dogs", "a parrot", "a turtle"]
JOBS = ["a nurse", "a baker", "a pilot", "a teacher", "a farmer"]


@RewardFunctionRegistry.register("speaks_of_persona")
def speaks_of_persona(prompt_text, gen_text, ref_texts, meta_info):
    """Share of a reply's content words that occur in the persona."""
    known = content_words(" ".join(meta_info["persona"]))
    said = content_words(gen_text)
    return len(said & known) / len(said) if said else 0.0


def content_words(text):
    """Distinct words, without those that occur in most sentences."""
    return {word.strip(".,!?") for word in text.lower().split()} - PLAIN


def dialogue(rng):
    """The numbered lines of one dialogue: the persona, then pairs of utterance and reply."""
    love, pet, job = rng.choice(LOVES), rng.choice(PETS), rng.choice(JOBS)
    persona = [f"i love {love}.", f"i have {pet}.", f"i am {job}."]
    exchanges = [
        ("hello, what do you do in the evening?", f"i love {love}, and you?"),
        ("do you have a pet?", f"yes, i have {pet}."),
        ("what is your job?", f"i am {job}."),
    ]
    rng.shuffle(exchanges)
    lines = [f"your persona: {sentence}" for sentence in persona] + ["\t".join(pair) for pair in exchanges]
    return [f"{number} {line}" for number, line in enumerate(lines, start=1)]


def write_dialogues(folder, n_dialogues=200):
    """Write one file per split."""
    rng = random.Random(0)
    Path(folder).mkdir(parents=True, exist_ok=True)
    for split in ("train", "valid", "test"):
        lines = [line for _ in range(n_dialogues) for line in dialogue(rng)]
        Path(folder, f"{split}_self_original.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_dialogues(sys.argv[1])
