"""Conversations of a complete run with its partner: the file of ``simulate``, and the scripted players beside it."""

import json

import pytest
from guessing import guess_what
from runs import lines, module_run, write_config
from transformers import AutoTokenizer

from rl4dialog import cli
from rl4dialog.core.types import AGENT
from rl4dialog.data.conversational import Conversational
from rl4dialog.data.conversations.pool import LoggedConversations
from rl4dialog.runs.report.pages import write_report
from rl4dialog.text.tokenizer import tokenizer_hash

N = 9  # more than the samples of the split
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
    page = write_report(run).read_text(encoding="utf-8", errors="replace")
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
