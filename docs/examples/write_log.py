"""Writes a log of two games, in which a guess costs 1."""

import json

games = [
    ["Guess a number!", "5", "larger", "8", "right"],
    ["Guess a number!", "4", "right"],
]
with open("games.jsonl", "w", encoding="utf-8") as file:
    for number, texts in enumerate(games):
        messages = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)]
        rewards = [-1.0] * (len(texts) // 2)
        line = {"id": number, "messages": messages, "rewards": rewards}
        file.write(json.dumps(line) + "\n")
