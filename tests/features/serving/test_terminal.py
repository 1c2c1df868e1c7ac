import builtins
import io
import json
import re
import sys
from pathlib import Path

import pytest
from echo_model import Echo

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.feedback import JudgedReply, read_feedback
from rl4dialog.core.types import PartnerReply
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.features.serving.chat import Chat
from rl4dialog.features.serving.teaching import Situation, Teaching
from rl4dialog.features.serving.terminal import TeachingTerminal, TerminalChat, console_reader, parse_command, speaker


def reading(lines, printed=None):
    rest = iter(lines)

    def read(prompt):
        line = next(rest, EOFError())
        if isinstance(line, BaseException):
            raise line
        if printed is not None:
            printed.append(f"{prompt}{line}\n")
        return line

    return read


class Talk:
    def __init__(self, *lines, **kwargs):
        self.model, written = kwargs.pop("model", None) or Echo(), list[str]()
        feedback = kwargs.pop("feedback", Path("feedback.jsonl"))
        chat = Chat([self.model], feedback, show_tokens=False, **kwargs)
        self.chat = TerminalChat(chat, reading(lines), written.append)
        self.chat.run()
        self.written, self.printed = written, "".join(written)

    @property
    def turns(self):
        return self.chat.state.turns


def test_reply_is_written_as_it_comes():
    written = Talk("a b c").written
    assert [text for text in written[written.index("model: ") + 1 :] if text.strip()] == ["A", " B", " C"]


def test_undo_reset_and_persona_change_what_the_model_reads():
    talk = Talk("a", "", "b", "/undo", "c", "/reset", "/persona  I am a cat. ", "d", "/persona", "e")
    prompts = [prompt for prompt, _, _ in talk.model.asked]
    assert prompts[2] == "a<EOU>A<EOU>c <EOU>"
    assert prompts[3] == "I am a cat.<EOU>d <EOU>"
    assert prompts[4] == "d<EOU>D<EOU>e <EOU>"
    assert "Undone: b\n" in talk.printed
    assert "There is nothing to undo." in Talk("/undo").printed


def test_persona_of_the_training_is_said_and_used():
    model = Echo()
    model.persona = "I am a dog."
    talk = Talk("a", "/reset", "b", "/persona", "/reset", "c", model=model)
    assert [prompt for prompt, _, _ in model.asked] == ["I am a dog.<EOU>a <EOU>", "I am a dog.<EOU>b <EOU>", "c <EOU>"]
    assert "Persona, as in training: I am a dog.\n" in talk.printed
    model.persona = ""
    assert "error: /persona has no effect: no prompt of its training has one" in Talk("/persona P", model=model).printed
    model.dialogue_format = DialogueFormat("chat_template", None, str)
    assert "Persona: P\n" in Talk("/persona P", model=model).printed


def test_beta_and_temperature_hold_from_then_on():
    model = Echo()
    model.beta = 4.0
    wrong = ("/beta -1", "/beta much", "/temperature 0")
    talk = Talk("a", "/beta 8", "b", "/temperature 2", "c", "/beta 0", "d", *wrong, "e", model=model)
    both = {"temperature": 2.0}
    assert [kwargs for _, _, kwargs in model.asked] == [
        {}, {"beta": 8.0}, {"beta": 8.0, **both}, {"beta": 0.0, **both}, {"beta": 0.0, **both}
    ]  # fmt: skip
    assert "beta is 8.\n" in talk.printed
    assert "error: settings.temperature: input should be greater than or equal to" in talk.printed
    assert "error: beta must be a number of at least 0, not -1" in talk.printed
    assert "error: 'much' is not a number\n" in talk.printed
    assert "error: /beta has no effect: this model is not guided by values\n" in Talk("/beta 8").printed
    model.generation_kwargs = {"do_sample": False}
    assert "error: /temperature has no effect: this model does not" in Talk("/temperature 2", model=model).printed


def test_mistake_is_told_and_the_chat_goes_on():
    talk = Talk("/tempreature 3", "a<EOU>b", "silence", "/quit", "d")
    assert "error: unknown command '/tempreature'; did you mean '/temperature'? (/help lists the" in talk.printed
    assert "error: a text cannot contain <EOU>" in talk.printed and "model: (empty reply)\n" in talk.printed
    assert talk.turns == ["silence", ""]


def test_interruption_stops_the_reply_and_not_the_chat():
    talk = Talk("yes stop no", "stop", KeyboardInterrupt(), "next")
    assert talk.turns == ["yes stop no", "YES", "next", "NEXT"]
    assert "model: YES (stopped)\n" in talk.printed
    assert "model: (stopped)\n" in talk.printed
    assert "(type /quit or Ctrl-D to end the chat)" in talk.printed


def test_reward_is_printed_with_its_parts():
    assert "  reward 1.000 (length 2.000, history 3.000)\n" in Talk("hello", "ab", show_reward=True).printed
    model = Echo()
    model.reward_fails = True
    printed = Talk("ab", "c", model=model, show_reward=True).printed
    assert printed.count("  available reward parts: length ") == 2 and printed.count("  cannot compute overlap") == 1


def test_reply_cannot_control_the_terminal():
    talk = Talk("a\x1b[2Jb\rc")
    assert "model: A\ufffd[2JB" in talk.printed
    assert "\x1b" not in talk.printed and "\r" not in talk.printed


def test_conversation_is_saved_as_a_line(tmp_path):
    path = tmp_path / "chats.jsonl"
    talk = Talk(f"/save {path}", "a", f"/save {path}", "b", f"/save {path}", f"/save {tmp_path / 'a.txt'}")
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first == {
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "A"}],
        "model": "echo",
    }
    assert len(second["messages"]) == 4
    assert "error: there is no conversation to save yet" in talk.printed
    assert "error: /save needs a .jsonl file" in talk.printed


