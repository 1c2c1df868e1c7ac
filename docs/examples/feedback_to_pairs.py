"""Convert preferences and corrections to preference data: python feedback_to_pairs.py feedback.jsonl pairs.jsonl"""

import json
import sys
from pathlib import Path

from rl4dialog.core.feedback import read_feedback


def pairs(path):
    for given in read_feedback(Path(path)):
        texts = [reply.text for reply in given.replies]
        if given.kind == "preference":
            chosen, rejected = texts[given.chosen], texts[1 - given.chosen]
        elif given.kind == "correction":
            chosen, rejected = given.correction, texts[0]
        else:  # a rating has no second reply
            continue
        prompt = [{"role": "system", "content": given.persona}] if given.persona else []
        prompt += [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(given.turns)]
        replies = {"chosen": chosen, "rejected": rejected}
        yield {"prompt": prompt} | {key: [{"role": "assistant", "content": text}] for key, text in replies.items()}


if __name__ == "__main__":
    source, target = sys.argv[1:]
    Path(target).write_text("".join(json.dumps(pair) + "\n" for pair in pairs(source)), encoding="utf-8")
