"""Small files of rated dialogues, in the formats that the toolkit reads."""

import json

DSTC9_ROW = {
    "consistent": 1,
    "human (overall)": 4,
    "topic depth": "N/A",
    "context": "User: hello\nSystem: \n hi there \nUser: bye\nSystem: bye\n",
}


def write_dstc9(folder, n_bots=2):
    """Two conversations of each chatbot; the first one has two raters."""
    folder.mkdir(exist_ok=True)
    for bot in range(1, n_bots + 1):
        rows = [
            DSTC9_ROW,
            {**DSTC9_ROW, "human (overall)": 5, "topic depth": 2},
            {**DSTC9_ROW, "context": f"User: who are you\nSystem: bot number {bot}\n", "human (overall)": bot},
        ]
        (folder / f"chatbot{bot}.json").write_text(json.dumps(rows))
    return folder


def chitchat_conversation(*texts, **other):
    groups = [[text] if isinstance(text, str) else text for text in texts]
    messages = [
        [{"text": text, "timestamp": "2018", "sender": "ab"[i % 2]} for text in group] for i, group in enumerate(groups)
    ]
    return {"messages": messages, "start": "2018", **other}


def conversation(*texts, ratings=None, **other):
    """A line of a ratings file, in which the user speaks first."""
    roles = ("user", "assistant")
    line = {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)], **other}
    return line if ratings is None else {**line, "ratings": ratings}


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
