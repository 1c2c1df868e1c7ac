"""The partner http against the server of the examples: the games are those without a server, also in a run."""

import importlib.util
import json
import subprocess
import sys
import threading
import urllib.request
from contextlib import contextmanager

import pytest
from pages import EXAMPLES, ROOT, yaml_of
from runs import lines, make_config, run_folder, train, without_times

from rl4dialog.core.config import parse_config
from rl4dialog.core.yaml_loader import load_yaml
from rl4dialog.partners.http import HttpPartner
from rl4dialog.tasks.guess_the_picture.datapool import GuessThePicture
from rl4dialog.tasks.guess_the_picture.partner import GuessThePicturePartner
from rl4dialog.tasks.playing import play
from rl4dialog.training.building.components import check_components

OUTCOMES = ["success", "rounds", "rank"]


def load_example():
    spec = importlib.util.spec_from_file_location("partner_server", EXAMPLES / "partner_server.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


example = load_example()


@contextmanager
def serving(yes_no_penalty="none"):
    server = example.make_server(0, yes_no_penalty)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("kind", ["none", "soft", "hard", "conservative"])
def test_games_through_the_server_are_those_without_it(kind):
    pool = GuessThePicture.prepare("test", n_test=4)
    with serving(kind) as url:
        http = HttpPartner(url, outcomes=OUTCOMES)
        for new_player in pool.players.values():
            for seed, (sample, _) in enumerate(pool):
                direct = play(new_player(), GuessThePicturePartner(kind), sample, 10, seed)
                assert play(new_player(), http, sample, 10, seed) == direct
                assert any(turn.reward for turn in direct.said) or len(direct.said) == 2


def test_server_refuses_other_samples():
    with serving() as url:
        http = HttpPartner(url)
        http.reset({"history": ["hello"]}, 0)
        failed = http.reply(["hello", "what is it ?"]).failed
    assert failed is not None and "HTTP status 400" in failed and "not None in None; use the datapool" in failed


def test_example_runs_as_a_command():
    command = [sys.executable, "-u", str(EXAMPLES / "partner_server.py"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        request = {"meta_data": {"history": [""], "scene": 0, "table": {"n_scenes": 9, "seed": 0}}, "seed": 0}
        body = json.dumps({**request, "history": ["", "hm ?"]}).encode()
        with urllib.request.urlopen(url, data=body) as response:
            assert json.load(response)["text"] == "i do not understand"
        process.terminate()


def talking(tmp_path, partner, max_turns=4, **settings):
    """A run about pictures, with a model that says nonsense."""
    return make_config(
        tmp_path,
        datapool={"id": "guess_the_picture", "args": {"n_train": 16, "n_val": 2, "n_test": 2}},
        reward_fn={"id": "partner"},
        env__args__partner=partner,
        env__args__max_turns=max_turns,
        env__args__max_prompt_length=64,
        alg__args__n_steps=40,
        train_evaluation__n_iters=1,
        train_evaluation__metrics=[{"id": "conversation"}],
        **settings,
    )


def records(tmp_path):
    names = ("rollout_info.jsonl", "test_split_metrics.jsonl", "training_info.jsonl")
    return [without_times(line) for name in names for line in lines(run_folder(tmp_path) / name)]


def test_run_through_the_server_is_the_run_without_it(tmp_path):
    (tmp_path / "direct").mkdir()
    (tmp_path / "http").mkdir()
    direct = {"id": "guess_the_picture", "args": {"yes_no_penalty": "conservative"}}
    same_rules = talking(tmp_path, direct, datapool__args__yes_no_penalty="conservative")
    assert train(tmp_path / "direct", same_rules) == 0
    with serving("conservative") as url:
        http = {"id": "http", "args": {"url": url, "outcomes": OUTCOMES}}
        assert train(tmp_path / "http", talking(tmp_path, http)) == 0
    found = records(tmp_path / "http")
    assert found == records(tmp_path / "direct")
    assert any(line.get("rollout/task_reward", 0) < 0 for line in found)


def test_partner_of_the_page_is_valid():
    shipped = load_yaml(ROOT / "task_configs" / "guess_the_picture" / "gpt2_ppo.yml")
    of_page = yaml_of("docs/your_own/partner.md", "reward_fn:")
    shipped["env"]["args"] |= of_page["env"]["args"]
    check_components(parse_config({**shipped, "reward_fn": of_page["reward_fn"]}, "the page"))
