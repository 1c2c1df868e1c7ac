"""Write MultiWOZ 2.4's data.json as dialogues.jsonl; valListFile.json and testListFile.json list val and test."""

import json

with open("data.json", encoding="utf-8") as file, open("dialogues.jsonl", "w", encoding="utf-8") as output:
    for id, record in json.load(file).items():
        said = [{"speaker": ("user", "assistant")[i % 2], "text": turn["text"]} for i, turn in enumerate(record["log"])]
        output.write(json.dumps({"id": id, "dialogue": said}) + "\n")
