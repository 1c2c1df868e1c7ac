"""Talking to the model of a run."""

import io
import json
import shutil
from pathlib import Path

import pytest
from partners import Failing
from runs import keep_registries, make_config, write_config

import rl4dialog
from rl4dialog import cli
from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.untrusted import visible
from rl4dialog.features.serving import commands
from rl4dialog.features.serving.chat import ChatAgent


@pytest.fixture
def run(plain_run):
    return plain_run


def chat(lines, monkeypatch, *flags):
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    return cli.main(["chat", *flags])


def test_script_of_lines_is_a_conversation(run, tmp_path, monkeypatch, capsys):
    saved = tmp_path / "chat.jsonl"
    lines = f"do you like tea ?\n/undoo\ntell me more .\n/save {saved}\n"
    assert chat(lines, monkeypatch, "--run", str(run), "--seed", "0") == 0
    printed = capsys.readouterr().out
    assert "you: do you like tea ?\nmodel: " in printed
    assert printed.startswith("Chat with "), "prompts of its data have several utterances"
    assert "error: unknown command '/undoo'; did you mean '/undo'?" in printed
    messages = json.loads(saved.read_text())["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2
    assert f"model: {visible(messages[1]['content'])}\n" in printed
    assert chat(lines, monkeypatch, "--run", str(run), "--seed", "0") == 0
    assert capsys.readouterr().out == printed
    monkeypatch.setattr(commands, "_prompts", lambda run: [["do you like tea ?"]])
    assert chat(lines, monkeypatch, "--run", str(run), "--seed", "0") == 0
    said = capsys.readouterr().out
    assert said.startswith("The model was trained for one reply, not for a second turn: /reset begins anew")


def test_any_model_is_talked_to_with_a_config(run, tmp_path, monkeypatch, capsys):
    config = write_config(tmp_path, make_config(tmp_path))
    flags = ("--model", str(run / "model"), "--config_path", str(config), "--show_reward")
    assert chat("hi\nyes\n", monkeypatch, *flags) == 0
    printed = capsys.readouterr().out
    assert f"Chat with {run / 'model'}." in printed
    assert printed.count("  cannot compute rouge in this chat, which has no references and no partner: ") == 1


def test_reward_of_a_partner_is_not_that_of_a_chat(run, tmp_path, monkeypatch, capsys):
    keep_registries(monkeypatch)
    PartnerRegistry.add("reporting", Failing)
    rewards = [{"id": "outcome"}, {"id": "length_penalty", "args": {"max_length": 2}}]
    reward = {"id": "composite", "args": {"rewards": rewards}}
    config = make_config(tmp_path, reward_fn=reward, env__args__partner={"id": "reporting"})
    flags = ("--model", str(run / "model"), "--config_path", str(write_config(tmp_path, config)), "--show_reward")
    assert chat("hi\nyes\n", monkeypatch, *flags) == 0
    printed = capsys.readouterr().out
    assert printed.count("  available reward parts: length_penalty ") == 2
    assert (
        "  cannot compute outcome in this chat, which has no references and no partner: reward 'outcome' "
        "failed on sample 0: it comes from the partner of a conversation, and this reply has none\n"
    ) in printed


def test_streamed_reply_is_what_chat_says(run):
    loaded = rl4dialog.load_policy(run)
    agent = ChatAgent(loaded, "it")
    for seed in range(3):
        *_, last = agent.stream("do you like tea ? <EOU>", seed)
        assert last.text == loaded.chat("do you like tea ?", seed=seed)


def test_details_of_tokens_are_those_of_policy_critic_and_reference(run):
    loaded = rl4dialog.load_policy(run)
    agent, prompt = ChatAgent(loaded, "it"), "do you like tea ? <EOU>"
    *_, said = agent.stream(prompt, 0)
    details = agent.token_details(prompt, said.token_ids)
    assert details.missing == {"advantages": "the policy of alg.id: ppo is not guided by values of tokens"}
    assert details.values is not None and details.kl is not None
    n = len(said.token_ids)
    assert n == len(details.texts) == len(details.log_probs) == len(details.values) == len(details.kl)
    assert all(log_prob <= 0 for log_prob in details.log_probs)
    assert 0 < max(map(abs, details.kl)) < 1  # two iterations have changed the policy, and not much


def test_details_that_cannot_be_had_say_why(run, tmp_path):
    copied = Path(shutil.copytree(run, tmp_path / "elsewhere"))
    shutil.rmtree(copied / "checkpoints")
    provenance = json.loads((copied / "provenance.json").read_text())
    (copied / "provenance.json").write_text(json.dumps({**provenance, "model_hash": "another"}))
    details = ChatAgent(rl4dialog.load_policy(copied), "it").token_details("a <EOU>", [3, 4])
    assert len(details.log_probs) == 2
    assert details.values is None and "no critic" in details.missing["values"]
    assert details.kl is None and "initial model of the run is not available" in details.missing["kl"]


def test_data_without_dialogues_cannot_be_talked_about(run, tmp_path):
    copied = Path(shutil.copytree(run, tmp_path / "elsewhere"))
    config = json.loads((copied / "config.json").read_text())
    config["datapool"] = {"id": "dummy_pool", "args": {}}
    (copied / "config.json").write_text(json.dumps(config))
    loaded = rl4dialog.load_policy(copied)
    for talk in (lambda: loaded.chat("hi"), lambda: ChatAgent(loaded, "it")):
        with pytest.raises(ConfigError, match=r"datapool 'dummy_pool'.* contains no dialogues"):
            talk()
