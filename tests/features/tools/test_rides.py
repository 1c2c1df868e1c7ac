"""The shipped example, short: runs train, resume and evaluate, and people chat with its agent and see its calls."""

import itertools
import json
import runpy
from functools import partial

import pytest
import yaml
from echo_model import Echo
from resumed import assert_resumed_is_whole
from runs import changed, lines, train, trained_run
from test_calls import GOOD
from tool_cases import shop_toolbox

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.features.serving.api_server import parse_request
from rl4dialog.features.serving.chat import Chat, ChatState
from rl4dialog.features.serving.replies import PartialReply
from rl4dialog.features.serving.terminal import TerminalChat
from rl4dialog.features.tools.rides import QUESTIONS
from rl4dialog.features.tools.toolbox import Calls
from rl4dialog.partners.scripted import FactsPartner
from rl4dialog.tasks.playing import play

SHORT = {
    "datapool.args": {"n_train": 40, "n_val": 4, "n_test": 6},
    "tokenizer.vocab_size": 300,
    "env.n_envs": 4,
    "warm_start.n_epochs": 1,
    "alg.args.n_steps": 24,
    "alg.args.batch_size": 96,
    "alg.args.n_epochs": 1,
    "train_evaluation.n_iters": 2,
    "train_evaluation.eval_every": 2,
    "train_evaluation.eval_batch_size": 6,
}


def short_config(**overrides):
    with open("task_configs/rides/llama_ppo.yml", encoding="utf-8") as file:
        return changed(yaml.safe_load(file), {**SHORT, **overrides})


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)


def test_careless_clerk_guesses_and_the_careful_one_is_right():
    pool = DataPoolRegistry.get("rides", {"split": "train", "n_train": 100})
    said = [[*sample.references, *sample.meta_data["continuation"]] for sample, _ in pool]
    assert any(text in QUESTIONS.values() for texts in said for text in texts)
    shares = {}
    for name, player in pool.players.items():
        found = shares[name] = []
        for i, (sample, _) in enumerate(pool):
            dialogue = play(player(), FactsPartner(), sample, 4, i)
            call = next((turn.text for turn in dialogue.said if turn.text.startswith("call")), "")
            found.append(all(value in call.replace(";", "").replace("=", " ").split() for value in _wanted(sample)))
    assert all(shares["careful"]) and sum(shares["careless"]) < 30


def _wanted(sample):
    return sample.meta_data["gold_call"]["arguments"].values()


def test_run_trains_and_records_calls(tmp_path):
    run = trained_run(tmp_path, short_config())
    metrics = lines(run / "test_split_metrics.jsonl")[-1]["metrics"]
    names = {"calls", "failed_calls", "tool_faults", "right_slots", "right_call"}
    assert {f"conversation/{name}" for name in names} <= metrics.keys()
    records = [row for path in run.rglob("*test*predictions*") for row in json.loads(path.read_text())]
    turns = [turn for row in records for turn in row["turns"]]
    assert all("call" in turn for turn in turns if turn["text"].startswith("call book_ride"))


def test_tool_answers_in_self_play_too(tmp_path):
    learned = {"datapool.args": {"n_train": 400, "n_val": 4, "n_test": 6}, "warm_start.n_epochs": 3}
    self_play = {"env.args.partner": {"id": "self_play"}, "train_evaluation.n_iters": 1, **learned}
    run = trained_run(tmp_path, short_config(**self_play))
    records = [row for path in run.rglob("*test*predictions*") for row in json.loads(path.read_text())]
    pairs = [pair for row in records for pair in itertools.pairwise(row["turns"])]
    answers = {after["speaker"] for said, after in pairs if "call" in said}
    assert answers == {"tool"} and any(after["speaker"] == "partner" for _, after in pairs)


