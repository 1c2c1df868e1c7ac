"""A person plays the agent of a task, with hints of scripted players and of a model."""

import io
import re

import pytest
from guessing import guess_what
from pages import ROOT
from runs import lines, module_run, write_config

from rl4dialog import cli
from rl4dialog.core.types import AGENT
from rl4dialog.data.conversations.pool import LoggedConversations

run = module_run(guess_what)


def play(monkeypatch, output, said, *flags):
    """Type lines, of which an empty one is Ctrl-C, and end with Ctrl-D."""

    class Typed(io.StringIO):
        def readline(self):
            if (line := super().readline()) == "\n":
                raise KeyboardInterrupt
            return line

    monkeypatch.setattr("sys.stdin", Typed(said))
    return cli.main(["play", "--output", str(output), *flags])


def test_a_person_plays_with_hints_and_goes_on_after_an_interruption(run, tmp_path, monkeypatch, capsys):
    output, model = tmp_path / "games.jsonl", ("--run", str(run), "--n", "3")
    lost = "is it alive ?\n" * 8
    said = f"/hint\n\n{lost}is it alive ?\n"
    assert play(monkeypatch, output, said, *model, "--hint", "information_gain") == 0
    printed = capsys.readouterr().out
    assert "The partner: Thinks of the sample's thing" in printed and "partner: guess what i think of\n" in printed
    assert "\nhint: " in printed and "(type /quit or Ctrl-D to end the chat)" in printed
    assert "The game is over. Return: -0.4, success: 0\n" in printed
    assert f"1 of 3 games are in {output}; the same command continues after them." in printed
    (record,) = lines(output)
    assert (
        record["system"] == "person" and record["ended_by"] == "max_turns" and record["return"] == pytest.approx(-0.4)
    )
    assert said_by(record) == ["is it alive ?"] * 8
    # A model gives hints, too; the first game stays as it was, and the one that was not over begins anew.
    before = output.read_bytes()
    assert play(monkeypatch, output, "/hint\n" + lost * 2, *model, "--hint", str(run)) == 0
    printed = capsys.readouterr().out
    assert output.read_bytes().startswith(before) and "\nhint: " in printed and "3 of 3 games are in" in printed
    assert_is_a_log_of_games(run, output, 3)
    assert play(monkeypatch, output, "/quit\n", *model) == 0 and len(lines(output)) == 3


def test_words_that_a_small_vocabulary_does_not_have_are_answered_with_those_that_it_has(tmp_path, monkeypatch, capsys):
    rules = pytest.importorskip("rl4dialog.features.games.wordle.rules")
    flags = ("--config_path", str(ROOT / "task_configs/wordle/llama_ppo.yml"), "--set", "datapool.args.n_train=500")
    assert play(monkeypatch, tmp_path / "games.jsonl", "stone\ntables\nwater\n", *flags) == 0
    printed = capsys.readouterr().out
    words = ", ".join(rules.load_words(40))
    assert "five-letter word" in printed and printed.count(f"; words of agents in the training data: {words}\n") == 2
    assert re.search(r"partner: [gyb]{5}\n", printed), "a word of the list is played"


def said_by(record):
    return [message["content"] for message in record["messages"] if message["role"] == "assistant"]


def assert_is_a_log_of_games(run, path, n):
    conversations = list(LoggedConversations.prepare("train", path).conversations())
    assert len(conversations) == n
    for record, conversation in zip(lines(path), conversations, strict=True):
        turns = [turn for turn in conversation.said if turn.speaker == AGENT]
        assert [turn.reward for turn in turns] == record["rewards"] and all(turn.ids for turn in turns)


def test_what_a_person_cannot_say_is_not_played(tmp_path, monkeypatch, capsys, refused):
    config, output = write_config(tmp_path, guess_what(tmp_path)), tmp_path / "games.jsonl"
    flags = ("--config_path", str(config))
    long = " ".join(["is it alive"] * 9)
    assert play(monkeypatch, output, f"/hint\n{long}\nyes <EOU> no\n/nothing\n", *flags) == 0
    printed = capsys.readouterr().out
    for message in (
        "error: /hint has no effect: --hint names no player or run that gives hints",
        "in the run's tokens, of which a reply has 16",
        "error: a text cannot contain <EOU>",
        "error: unknown command '/nothing'",
        f"0 of 32 games are in {output}",
    ):
        assert message in printed
    refused(
        play(monkeypatch, output, "", *flags, "--hint", "blnd"),
        "--hint 'blnd' is neither a run folder nor a player of datapool 'guess_what'; did you mean 'blind'",
    )
    refused(play(monkeypatch, tmp_path / "games.txt", "", *flags), "--output must be a .jsonl file")
    alone = ("--set", "env.args.partner={id: self_play}", "reward_fn={id: repetition_penalty}")
    refused(play(monkeypatch, output, "hello\n", *flags, *alone), "the partner is the model itself; pass --run")
