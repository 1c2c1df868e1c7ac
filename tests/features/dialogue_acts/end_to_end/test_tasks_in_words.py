"""A language model in a task, against a simulated user: training, resume, evaluation, report, simulation, chat."""

import copy
import io
import json
import re

import pytest
from runs import changed, lines, module_run, run_folder, train

from rl4dialog import cli
from rl4dialog.core.errors import ConfigError
from rl4dialog.features.dialogue_acts.task_chat import WordsAgent
from rl4dialog.features.serving.chat import ChatAgent
from rl4dialog.inference.loading import load_policy

CONFIG = {
    "task": {"id": "town_guide", "args": {"n_dialogues": 24}},
    "tokenizer": {"model_name": "builtin/tiny-gpt2", "vocab_size": 400},
    "reward_fn": {"id": "outcome", "args": {"weights": {"success": 1.0, "match": 0.5}, "per_turn": -0.02}},
    "datapool": {"id": "task_dialogues", "args": {"n_val": 2, "n_test": 8}},
    "env": {
        "n_envs": 4,
        "vec_env": "dummy",
        "args": {
            "max_prompt_length": 200,
            "max_episode_length": 16,
            "max_turns": 4,
            "first_speaker": "partner",
            "context_turns": 1,
            "partner": {"id": "agenda_user", "args": {"error_rate": 0.15}},
        },
    },
    "alg": {
        "id": "ppo",
        "args": {"n_steps": 16, "batch_size": 64, "n_epochs": 1, "credit": "turn"},
        "kl_div": {"coeff": 0.02},
        "policy": {
            "id": "causal_lm_actor_critic_policy",
            "args": {
                "model_name": "builtin/tiny-gpt2",
                "generation_kwargs": {"do_sample": True, "top_k": 0, "max_new_tokens": 16},
            },
        },
    },
    "train_evaluation": {
        "n_iters": 2, "eval_batch_size": 8, "eval_every": 2, "save_every": 1,
        "metrics": [{"id": "conversation"}],
    },
}  # fmt: skip


run = module_run(lambda folder: CONFIG)


@pytest.fixture(scope="module")
def loaded(run):
    return load_policy(run)


def test_predictions_have_the_goal_what_was_said_and_why_it_failed(run):
    records = json.loads((run / "epoch_2_test_split_predictions.json").read_text())
    assert len(records) == 8
    for record in records:
        assert record["goal_text"].startswith("You are looking for")
        first, second = record["turns"][:2]
        assert (first["speaker"], second["speaker"]) == ("partner", "agent")
        assert " | " in first["text"] and " | " not in first["spoken"]
        assert bool(record["failures"]) == (record["outcome"]["success"] == 0)
    page = (run / "report.html").read_text()
    assert "<b>Goal:</b> You are looking for" in page
    assert "Why conversations failed" in page
    # The first prompt, unfolded, is what the model read.
    shown = re.sub(r"<summary>first prompt and references</summary>.*?</details>", "", page, flags=re.DOTALL)
    assert not re.search(r'class="bubble">[^<]* \| ', shown), "people read what was said"


def test_metrics_have_the_outcome(run):
    metrics = lines(run / "test_split_metrics.jsonl")[-1]["metrics"]
    assert metrics.keys() > {f"conversation/{name}" for name in ("success", "complete", "inform_f1", "unparsed")}


@pytest.mark.long
def test_resumed_run_equals_the_uninterrupted_one(run, tmp_path):
    config = copy.deepcopy(CONFIG)
    config["train_evaluation"]["n_iters"] = 1
    assert train(tmp_path, config) == 0
    assert train(tmp_path, CONFIG, "--resume", "auto") == 0
    for name in ("model/model.safetensors", "epoch_2_test_split_predictions.json"):
        assert (run_folder(tmp_path) / name).read_bytes() == (run / name).read_bytes(), name


def test_people_read_values_and_are_scored(loaded, monkeypatch):
    seen = []

    def chat(text, history=(), **_):
        seen.append((text, list(history)))
        return "[restaurant_name] is good, the number is [restaurant_phone]."

    monkeypatch.setattr(loaded, "chat", chat)
    agent = WordsAgent(loaded, "words", seed=3)
    assert agent.outcome() is None
    while not (goal := agent.draw_goal()).startswith("You are looking for a restaurant"):
        pass
    assert agent.reply("mumble mumble").understood == []
    reply = agent.reply("I need a restaurant in the north")
    assert reply.text.startswith(next(act.value for act in reply.acts if act.slot == "name"))
    assert "[" not in reply.text
    told, history = seen[-1]
    assert told.startswith("I am looking for a restaurant in the north. | restaurant: area north; ")
    assert history == [], "only the last utterance is shown, as in training"
    outcome = agent.outcome()
    assert outcome is not None and set(outcome.domains) <= {"restaurant", "hotel", "sight", "taxi"}, goal
    assert agent.reply("goodbye").text == "Goodbye."


def test_chat_command_takes_a_goal(run, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("/goal\nI need a cheap hotel\n/acts\n/done\n/quit\n"))
    assert cli.main(["chat", "--run", str(run), "--seed", "0"]) == 0
    said = capsys.readouterr().out
    assert "Goal: You are looking for" in said and "agent: " in said
    assert "Failure: " in said or "Success: " in said


def test_chats_without_a_belief_refuse_the_run(loaded):
    with pytest.raises(ConfigError, match=r"trained for the task town_guide.*to talk to it, use rl4dialog chat"):
        ChatAgent(loaded, "words")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": None}, r"the key 'task' is missing, which datapool\.id: task_dialogues needs \(known: camrest"),
        ({"task": {"id": "town"}}, r"unknown task 'town'.*town_guide"),
        ({"task": {"id": "town_guide", "args": {"sead": 1}}}, r"task\.args\.sead"),
        ({"task": {"id": "camrest", "args": {"path": "nowhere"}}}, r"nowhere"),
        ({"datapool": {"id": "guess_what"}}, r"partner 'agenda_user' needs samples with a goal"),
        ({"env__args__partner": {"id": "scripted", "args": {"replies": ["hm"]}}, "datapool": {"id": "guess_what"},
          "env__args__first_speaker": "sample"},
         r"task cannot be combined with datapool\.id: guess_what"),
        ({"env__args__partner__args": {"error_rate": 1}}, r"env\.args\.partner\.args\.error_rate"),
        ({"reward_fn": {"id": "outcome", "args": {"weights": {"sucess": 1}}}}, r"'sucess'.*agenda_user reports succ"),
    ],
)  # fmt: skip
def test_wrong_combinations_are_errors(change, message, tmp_path, capsys):
    assert train(tmp_path, changed(CONFIG, change, without=None), "--dry_run") == 2
    error = capsys.readouterr().err
    assert re.search(message, error.replace("\n", " ")), error