def test_resumed_run_is_the_whole_run(tmp_path):
    overrides = {"train_evaluation.n_iters": 3, "train_evaluation.eval_every": 1, "train_evaluation.save_every": 1}
    assert_resumed_is_whole(tmp_path, short_config(**overrides))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"env.args.toolbox.id": "cals"}, "unknown toolbox 'cals'; did you mean 'calls'?"),
        ({"env.args.toolbox.args.ends_after": ["book"]}, "there is no function 'book'"),
        ({"env.args.toolbox.args.tools": []}, "env.args.toolbox.args.tools"),
        ({"env.args.toolbox": None}, "reward 'right_call' reads calls of tools, but there is no env.args.toolbox"),
        ({"env.args.partner": {"id": "self_play", "args": {"learns": "both"}}}, "learns: both is not supported with"),
        (
            {"reward_fn": {"id": "outcome", "args": {"weights": {"right_cal": 1}}}},
            "id: facts reports calls, failed_calls",
        ),
    ],
)
def test_wrong_config_is_refused(tmp_path, refused, overrides, message):
    refused(train(tmp_path, short_config(**overrides), "--dry_run"), message)


class Clerk(Echo):
    """Says given lines, whatever is asked."""

    def __init__(self, *said):
        super().__init__()
        self._said, self.toolbox = iter(said), shop_toolbox(ends_after=["number"])

    def stream(self, prompt, seed=None, beta=None, **generation_kwargs):
        self.asked.append((prompt, seed, generation_kwargs))
        text = next(self._said)
        yield PartialReply(text, tuple(range(len(text.split()))), True, True)


def test_tool_answers_in_a_chat(tmp_path):
    model = Clerk(GOOD, GOOD, "done", "bye")
    chat = Chat([model], tmp_path / "feedback.jsonl")
    *_, state = chat.send(ChatState(), "two hats")
    said = [(message["role"], message["content"]) for message in state.messages(0)]
    assert [role for role, _ in said] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert said[2][1].endswith("2 in all") and said[4][1].endswith("4 in all") and said[-1] == ("assistant", "done")
    assert model.asked[1][0].startswith(f"two hats<EOU>{GOOD}<EOU>sold")
    assert chat.undo(state).exchanges == () and chat.undo(state).note == "Undone: two hats"
    *_, later = chat.send(state, "thanks")
    assert later.turns[-2:] == ["thanks", "bye"]


def test_calls_in_a_chat_have_an_end(tmp_path):
    chat = Chat([Clerk(*[GOOD] * 20)], tmp_path / "feedback.jsonl")
    *_, state = chat.send(ChatState(), "hats")
    assert len(state.exchanges) == 9 and state.note.endswith("(The model only calls tools.)")


def test_terminal_shows_tools(tmp_path):
    printed, typed = [], iter(["two hats", "/quit"])
    chat = Chat([Clerk(GOOD, "done")], tmp_path / "feedback.jsonl")
    TerminalChat(chat, lambda prompt: next(typed), printed.append).run()
    text = "".join(printed)
    assert f"{GOOD}\n" in text and "tool: sold" in text.replace("tool : ", "tool: ") and "done\n" in text


def test_server_has_calls_in_openais_form():
    from rl4dialog.features.serving.api_server import _message

    model = Clerk()
    message = _message(GOOD, model)
    (call,) = message["tool_calls"]
    assert json.loads(call["function"]["arguments"])["item"] == "a red hat" and call["function"]["name"] == "buy"
    assert message["tool_answer"].startswith("sold") and _message("hello", model).keys().isdisjoint(["tool_calls"])
    said = [{"role": "user", "content": "two hats"}, {key: message[key] for key in ("role", "content", "tool_calls")}]
    said.append({"role": "tool", "tool_call_id": call["id"], "content": message["tool_answer"]})
    asked = partial(parse_request, model=model, name="m")
    request = asked(json.dumps({"model": "m", "messages": said}).encode())
    assert request.prompt == f"two hats<EOU>{GOOD}<EOU>{message['tool_answer']} <EOU>"


def test_shown_tool_finds_and_books(request):
    path = request.config.rootpath / "docs" / "examples" / "my_tool.py"
    runpy.run_path(str(path))
    box = Calls([{"id": "trains", "args": {"n_seats": 2}}], ends_after=["book_seats"])
    box.reset({}, 0)
    said = ("call find_train place=bern", "call book_seats train=B1; seats=2", "call book_seats train=B1; seats=1")
    answers = [box.answer(each) for each in said]
    assert [answer.text for answer in answers] == ["train B1", "booked 2 in B1", "not enough seats"]
    assert [answer.leaves for answer in answers] == [False, True, True]
