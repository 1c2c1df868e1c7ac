"""Conversations of a complete run with its partner: the file of ``simulate``, and the scripted players beside it."""

import io
import json
import re

import pytest
from pages import ROOT
from runs import lines, make_config, module_run, write_config
from transformers import AutoTokenizer

from rl4dialog import cli
from rl4dialog.core.types import AGENT
from rl4dialog.data.conversational import Conversational
from rl4dialog.data.conversations.pool import LoggedConversations
from rl4dialog.tasks.wordle.rules import load_words
from rl4dialog.text.tokenizer import tokenizer_hash

N = 9  # more than the samples of the split
GUESS_WHAT = {
    "tokenizer__vocab_size": 400,
    "datapool": {"id": "guess_what", "args": {"path": "", "n_train": 32, "n_val": 4, "n_test": 8}},
    "reward_fn": {"id": "outcome", "args": {"weights": {"success": 1.0}, "per_turn": -0.05}},
    "env__args": {"max_prompt_length": 160, "max_episode_length": 16, "max_turns": 8, "partner": {"id": "guess_what"}},
    "train_evaluation__n_iters": 1,
    "train_evaluation__eval_batch_size": 4,
    "train_evaluation__max_eval_samples": 8,
    "train_evaluation__metrics": [{"id": "conversation"}],
}


def guess_what(folder):
    config = make_config(folder, **GUESS_WHAT)
    config["datapool"]["args"].pop("path", None)
    return config


run = module_run(guess_what)


def simulate(run, output, *flags):
    return cli.main(["simulate", "--run", str(run), "--n", str(N), "--output", str(output), *flags])


def said(record):
    return [message["content"] for message in record["messages"]]


@pytest.mark.parametrize("flags", [(), ("--player", "careless")], ids=["model", "player"])
def test_simulated_conversations_are_read_back(run, tmp_path, flags):
    assert simulate(run, tmp_path / "found.jsonl", *flags) == 0
    found = lines(tmp_path / "found.jsonl")
    assert len(found) == N and len({record["seed"] for record in found}) == N
    assert [record["sample_id"] for record in found] == [f"test_{i % 8}" for i in range(N)]
    path = {split: str(tmp_path / "found.jsonl") for split in ("train", "val", "test")}
    firsts = [sample for sample, _ in Conversational.prepare("train", path=path, turns="first")]
    for record, sample in zip(found, firsts, strict=True):
        meta_data = sample.meta_data or {}
        assert [*meta_data["history"], *sample.references, *meta_data["continuation"]] == said(record)
        assert [message["role"] for message in record["messages"][:3]] == ["user", "assistant", "user"]
    every = [sample for sample, _ in Conversational.prepare("train", path=path, turns="all")]
    assert [[*(s.meta_data or {})["history"], *s.references] for s in every] == [
        said(record)[: n + 1]
        for record in found
        for n, message in enumerate(record["messages"])
        if message["role"] == "assistant"
    ]
    assert_is_a_log(run, tmp_path / "found.jsonl", has_log_probs=not flags)


def assert_is_a_log(run, path, has_log_probs):
    records = lines(path)
    pool = LoggedConversations.prepare("train", path)
    conversations, tokenizer = list(pool.conversations()), AutoTokenizer.from_pretrained(run / "model")
    assert [each.id for each in conversations] == list(range(N)) and len(pool) == N
    for record, conversation in zip(records, conversations, strict=True):
        said = [turn for turn in conversation.said if turn.speaker == AGENT]
        written = [message for message in record["messages"] if message["role"] == "assistant"]
        assert [list(turn.ids or ()) for turn in said] == [message["token_ids"] for message in written]
        assert [turn.reward for turn in said] == record["rewards"]
        assert sum(turn.reward for turn in said) == pytest.approx(record["return"])
        assert conversation.tokenizer == tokenizer_hash(tokenizer)
        for turn in said:
            assert tokenizer.decode(turn.ids, skip_special_tokens=True).split("<EOU>")[0].strip() == turn.text
            assert (turn.log_probs is not None) == has_log_probs
            assert turn.log_probs is None or len(turn.log_probs) == len(turn.ids or ())
        assert conversation.outcome == record["outcome"] and conversation.ended_by == record["ended_by"]


def test_rewards_add_up_to_what_the_outcome_is_worth(run, tmp_path):
    assert simulate(run, tmp_path / "found.jsonl", "--player", "information_gain") == 0
    for record in lines(tmp_path / "found.jsonl"):
        n_turns = sum(message["role"] == "assistant" for message in record["messages"])
        assert len(record["rewards"]) == n_turns and record["n_given"] == 1
        assert record["return"] == pytest.approx(record["outcome"]["success"] - 0.05 * n_turns)
        assert record["ended_by"] == "partner" and record["outcome"] == {"success": 1.0}
        assert record["meta_data"]["thing"] in record["messages"][-1]["content"]


def test_same_seed_gives_the_same_file_also_after_an_interruption(run, tmp_path, capsys):
    sampling = ("--generation_kwargs", "do_sample=true")
    assert simulate(run, tmp_path / "whole.jsonl", *sampling) == 0
    table = capsys.readouterr().out
    for word in (f"{N} conversations", "turns", "return", "success", "ended_by_max_turns"):
        assert word in table
    whole = (tmp_path / "whole.jsonl").read_bytes()
    (tmp_path / "cut.jsonl").write_bytes(b"".join(whole.splitlines(keepends=True)[:6]) + b'{"sample_id": "te')
    assert simulate(run, tmp_path / "cut.jsonl", *sampling) == 0
    assert (tmp_path / "cut.jsonl").read_bytes() == whole
    output = capsys.readouterr().out
    assert "3 conversations written" in output and f"{N} conversations\n" in output
    assert simulate(run, tmp_path / "other.jsonl", *sampling, "--seed", "1") == 0
    assert [r["seed"] for r in lines(tmp_path / "other.jsonl")] != [r["seed"] for r in lines(tmp_path / "whole.jsonl")]


