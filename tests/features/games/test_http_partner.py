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

from rl4dialog.core.config import parse_config
from rl4dialog.core.yaml_loader import load_yaml
from rl4dialog.features.games.guess_the_picture import GuessThePicture, GuessThePicturePartner
from rl4dialog.partners.http import HttpPartner
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


def test_partner_of_the_page_is_valid():
    shipped = load_yaml(ROOT / "task_configs" / "guess_the_picture" / "gpt2_ppo.yml")
    of_page = yaml_of("docs/your_own/partner.md", "reward_fn:")
    shipped["env"]["args"] |= of_page["env"]["args"]
    check_components(parse_config({**shipped, "reward_fn": of_page["reward_fn"]}, "the page"))
