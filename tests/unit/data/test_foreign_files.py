"""Files of other tools: each is read, or refused by name, and the page of datapools says how to use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pages import blocks, text_of

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import DataError

LABEL_STUDIO = [
    {
        "id": 7,
        "data": {"text": "Where is it?"},
        "annotations": [
            {"id": 1, "was_cancelled": False, "result": [{"type": "textarea", "value": {"text": ["Here.", "There."]}}]},
            {"id": 2, "was_cancelled": True, "result": []},
        ],
        "predictions": [],
    }
]
ARGILLA = [
    {
        "id": "a",
        "status": "completed",
        "fields": {"prompt": "Where is it?"},
        "metadata": {},
        "suggestions": {},
        "responses": {"reply": [{"value": "Here.", "user_id": "u"}, {"value": "There.", "user_id": "v"}]},
    }
]
PARLAI = (
    "text:Hi, you.\\nHow are you?\tlabels:Fine.|Good.\tepisode_done:False\n"
    "text:Bye.\tlabels:Bye, you.\tlabel_candidates:No.|Yes.\tepisode_done:True\n"
    "text:Tea?\tlabels:Yes: tea.\tepisode_done:True\n"
)
EMPATHETIC = (
    "conv_id,utterance_idx,context,prompt,speaker_idx,utterance,selfeval,tags\n"
    'hit:0_conv:1,1,sad,I was "alone,1,Hi_comma_ you.,5|5|5_2|2|5,\n'
    'hit:0_conv:1,2,sad,I was "alone,0,Fine.,5|5|5_2|2|5,\nhit:0_conv:1,3,sad,I was "alone,1,Bye.,5|5|5_2|2|5,\n'
    "hit:0_conv:1,4,sad,x,0,Bye_comma_ you.,5|5|5_2|2|5,\n"
)
MULTIWOZ: dict[str, Any] = {
    "SNG01.json": {
        "goal": {},
        "log": [{"text": text, "metadata": {}} for text in ("Hi, you.", "Fine.", "Bye.", "Bye.")],
    }
}
COLUMNS = {
    "Label Studio": {"prompt": "data.text", "references": "annotations.result.value.text"},
    "Argilla": {"prompt": "fields.prompt", "references": "responses.reply.value"},
}
FILES: dict[str, tuple[str, str]] = {
    "Label Studio": ("train.json", json.dumps(LABEL_STUDIO)),
    "Argilla": ("train.json", json.dumps(ARGILLA, indent=2)),
    "ParlAI": ("train.txt", PARLAI),
    "EmpatheticDialogues": ("train.csv", EMPATHETIC),
    "MultiWOZ": ("data.json", json.dumps(MULTIWOZ, indent=4)),
}


def samples(file: Path, **args: Any) -> list[Any]:
    id = "csv" if file.suffix == ".csv" else "jsonl"
    return [sample for sample, _ in DataPoolRegistry.get(id, {"split": "train", "path": {"train": str(file)}, **args})]


@pytest.mark.parametrize("tool", FILES)
def test_file_of_another_tool_is_refused_by_name(tmp_path: Path, tool: str) -> None:
    file = tmp_path / FILES[tool][0]
    file.write_text(FILES[tool][1], encoding="utf-8")
    with pytest.raises(
        DataError, match=f"{file.name}.*; this is a file of {tool}, and 'Files from elsewhere' in docs/"
    ):
        samples(file)


@pytest.mark.parametrize("tool", COLUMNS)
def test_nested_columns_read_annotations(tmp_path: Path, tool: str) -> None:
    file = tmp_path / FILES[tool][0]
    file.write_text(FILES[tool][1], encoding="utf-8")
    (found,) = samples(file, columns=COLUMNS[tool])
    assert (found.prompt_or_input_text, found.references) == ("Where is it?", ["Here.", "There."])
    assert str(COLUMNS[tool]).replace("'", "") in text_of("docs/datapools.md")


@pytest.mark.parametrize("tool", ["ParlAI", "EmpatheticDialogues", "MultiWOZ"])
def test_scripts_of_the_page_convert_dialogues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str) -> None:
    (script,) = [each for each in blocks("docs/datapools.md", "python") if each.startswith(f"# {tool}")]
    monkeypatch.chdir(tmp_path)
    Path(FILES[tool][0]).write_text(FILES[tool][1], encoding="utf-8")
    exec(script, {})
    found = samples(tmp_path / "dialogues.jsonl", columns={"dialogue": "dialogue"}, format="eou")
    assert (found[0].prompt_or_input_text.split()[:2], found[0].references) == (["Hi,", "you."], ["Fine."])
    history = found[1].meta_data["history"]
    assert history[1:] == ["Fine.", "Bye."] and found[1].references[0].startswith("Bye")
    assert tool != "ParlAI" or found[2].references == ["Yes: tea."]
