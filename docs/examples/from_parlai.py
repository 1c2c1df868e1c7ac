"""Write ParlAI's train.txt as dialogues.jsonl; the first of several labels is the reply."""

import json

with open("train.txt", encoding="utf-8") as lines, open("dialogues.jsonl", "w", encoding="utf-8") as output:
    dialogue = []
    for line in lines:
        fields = dict(field.split(":", 1) for field in line.rstrip("\n").split("\t") if ":" in field)
        said = (fields.get("text", "").replace("\\n", "\n"), fields.get("labels", "").split("|")[0])
        dialogue += [
            {"speaker": who, "text": text} for who, text in zip(("user", "assistant"), said, strict=True) if text
        ]
        if fields.get("episode_done") == "True":
            output.write(json.dumps({"dialogue": dialogue}) + "\n")
            dialogue = []
