import json
import re
from unittest.mock import Mock

import pytest

from rl4dialog.core.errors import DataError, RunFolderError
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.inference.simulation import PromptLine, ReplyFile, read_prompts

EOU = DialogueFormat("eou", 2)
CHAT = DialogueFormat("chat_template", 2, lambda messages: "|".join(f"{m['role']}:{m['content']}" for m in messages))
PROMPTS = [PromptLine("a", {}), PromptLine("b", {"id": 3}), PromptLine("c", {})]


def prompts(tmp_path, text, name="in.jsonl", form=EOU):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_prompts(path, form)


def test_every_line_of_text_is_a_prompt_as_it_stands(tmp_path):
    found = prompts(tmp_path, " hi {x} \n\nyes\u2028no\n", "in.txt")
    assert found == [PromptLine(text, {}) for text in (" hi {x} ", "", "yes\u2028no")]


def test_turns_are_written_in_the_dialogue_format(tmp_path):
    turns = [
        {"role": role, "content": content} for role, content in (("system", "S"), ("assistant", "A"), ("user", "U"))
    ]
    lines = [{"prompt": "P", "id": 1}, {"history": ["x", "y", "z"]}, {"messages": turns}]
    text = "\n".join(map(json.dumps, lines))
    found = prompts(tmp_path, text)
    assert [line.prompt for line in found] == ["P", "y<EOU>z <EOU>", "S<EOU>A<EOU>U <EOU>"]
    assert found[0].given == {"prompt": "P", "id": 1}
    assert prompts(tmp_path, text.splitlines()[2], form=CHAT)[0].prompt == "system:S|assistant:A|user:U"


def test_turns_begin_with_the_persona_of_the_training_and_other_prompts_are_told(tmp_path, caplog):
    path = tmp_path / "in.jsonl"
    own = {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]}
    lines = [{"history": ["U"]}, {"messages": own["messages"][1:]}, own]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    found = [line.prompt for line in read_prompts(path, CHAT, "P")]
    assert found == ["system:P|user:U", "system:P|user:U", "system:S|user:U"] and not caplog.text
    path.write_text('{"prompt": "user:U"}', encoding="utf-8")
    assert read_prompts(path, CHAT, "P")[0].prompt == "user:U"
    assert "do not begin with 'P', as all prompts of the training did" in caplog.text


def test_prompts_that_lack_the_chat_template_are_told(tmp_path, caplog):
    def render(messages):
        return f"<user>{messages[-1]['content']}"

    render.control_tokens = ("<user>",)
    chat = DialogueFormat("chat_template", None, render)
    for prompt in ("<user>hi", ""):
        assert prompts(tmp_path, json.dumps({"prompt": prompt}), form=chat)[0].prompt == prompt
        assert ("without the chat template that the run was trained with" in caplog.text) == (not prompt)
    assert prompts(tmp_path, '{"history": ["hi"]}', form=chat)[0].prompt == "<user>hi"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "must be a JSON object"),
        ('{"promt": "x"}', "needs exactly one of the columns prompt, messages, history, and has none of them"),
        ('{"prompt": "x", "history": ["y"]}', ".* has prompt and history"),
        ('{"prompt": ["x"]}', "column 'prompt' must contain text"),
        ('{"history": []}', "column 'history' is an empty list"),
        ('{"messages": [{"role": "me", "content": "x"}]}', "message 0 of messages has the unknown role 'me'"),
    ],
)
def test_wrong_line_is_named(tmp_path, line, message):
    with pytest.raises(DataError, match=rf"in\.jsonl:2: {message}"):
        prompts(tmp_path, '{"prompt": "fine"}\n' + line)


def test_wrong_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"in\.pdf has an unknown format"):
        prompts(tmp_path, "x", "in.pdf")
    with pytest.raises(DataError, match="contains no prompts"):
        prompts(tmp_path, "", "in.txt")
    with pytest.raises(DataError, match=r"in\.jsonl:1: history needs a dialogue format"):
        prompts(tmp_path, '{"history": ["x"]}', form=None)
    with pytest.raises(DataError, match="cannot be read"):
        read_prompts(tmp_path / "nowhere.txt", EOU)


def test_replies_go_on_after_the_last_whole_line(tmp_path):
    path = tmp_path / "new" / "out.jsonl"
    with ReplyFile(path, PROMPTS) as file:
        for reply in ("x", "\u00fc\ud800", "z"):
            file.append(reply)
    whole = path.read_bytes()
    assert [json.loads(line) for line in whole.decode().splitlines()] == [
        {"prompt": "a", "reply": "x"},
        {"id": 3, "prompt": "b", "reply": "\u00fc\ud800"},
        {"prompt": "c", "reply": "z"},
    ]
    for n_bytes in range(len(whole) + 1):
        path.write_bytes(whole[:n_bytes])
        with ReplyFile(path, PROMPTS) as file:
            assert file.n_done == whole[:n_bytes].count(b"\n")
            for reply in ("x", "\u00fc\ud800", "z")[file.n_done :]:
                file.append(reply)
        assert path.read_bytes() == whole


@pytest.mark.parametrize("line", ['{"prompt": "b", "reply": ""}', "{}", "no JSON", '{"prompt": "a"}', '["a"]'])
def test_file_of_other_replies_is_left_alone(tmp_path, line):
    path = tmp_path / "out.jsonl"
    path.write_text(line + "\npart")
    with pytest.raises(DataError, match=re.escape(f"{path}:1 is not a reply to prompt 1 of the input")):
        ReplyFile(path, PROMPTS)
    assert path.read_text() == line + "\npart"


@pytest.mark.parametrize("content", ["my notes", '{"a": 1}', "[{"])
def test_file_without_an_end_of_line_is_left_alone_unless_it_is_a_cut_reply(tmp_path, content):
    path = tmp_path / "out.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=r"out\.jsonl is not a reply to prompt 1 of the input"):
        ReplyFile(path, PROMPTS)
    assert path.read_text() == content
    path.write_text('{"prompt": "a", "reply": "x"}\n' * 2)
    with pytest.raises(DataError, match=":2 is not a reply to prompt 2"):
        ReplyFile(path, PROMPTS[:1])
    path.write_text('{"prompt": "a", "rep')
    with ReplyFile(path, PROMPTS) as file:
        assert file.n_done == 0


def test_unwritable_place_and_full_disk_are_errors(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="choose another --output"):
        ReplyFile(tmp_path / "file" / "out.jsonl", PROMPTS)

    file = ReplyFile(tmp_path / "out.jsonl", PROMPTS)
    file.close()
    file._file = Mock(**{"write.side_effect": OSError(28, "No space left on device")})
    with pytest.raises(RunFolderError, match="No space left on device; fix this and rerun the command to continue"):
        file.append("x")
    assert file.n_done == 0