def test_files_of_other_conversations_are_never_overwritten(run, tmp_path, capsys, refused):
    output = tmp_path / "found.jsonl"
    assert simulate(run, output, "--player", "blind") == 0
    before = output.read_bytes()
    assert simulate(run, output, "--player", "blind") == 0
    assert "already complete" in capsys.readouterr().out
    for flags in (("--player", "careless"), ("--player", "blind", "--seed", "2"), ()):
        refused(simulate(run, output, *flags), f"{output}:1 is not conversation 1 of this command")
    assert output.read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--player", "carless"], "did you mean 'careless'"),
        (["--n", "0"], "--n must be at least 1"),
        (["--generation_kwargs", "num_beams=4"], "num_beams"),
        (["--player", "blind", "--generation_kwargs", "top_k=4"], "no meaning with --player"),
        (
            ["--set", "env.args.partner=null", "--set", "env.args.max_turns=1", "--set", "reward_fn={id: chrf}"],
            "nobody",
        ),
    ],
)
def test_what_cannot_be_simulated(run, tmp_path, refused, flags, message):
    refused(simulate(run, tmp_path / "found.jsonl", *flags), message)


def test_players_stand_beside_the_model(run, tmp_path, capsys):
    assert cli.main(["evaluate", "--run", str(run), "--output_path", str(tmp_path / "found")]) == 0
    output = capsys.readouterr().out
    found = json.loads((tmp_path / "found" / "metrics.json").read_text())["players"]
    assert found == json.loads((run / "test_split_players.json").read_text())
    assert list(found) == ["blind", "careless", "data", "consistent", "information_gain"]
    best = found["information_gain"]
    assert best["conversation/success"] == 1.0 > found["blind"]["conversation/success"]
    assert best["reward"] == pytest.approx(best["conversation/return"])
    assert best["conversation/return"] == pytest.approx(1 - 0.05 * best["conversation/turns"])
    assert "references" not in output and "careless" in output
    assert cli.main(["report", str(run)]) == 0
    page = (run / "report.html").read_text(encoding="utf-8", errors="replace")
    assert "<th>careless</th>" in page
    assert f'data-name="information_gain">{best["conversation/turns"]:.3f}' in page


def test_plan_of_conversations(run, capsys):
    command = ["train", "--config_path", str(run.parents[2] / "config.yml"), "--dry_run"]
    command += ["--set", "env.args.max_partner_length=30"]
    assert cli.main(command) == 0
    plan = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for words in (
        "conversation partner guess_what",
        "turns per conversation at most 8",
        "at most 128 of the agent and 240 of its partner",
        "rows whole conversations, at most 176 tokens, or about 4 turns of maximum length",
    ):
        assert words in plan
    assert cli.main([*command, "--set", "alg.args.join_turns=false"]) == 0
    assert "single replies with their prompts" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_a_config_alone_is_enough_for_players(run, tmp_path):
    config = write_config(tmp_path, guess_what(tmp_path))
    args = ["simulate", "--config_path", str(config), "--n", str(N), "--player", "careless"]
    assert cli.main([*args, "--output", str(tmp_path / "config.jsonl")]) == 0
    assert simulate(run, tmp_path / "run.jsonl", "--player", "careless") == 0
    assert (tmp_path / "config.jsonl").read_bytes() == (tmp_path / "run.jsonl").read_bytes()


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
    flags = ("--config_path", str(ROOT / "task_configs/wordle/llama_ppo.yml"), "--set", "datapool.args.n_train=500")
    assert play(monkeypatch, tmp_path / "games.jsonl", "stone\ntables\nwater\n", *flags) == 0
    printed = capsys.readouterr().out
    words = ", ".join(load_words(40))
    assert "five-letter word" in printed and printed.count(f"; words of agents in the training data: {words}\n") == 2
    assert re.search(r"partner: [gyb]{5}\n", printed), "a word of the list is played"


def test_personas_of_simulated_conversations_are_read_back(tmp_path):
    config, output = str(ROOT / "task_configs/get_acquainted/llama_frozen_copy_ppo.yml"), tmp_path / "talks.jsonl"
    few = ("datapool.args.n_train=50", "env.args.partner={id: facts}", "tokenizer.vocab_size=400")
    flags = ("--config_path", config, "--n", "3", "--player", "curious", "--output", str(output), "--set", *few)
    assert cli.main(["simulate", *flags]) == 0
    pool = LoggedConversations.prepare("train", output)
    for record, conversation, (sample, _) in zip(lines(output), pool.conversations(), pool, strict=True):
        personas = {key: record["meta_data"][key] for key in ("persona", "partner_persona")}
        assert all(len(facts) == 5 for facts in personas.values()) and personas["persona"] != [*personas.values()][1]
        assert conversation.meta_data.items() >= personas.items() <= sample.meta_data.items()
        assert sample.prompt_or_input_text.startswith(" ".join(personas["persona"]) + "<EOU>")


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
