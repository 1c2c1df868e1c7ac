"""The examples run, with fewer samples and iterations than they are shipped with."""

import io
import re
import runpy
import shlex
from pathlib import Path

import pytest
from pages import EXAMPLES, ROOT, commands_of
from runs import SMALL, lines

from rl4dialog import cli
from rl4dialog.commands.parser import COMMANDS

SMALLER = {"small_talk": {"n_train": 40, "n_val": 6, "n_test": 6}}


@pytest.fixture
def at_root(tmp_path, monkeypatch):
    """A working directory in which the repository's files are where the pages say."""
    for name in ("docs", "task_configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def smaller(datapool, generations=2):
    """Overrides that make a shipped config small."""
    overrides = {f"datapool.args.{key}": value for key, value in SMALLER[datapool].items()}
    overrides |= {"env.n_envs": generations, **SMALL}
    return [text for key, value in overrides.items() for text in ("--set", f"{key}={value}")]


def rollouts(experiment, project="rl4dialog_exps", base="."):
    return lines(Path(base, project, experiment, "rollout_info.jsonl"))


def run_command_of_page(name, *more):
    """The command of the page of examples that trains with a config, with overrides."""
    (command,) = [line for line in commands_of("docs/examples.md") if f"{name}.yml" in line]
    assert cli.main([*shlex.split(command)[1:], *more]) == 0


def test_smallest_config_trains(at_root):
    command = "train --config_path docs/examples/minimal.yml --experiment_name minimal"
    assert cli.main([*command.split(), *smaller("small_talk")]) == 0
    (info,) = rollouts("minimal")
    assert 0 <= info["rollout/reward/regex"] <= 1


def test_sentiment_is_a_probability(at_root):
    run_command_of_page("sentiment", *smaller("small_talk"))
    (info,) = rollouts("happy")
    assert 0 < info["rollout/reward/happy_reply"] < 1


def test_classifier_of_words_tells_happy_replies(at_root):
    happy = runpy.run_path(str(EXAMPLES / "happy_reply.py"))["HappyReply"]()
    texts = ["i love your garden, i am so happy.", "when does the train leave?"]
    glad, plain = happy([""] * 2, texts, [[]] * 2, [True] * 2)
    assert glad > 0.9 and plain < 0.5


def test_adapters_are_trained_on_a_chat_model(at_root):
    pytest.importorskip("peft")
    runpy.run_path(str(EXAMPLES / "chat_model.py"))["make_model"]("runs/chat_model")
    run_command_of_page("lora_chat", *smaller("small_talk"))
    folder = Path("rl4dialog_exps", "lora")
    assert (folder / "model" / "adapter" / "adapter_config.json").is_file()
    predictions = (folder / "epoch_1_test_split_predictions.json").read_text(encoding="utf-8")
    assert "<|im_start|>assistant" in predictions


def test_reward_that_is_hacked_and_what_helps(at_root):
    commands = [shlex.split(line)[1:] for line in commands_of("docs/reward_hacking.md")]
    names = [command[command.index("--experiment_name") + 1] for command in commands]
    for command in commands:
        settings = [text for text in smaller("small_talk")[1::2] if text.partition("=")[0] not in " ".join(command)]
        assert cli.main([*command, *(text for setting in settings for text in ("--set", setting))]) == 0
    parts = [
        {key for key in rollouts(name, "hacking", "runs")[0] if key.startswith("rollout/reward/")} for name in names
    ]
    assert parts[0] == {"rollout/reward/short_reply"}
    assert {"rollout/reward/short_reply", "rollout/reward/known_words"} in parts


def test_short_cut_pays_and_known_words_do_not_pay_it(at_root):
    module = runpy.run_path(str(EXAMPLES / "hacked_reward.py"))
    known = module["KnownWords"]()
    for hacked in ("", "nos.", "sure, weers."):
        assert module["short_reply"]("", hacked, [], {}) == 1.0 and known.score("", hacked, [], {}) == 0.0
    assert known.score("", "are you free on sunday?", [], {}) == 1.0
    assert known.score("", "sure, i will weers.", [], {}) == 0.75
    gentle = runpy.run_path(str(EXAMPLES / "my_reward.py"))["about_six_words"]
    scores = [gentle("", "w " * n, [], {}) for n in (0, 3, 6, 9, 20)]
    assert scores == [0.0, 0.5, 1.0, 0.5, 0.0]


@pytest.mark.long
def test_commands_of_get_started_work_one_after_another(at_root, capsys, monkeypatch):
    commands = [shlex.split(line)[1:] for line in commands_of("docs/get_started.md") if line.startswith("rl4dialog ")]
    assert [command[0] for command in commands] == [
        *("--help", "train", "prepare", "doctor", "train", "generate", "evaluate", "chat", "train", "report", "chat")
    ]
    commands = [command for command in commands if command[0] in COMMANDS]
    monkeypatch.setattr("sys.stdin", io.StringIO("do you like jazz ?\n/quit\n" * 2))
    for command in commands:
        more = smaller("small_talk") if "--config_path" in command else []
        # The doctor finds fault with a model that has hardly been trained, and says so by its exit code.
        assert cli.main([*command, *more]) == 0 or command[0] == "doctor"
    assert len(Path("replies.jsonl").read_text(encoding="utf-8").splitlines()) == 2
    assert "rollout/reward/about_six_words" in rollouts("short", "first", "runs")[0]
    assert Path("comparison.html").is_file() == ("report" in COMMANDS)
    said = capsys.readouterr().out
    assert "intent/accuracy" in said and re.search(r"^  reward -?\d", said, re.MULTILINE)