def test_last_reply_is_rated_and_corrected(tmp_path):
    path = tmp_path / "feedback.jsonl"
    talk = Talk("/rate up", "/persona P", "a", "/rate down", "b", "/correct B!", "/rate bad", feedback=path)
    rating, correction = read_feedback(path)
    assert (rating.kind, rating.rating, rating.turns, rating.persona) == ("rating", -1, ["a"], "P")
    assert rating.replies == [JudgedReply("echo", "A")]
    assert (correction.kind, correction.correction, correction.turns) == ("correction", "B!", ["a", "A", "b"])
    assert talk.turns == ["a", "A", "b", "B"]
    assert "error: there is no reply to judge yet" in talk.printed
    assert "error: /rate needs up or down, not 'bad'" in talk.printed


def test_lines_of_a_pipe_are_echoed():
    written = []
    read = console_reader(io.StringIO("hi\n"), written.append)
    assert read("you: ") == "hi\n"
    assert written == ["you: hi\n"]
    with pytest.raises(EOFError):
        read("you: ")


class Screen(io.StringIO):
    def isatty(self):
        return True


def show_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Screen())
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)


def test_name_has_a_color_on_a_terminal_where_it_is_wanted(monkeypatch):
    show_terminal(monkeypatch)
    you, model = speaker("you"), speaker("model")
    assert you.startswith("\x1b[") and you.endswith("you:\x1b[0m ") and you.split("you")[0] != model.split("model")[0]
    monkeypatch.setenv("NO_COLOR", "1")
    assert speaker("you") == "you: "
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert speaker("you") == "you: "


def test_readline_is_told_what_has_no_width(monkeypatch):
    show_terminal(monkeypatch)
    asked = []
    monkeypatch.setattr(builtins, "input", lambda prompt: asked.append(prompt) or "hello")
    assert console_reader(Screen(), asked.append)("\x1b[1;32myou:\x1b[0m ") == "hello"
    assert asked == ["\x01\x1b[1;32m\x02you:\x01\x1b[0m\x02 "]


@pytest.mark.parametrize(
    ("line", "message"),
    [("/", "unknown command '/'"), ("/save", "/save needs FILE"), ("/undo 2", "/undo takes no argument, not '2'")],
)
def test_mistake_in_a_command_is_told(line, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_command(line, TerminalChat.commands)


@pytest.mark.parametrize("chat", [TerminalChat, TeachingTerminal])
def test_commands_are_listed(chat, tmp_path):
    printed = []
    subject = Teaching(Echo(), [Situation(["a"])], tmp_path / "f.jsonl")
    subject = {TerminalChat: Chat([Echo()], tmp_path)}.get(chat, subject)
    chat(subject, reading(["/help", "/quit", "never read"]), printed.append).run()
    lines = "".join(printed)
    without = {TerminalChat: {"beta"}, TeachingTerminal: {"goal", "keep", "undo"}}.get(chat, ())
    for name, command in chat.commands.items():
        assert (name not in without) == (f"  /{name}" in lines) == (command.help in lines)


def taught(tmp_path, *lines, situations, **kwargs):
    printed = []
    teaching = Teaching(Echo(), situations, tmp_path / "f.jsonl", **kwargs)
    TeachingTerminal(teaching, reading(lines, printed), printed.append).run()
    return "".join(printed)


def test_session_prints_only_what_is_new(tmp_path):
    situation = Situation(["well", "hi", "so\x1b"], "i sing .", "food", lambda: lambda said: PartnerReply(f"re {said}"))
    lines = ("/up", "better", "/next", "")
    printed = taught(tmp_path, *lines, situations=[situation, Situation(["a"])], goals=["food", "work"])
    note = f"was appended to {tmp_path / 'f.jsonl'}."
    assert printed.split("\n\n", 1)[1] == (
        "0 of 2 done.\npersona: i sing .\npartner: well\nmodel: hi\npartner: so\ufffd\ngoal: food\nmodel: SO\ufffd\n"
        f"you: /up\nThe rating {note}\npartner: re SO\ufffd\ngoal: work\nmodel: RE SO\ufffd\n"
        f"you: better\nThe correction {note}\npartner: re better\ngoal: food\nmodel: RE BETTER\n"
        "you: /next\n\n1 of 2 done.\npartner: a\nmodel: A\nyou: \n\n"
    )
    rating, correction = read_feedback(tmp_path / "f.jsonl")
    assert rating.replies[0].text == "SO\x1b" and correction.turns[-1] == "re SO\x1b"


def test_teaching_ends_after_the_last_situation(tmp_path):
    printed = taught(tmp_path, "/down", "/down", "c", "never read", situations=[Situation(["a"])])
    assert "The model has no other reply" in printed and "error: this reply is already rejected" in printed
    assert printed.endswith("\n1 of 1 done.\n") and "never read" not in printed
    printed = taught(tmp_path, situations=[Situation(["a"])])
    assert printed == "1 of 1 done. There is nothing left to judge.\n"


def test_goals_are_listed_and_set(tmp_path):
    goals = {"goals": ["food", "work"]}
    printed = taught(tmp_path, "/goal", "/goal work", situations=[Situation(["a"], None, "food")], **goals)
    assert "food, work\n" in printed and printed.count("goal: work\nmodel: A\n") == 1 and "persona" not in printed
    printed = taught(tmp_path, "/goal", "/quit", situations=[Situation(["a"])])
    assert "error: /goal has no effect: the samples have no goals" in printed
