"""The examples about visual dialogues: a log of VisDial's files, and a partner that asks ILQL's server."""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import parse_qs

import pytest
from pages import EXAMPLES

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.errors import DataError, PartnerError
from rl4dialog.core.plugins import load_imports
from rl4dialog.core.types import AGENT
from rl4dialog.data.conversations.pool import LoggedConversations

SCENES = [
    {
        "caption": "a dog",
        "dialog": [{"question": q, "answer": a} for q, a in (("is it big", "yes"), ("color", "brown"))],
    },
    {"caption": "a cat", "dialog": [{"question": "where", "answer": "on a mat"}]},
]
PROGRESS = [[0.2, 0.1, 0.5], [0.5, 0.1]]


def convert(folder, *flags, scenes=None, progress=None):
    (folder / "data.json").write_text(json.dumps(SCENES) if scenes is None else scenes)
    (folder / "progress.json").write_text(json.dumps(PROGRESS if progress is None else progress))
    script = [sys.executable, str(EXAMPLES / "visdial_log.py"), "--data", str(folder / "data.json"), *flags]
    if "no_progress" not in flags:
        script += ["--progress", str(folder / "progress.json")]
    script = [each for each in script if each != "no_progress"] + ["--output", str(folder / "log.jsonl")]
    return subprocess.run(script, capture_output=True, text=True)


def conversations(folder):
    pool = LoggedConversations.prepare("train", folder / "log.jsonl")
    return [
        ([turn.text for turn in each.turns], [turn.reward for turn in each.turns if turn.speaker == AGENT])
        for each in pool.conversations()
    ]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        # 0.1 and then 0.6 of the way of 0.8; of the way of 0.5, only a fifth.
        (["--yes_no", "hard"], [[-3.0, 0.0], [-1.0]]),
        (["--percentile", "0.1"], [[0.0], [0.0]]),
        (["--mode", "10_stop"], [[0.1, 0.5], [0.1]]),
        (["--mode", "agent_stops"], [[0.0], [0.1, 0.0], [0.1, 0.5], [0.0], [0.1]]),
    ],
)
def test_dialogues_are_a_log_in_each_mode(tmp_path, flags, expected):
    done = convert(tmp_path, *flags)
    assert done.returncode == 0 and f"{len(expected)} conversations about 2 pictures" in done.stdout
    found = conversations(tmp_path)
    assert [rewards for _, rewards in found] == expected
    assert found[-1][0] == ["a cat", "where?", "on a mat"]
    if "agent_stops" in flags:
        assert [texts[-1] for texts, _ in found] == ["<stop>", "<stop>", "brown", "<stop>", "on a mat"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"scenes": json.dumps(SCENES)[:60]}, "data.json cannot be read"),
        ({"progress": PROGRESS[:1]}, "--progress has 1 dialogues, and --data 2"),
        ({"progress": [[0.2, 0.1], [0.5, 0.1]]}, "dialogue 0 has 2 rounds, so 3 numbers belong to it"),
    ],
)
def test_files_that_are_cut_or_do_not_fit_are_errors(tmp_path, args, message):
    done = convert(tmp_path, **args)
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "log.jsonl").exists()
    assert "env_stops needs --progress" in convert(tmp_path, "no_progress").stderr


class Server(BaseHTTPRequestHandler):
    """Speaks the protocol of ILQL's server; questions about nothing get no JSON, and those about sleep no answer."""

    asked: list = []  # noqa: RUF012 (of the test)
    awake = threading.Event()

    def do_POST(self):
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = {name: values[0] for name, values in parse_qs(text).items()}
        self.asked.append(form)
        last = json.loads(form["history"])[-1]["text"]
        if "sleep" in last:
            self.awake.wait(20)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"?" if "nothing" in last else json.dumps(["yes , it is", 0.25]).encode())

    def log_message(self, *args):
        pass


@pytest.fixture
def url(monkeypatch):
    monkeypatch.setattr(Server, "asked", [])
    Server.awake.clear()
    monkeypatch.setattr(PartnerRegistry, "_entries", dict(PartnerRegistry._entries))
    monkeypatch.delitem(sys.modules, "visdial_partner", raising=False)
    load_imports(["visdial_partner.py"], EXAMPLES)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    Server.awake.set()
    server.shutdown()


def test_partner_asks_the_server_and_ends_at_the_percentile(url, monkeypatch):
    rows = {"images_train": [[0.0, 0.0], [3.0, 4.0]]}

    class File(dict):
        __enter__, __exit__ = (lambda self: self), (lambda self, *_: None)

    monkeypatch.setitem(sys.modules, "h5py", SimpleNamespace(File=lambda path, mode: File(rows)))
    partner = PartnerRegistry.get("visdial", {"url": url, "features": "f.h5", "yes_no": "soft"})
    partner.reset({"image": 1, "start": 0.2}, seed=0)
    first = partner.reply(["a dog", "is it big?"])
    assert (first.text, first.reward, first.leaves) == ("yes , it is", -3.0, False)
    last = partner.reply(["a dog", "is it big?", "yes , it is", "brown?"])
    assert (last.reward, last.leaves, partner.outcome()) == (-2.0, True, {"progress": 0.5})
    form = Server.asked[-1]
    assert form["caption"] == "a dog" and json.loads(form["img_features"]) == [0.6, 0.8]
    assert [each["speaker"] for each in json.loads(form["history"])] == ["question", "answer", "question"]
    plain = PartnerRegistry.get("visdial", {"url": url, "percentile": None})
    plain.reset({"image": 1, "start": 0.2}, seed=0)
    assert plain.reply(["a dog", "is it big?"]).reward == 0.25
    n_asked, stopped = len(Server.asked), plain.reply(["a dog", "is it big?", "yes , it is", "<stop>"])
    assert (stopped.reward, stopped.leaves, len(Server.asked)) == (0.0, True, n_asked)


def test_tenth_round_is_paid_like_the_end_of_the_way(tmp_path, url):
    scenes = [{"caption": "a dog", "dialog": [{"question": "big", "answer": "no"}] * 10}]
    convert(tmp_path, scenes=json.dumps(scenes), progress=[[0.0] * 11])
    partner = PartnerRegistry.get("visdial", {"url": url, "percentile": 9.0})
    partner.reset({"image": 0, "start": 0.0}, seed=0)
    replies = [partner.reply(["a dog", *["big?", "no"] * n, "big?"]) for n in range(10)]
    assert conversations(tmp_path)[0][1] == [reply.reward for reply in replies] == [-1.0] * 9 + [0.0]


def test_server_without_an_answer_and_samples_of_others_are_errors(url):
    partner = PartnerRegistry.get("visdial", {"url": url, "timeout_s": 0.3})
    partner.reset({"image": 0, "start": 0.0}, seed=0)
    for question in ("nothing?", "sleep?"):
        with pytest.raises(PartnerError, match=r"gave no answer and progress within 0\.3 s"):
            partner.reply(["a dog", question])
    with pytest.raises(DataError, match=r"needs the samples of a log that visdial_log\.py wrote"):
        partner.reset({}, seed=0)
