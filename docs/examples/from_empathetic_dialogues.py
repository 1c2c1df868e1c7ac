"""Write train.csv of EmpatheticDialogues as dialogues.jsonl: one side tells of a situation, the other one listens."""

import json

dialogues = {}
with open("train.csv", encoding="utf-8") as lines:
    names = next(lines).strip().split(",")
    for line in lines:
        row = dict(zip(names, (field.replace("_comma_", ",") for field in line.strip().split(",")), strict=False))
        who = "user" if int(row["utterance_idx"]) % 2 else "assistant"
        dialogues.setdefault(row["conv_id"], []).append({"speaker": who, "text": row["utterance"]})
with open("dialogues.jsonl", "w", encoding="utf-8") as output:
    for id, dialogue in dialogues.items():
        output.write(json.dumps({"id": id, "dialogue": dialogue}) + "\n")
