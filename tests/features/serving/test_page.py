import re
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from echo_model import Echo
from feature_rows import rows_of_features
from page_client import Tab
from page_process import served_page
from pages import ROOT

from rl4dialog.core.config import load_config, parse_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.feedback import read_feedback
from rl4dialog.core.yaml_loader import load_yaml
from rl4dialog.data.ratings import latest
from rl4dialog.features.serving import commands
from rl4dialog.features.serving.chat import Chat, introduction
from rl4dialog.features.serving.chat_page import ChatPage
from rl4dialog.features.serving.page import (
    Sessions,
    browser_key,
    escaped,
    help_html,
    load_gradio,
    note_html,
    plain,
    status_html,
    without_joiners,
)
from rl4dialog.features.serving.replies import TokenDetails
from rl4dialog.features.serving.server import MAX_BODY_BYTES, Address


def served(models, feedback, allow_hosts=()):
    return served_page(lambda: ChatPage(Chat(models, feedback)), allow_hosts)


def send(tab, text, **settings):
    tab.act("send", text=text, **settings)


class Valued(Echo):
    """A model with a critic."""

    def token_details(self, prompt, token_ids, beta=None):
        ids = token_ids
        return TokenDetails(["a"] * len(ids), [-1.0] * len(ids), [1.25, *[0.5] * (len(ids) - 1)])


def test_values_of_all_replies_are_shown_on_demand(tmp_path):
    with served([Valued()], tmp_path / "feedback.jsonl") as address:
        tab = Tab(address)
        send(tab, "hi")
        assert "value" not in tab.below()
        tab.act("values", values=True)
        send(tab, "hi again", values=True)
        assert [below.count("value 1.25") for below in (tab.below(), tab.below(number=1))] == [1, 1]
        tab.act("values", values=False)
        assert "value" not in tab.below()


@pytest.mark.parametrize(
    ("config", "is_trained", "expected"),
    [
        ("table_booking/llama_ppo", True, "trained with ppo on the datapool table_booking, .* You are a guest who "),
        ("small_talk/gpt2_ppo", True, "trained with ppo on .* small_talk, for the reward intent_accuracy\\."),
        ("small_talk/gpt2_ppo", False, "You talk to builtin/tiny-gpt2\\."),
        (
            {"prompt": "Customer", "references": "Agent"},
            True,
            "on a.csv, .*the column 'Customer'; it replies like 'Agent'\\.",
        ),
    ],
)
def test_page_says_who_talks_to_whom(config, is_trained, expected):
    if isinstance(config, dict):
        given = load_yaml(ROOT / "task_configs/small_talk/gpt2_ppo.yml")
        given["datapool"] = {"id": "csv", "args": {"path": "data/a.csv", "columns": config}}
        checked = parse_config(given, "c")
    else:
        checked = load_config(ROOT / f"task_configs/{config}.yml")
    said = introduction(checked, is_trained)
    assert re.search(expected, said), said


def test_three_short_messages_begin_a_conversation():
    prompts = [["a" * 100], ["Hi."], ["Hi.", "You too?"], [], ["<b>"], ["Is it open?"], ["Where?"], ["Now?"]]
    assert commands._beginnings(prompts) == ["Hi.", "Is it open?", "Where?"]
    assert commands._beginnings(prompts[:3]) == ["Hi.", "a" * 100]


def test_conversation_feedback_and_a_reload(tmp_path):
    feedback = tmp_path / "feedback.jsonl"
    with served([Echo()], feedback) as address:
        tab = Tab(address)
        assert tab.turns() == []
        send(tab, "hi there", persona="I am a cat.", temperature=0.5)
        assert tab.turns() == ["hi there", "HI THERE"] and tab.below() == "" and tab.ratings() == [None]
        tab.rate(False)
        assert "The rating was appended to" in tab.status and tab.ratings() == ["Dislike"]
        tab.rate(False)
        assert "error: this reply is already rated down" in tab.status and tab.ratings() == ["Dislike"]
        tab.rate("")
        assert "The rating was withdrawn in" in tab.status and tab.ratings() == [None]
        tab.edit("Hello <EOU>")
        assert "error: a text cannot contain &lt;EOU&gt;" in tab.status
        assert tab.turns()[1] == "Hello <EOU>" and "not saved" in tab.below()
        tab.edit("Hello!")
        assert tab.turns() == ["hi there", "Hello!"] and "your correction of the reply" in tab.below()
        tab.rate(True)
        assert "error: this reply was corrected" in tab.status and tab.ratings() == [None]
        again = Tab(address, tab.key)
        assert again.key == tab.key and again.turns() == tab.turns() and again.below() == tab.below()
        assert (again.value("persona"), again.value("temperature")) == ("I am a cat.", 0.5)
        send(again, "more")
        assert again.turns() == ["hi there", "Hello!", "more", "MORE"]
        again.edit("HI THERE", number=1)
        again.rate(True, number=1)
        assert again.turns()[1] == "HI THERE" and again.ratings() == ["Like", None]
        again.rate(True, number=7)
        assert "error: there is no reply to judge yet" in again.status
        again.act("undo_0")
        assert again.turns() == ["hi there", "HI THERE"] and "Undone: more" in again.status
        assert again.value("text") == "more"
        again.act("reset_0")
        assert again.turns() == [] and Tab(address, tab.key).turns() == []
        other = Tab(address)
        assert other.key != tab.key and other.turns() == []
    given = [(one.kind, one.withdrawn) for one in read_feedback(feedback)]
    twice = [(kind, withdrawn) for kind in ("rating", "correction") for withdrawn in (False, True)]
    assert given == [*twice, ("rating", False)]


def test_message_is_sent_again_as_it_was_or_edited(tmp_path):
    model = Echo()
    with served([model], tmp_path / "feedback.jsonl") as address:
        tab = Tab(address)
        tab.act("retry_0")
        assert "error: there is no message to send again" in tab.status
        send(tab, "a")
        send(tab, "b")
        tab.act("retry_0", temperature=0.5)
        assert tab.turns() == ["a", "A", "b", "B"]
        assert [each[0] for each in model.asked[1:]] == ["a<EOU>A<EOU>b <EOU>"] * 2
        assert model.asked[-1][2] == {"temperature": 0.5}
        tab.edit(" ", number=0)
        assert "error: a message cannot be empty" in tab.status and tab.turns() == ["a", "A", "b", "B"]
        tab.edit("c", number=0)
        assert tab.turns() == ["c", "C"]


def test_settings_are_those_of_the_run_unless_they_are_set(tmp_path):
    model = Echo()
    model.generation_kwargs = {"do_sample": True, "temperature": 0.7}
    with served([model], tmp_path / "feedback.jsonl") as address:
        tab = Tab(address)
        send(tab, "a", top_p=0.9, max_new_tokens=5)
        assert model.asked[-1][2] == {"top_p": 0.9, "max_new_tokens": 5}
        send(tab, "b", top_p=2)
        assert "error: settings.top_p: " in tab.status and len(model.asked) == 1
        config = httpx.get(f"{address}/config").json()["components"]
        shown = {each["props"].get("elem_id"): each["props"].get("placeholder") for each in config}
        assert (shown["temperature"], shown["top-p"], shown["max-new-tokens"]) == ("0.7", "1.0", "")


def test_empty_chat_says_what_to_know_and_hides_what_has_no_effect(tmp_path):
    greedy, sampling = Echo(), Echo()
    greedy.generation_kwargs, greedy.persona, sampling.beta = {"do_sample": False}, "", 1.0
    for model, is_visible in ((greedy, False), (sampling, True)):
        with served_page(lambda model=model: ChatPage(Chat([model], tmp_path / "f"), ["hi"], "One reply.")) as address:
            components = httpx.get(f"{address}/config").json()["components"]
        shown = {each["props"].get("elem_id"): each["props"] for each in components}
        assert shown["chat-0"]["placeholder"] == "Type a message below, or click on one of these. One reply."
        settings = ("temperature", "top-p", "persona", "beta")
        assert [shown[name]["visible"] for name in settings] == [is_visible] * 4
        known = ["none", "log-prob", *(["Q - V"] if is_visible else [])]
        assert [value for value, _ in shown["colour"]["choices"]] == known


@pytest.mark.parametrize(
    ("build", "n"), [(lambda file: ChatPage(Chat([Echo(), Echo()], file)), 11), *rows_of_features("LABELLED_PAGES")]
)
def test_every_control_has_a_label(tmp_path, build, n):
    with served_page(lambda: build(tmp_path / "feedback.jsonl")) as address:
        controls = ("textbox", "number", "radio", "checkbox", "dropdown", "chatbot")
        components = httpx.get(f"{address}/config").json()["components"]
        found = [each["props"] for each in components if each["type"] in controls]
        assert len(found) == n and all(each["label"] for each in found)


def test_beta_and_advantages_of_a_guided_model(tmp_path):
    model = Echo()
    model.beta, model.persona = 4.0, "I am a dog."
    with served([model], tmp_path / "feedback.jsonl") as address:
        tab = Tab(address)
        assert tab.value("beta") is None and tab.value("persona") == "I am a dog."
        send(tab, "hi there", beta=8.0)
        assert model.asked[0][2] == {"beta": 8.0} and Tab(address, tab.key).value("beta") == 8.0
        tab.act("colour", colour="Q - V")
        assert "Q - V in reward <span>-1.00</span>" in tab.below()
        send(tab, "more", beta=-1.0)
        assert "error: beta must be a number of at least 0, not -1" in tab.status and len(model.asked) == 1


def test_better_of_two_goes_on_in_both(tmp_path):
    feedback, models = tmp_path / "feedback.jsonl", [Echo("a"), Echo("b", "twice")]
    models[0].beta = 4.0
    with served(models, feedback) as address:
        tab = Tab(address)
        send(tab, "hi", colour="log-prob")
        assert (tab.turns(0), tab.turns(1)) == (["hi", "HI"], ["hi", "HI twice"])
        scale = "log-prob in nats <span>-0.50</span>"
        assert scale in tab.below(0) and scale in tab.below(1), "the scale is the same"
        assert tab.options(0) == tab.options(1) == ["better", "same"]
        send(tab, "more")
        assert "error: choose one of the two replies first" in tab.status and tab.turns(0) == ["hi", "HI"]
        tab.choose("better", 1)
        assert tab.turns(0) == tab.turns(1) == ["hi", "HI twice"]
        assert tab.below(0) == '<p class="remark">the reply of 2: b</p>' and tab.below(1) == ""
        assert (tab.options(0), tab.options(1)) == ([], ["back"])
        tab.rate(True, 0)
        assert "error: this column shows the reply of 2: b" in tab.status and tab.ratings(0) == [None]
        tab.rate(True, 1)
        tab.act("colour", colour="Q - V")
        assert "No Q - V: no values guide it" in tab.below(1)
        tab.choose("back", 1)
        assert "The preference was withdrawn" in tab.status and tab.turns(0) == ["hi", "HI"]
        tab.choose("same", 1)
        assert "Nothing was recorded" in tab.status and tab.turns(1) == ["hi", "HI"]
    preference, rating, withdrawal = read_feedback(feedback)
    assert (preference.chosen, rating.rating, rating.replies[0].model) == (1, 1, "b")
    assert withdrawal.withdrawn and latest([preference, rating, withdrawal]) == [rating]


def test_one_of_two_models_can_reply_alone(tmp_path):
    first, second = Echo("a"), Echo("b", "twice")
    with served([first, second], tmp_path / "feedback.jsonl") as address:
        tab = Tab(address)
        tab.act("models", models="1")
        assert Tab(address, tab.key).value("models") == "1"
        send(tab, "hi")
        assert first.asked == [] and tab.turns(1) == ["hi", "HI twice"] and tab.options(1) == []
        tab.rate(True, 1)
        assert tab.ratings(1) == ["Like"]
        tab.act("models", models="both")
        send(tab, "more")
        assert len(first.asked) == 1 and tab.options(0) == ["better", "same"]


def test_tab_that_shows_an_older_state_changes_nothing(tmp_path):
    feedback = tmp_path / "feedback.jsonl"
    with served([Echo()], feedback) as address:
        first = Tab(address)
        send(first, "a")
        second = Tab(address, first.key)
        send(second, "b")
        first.rate(True)
        assert "this page was out of date" in first.status and first.turns() == second.turns()
        assert not feedback.exists()
        first.rate(True)
        assert read_feedback(feedback)[0].turns == ["a", "A", "b"]


def test_what_fails_is_told_on_the_page(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    model = Echo()
    with served([model], tmp_path / "file" / "feedback.jsonl") as address:
        tab = Tab(address)
        send(tab, " ")
        assert "error: a message cannot be empty" in tab.status
        send(tab, "a b")
        tab.rate(True)
        assert "feedback.jsonl cannot be written" in tab.status and tab.ratings() == [None]
        tab.act("rate_0")  # a click that says nothing
        assert "error: it has no rating" in tab.status
        model.fails_with = RuntimeError("no memory <left>")
        send(tab, "c d")
        assert "error: no memory &lt;left&gt;" in tab.status and "a reply or a judgement failed" in caplog.text
        assert tab.turns() == ["a b", "A B", "c d", "C"], "what was said stays"
        model.fails_with = None
        send(tab, "e")
        assert tab.turns()[-1] == "E" and tab.status == ""


class Slow(Echo):
    def __init__(self, pause_s):
        super().__init__("slow")
        self._pause_s, self._lock, self.was_raced = pause_s, threading.Lock(), False

    def stream(self, prompt, seed=None, beta=None, **generation_kwargs):
        if not self._lock.acquire(blocking=False):
            self.was_raced = True
            return
        try:
            for part in super().stream(prompt, seed, beta, **generation_kwargs):
                time.sleep(self._pause_s)
                yield part
        finally:
            self._lock.release()


def test_two_tabs_do_not_use_a_model_at_once(tmp_path):
    model = Slow(0.02)
    with served([model], tmp_path / "feedback.jsonl") as address:
        tabs = [Tab(address), Tab(address)]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda tab: send(tab, "a b c d e f"), tabs))
    assert [tab.turns()[-1] for tab in tabs] == ["A B C D E F"] * 2 and not model.was_raced


def test_reply_can_be_stopped(tmp_path):
    with served([Slow(0.2)], tmp_path / "feedback.jsonl") as address:
        tab = Tab(address)
        reply, stop = tab.acting("send", text=" ".join("abcdefghijklmnopqrstuvwxyz")), Tab(address, tab.key)
        for _ in range(3):
            next(reply)
        assert Tab(address, tab.key).turns()[1].startswith("A")
        stop.act("stop")
        list(reply)
        (_, said) = Tab(address, tab.key).turns()
    assert said == tab.turns()[1] and said.startswith("A") and "Z" not in said


def test_page_asks_nothing_of_other_hosts(tmp_path):
    with served([Echo()], tmp_path / "feedback.jsonl") as address:
        answer = httpx.get(address)
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self';") and "http" not in policy
        assert "fonts.googleapis" not in httpx.get(f"{address}/theme.css").text


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    with served([Echo()], folder / "feedback.jsonl", ["chat.example.org", "localhost:8080"]) as address:
        yield address


def test_page_answers_for_its_own_hosts_only(guarded):
    port = guarded.rpartition(":")[2]
    own = "127.0.0.1:PORT LOCALHOST:PORT [::1]:PORT chat.example.org chat.example.org:444 localhost:8080"
    for host in own.replace("PORT", port).split():
        assert httpx.get(guarded, headers={"host": host}).status_code == 200, host
    others = "evil.example:PORT evil.example 127.0.0.1 127.0.0.1:1 127.0.0.1.evil:PORT localhost.:PORT a@127.0.0.1:PORT"
    for host in ("", *others.replace("PORT", port).split()):
        for method in ("GET", "OPTIONS", "POST"):
            answer = httpx.request(method, f"{guarded}/config", headers={"host": host})
            assert answer.status_code == 403 and "gradio" not in answer.text, (method, host)
    with socket.create_connection(("127.0.0.1", int(port))) as connection:
        connection.sendall(f"GET /config HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: evil\r\n\r\n".encode())
        assert connection.recv(100).split()[1] in (b"400", b"403")


def test_pages_of_other_origins_can_ask_for_nothing(guarded):
    join, (_, _, port) = f"{guarded}/gradio_api/queue/join", guarded.rpartition(":")
    own = httpx.post(join, headers={"origin": guarded}, json={})
    assert own.status_code == 422, "it is read, and found to be no event"
    for origin in ("http://evil.example", "null", f"http://localhost:{port}", "http://127.0.0.1:1"):
        for method, url in (("POST", join), ("GET", f"{guarded}/config"), ("OPTIONS", join)):
            answer = httpx.request(method, url, headers={"origin": origin})
            assert answer.status_code == 403 and "access-control-allow-origin" not in answer.headers, (method, origin)
    assert httpx.post(join, headers={"sec-fetch-site": "cross-site"}, json={}).status_code == 403


def test_page_takes_no_files(guarded):
    from gradio.utils import get_upload_folder

    before = set(Path(get_upload_folder()).rglob("*"))
    for path in ("/gradio_api/upload", "/gradio_api/upload/", "/upload", "/gradio_api/upload?upload_id=1"):
        answer = httpx.post(guarded + path, files={"files": ("x.bin", b"0" * 1000)}, headers={"origin": guarded})
        assert answer.status_code == 403 and "only the page's own requests" in answer.text
    assert set(Path(get_upload_folder()).rglob("*")) == before


def test_large_requests_are_refused(guarded):
    join, body = f"{guarded}/gradio_api/queue/join", b"0" * (MAX_BODY_BYTES + 1)

    def chunks():
        for start in range(0, len(body), 2**16):
            yield body[start : start + 2**16]

    assert httpx.post(join, content=body[1:]).status_code == 422
    for content in (body, chunks()):
        answer = httpx.post(join, content=content)
        assert answer.status_code == 413 and f"{MAX_BODY_BYTES} bytes" in answer.text


def test_names_that_are_allowed_must_be_names():
    for name in ("http://chat.example.org", "*.example.org", "", "a/b", "a:b"):
        with pytest.raises(ConfigError, match=rf"--allow_host must be a name .*, not {re.escape(repr(name))}"):
            Address("127.0.0.1", 7860, [name])
    everywhere = Address("0.0.0.0", 7860)
    assert everywhere.allow("192.0.2.7:7860") and everywhere.allow("[2001:db8::1]:7860")
    assert not everywhere.allow("evil.example:7860") and not everywhere.allow("192.0.2.7:80")
    assert Address("::1", 80).allow("[::1]") and not Address("192.0.2.7", 80).allow("192.0.2.8")


def test_gradio_that_is_missing_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ConfigError, match=r"the page needs the package gradio: pip install 'rl4dialog\[ui\]'"):
        load_gradio()


def test_address_that_cannot_be_used_is_told():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"--port {port}: cannot listen there \(Address already in use\)"):
            Address("127.0.0.1", port).check()
    Address("127.0.0.1", port).check()
    with pytest.raises(ConfigError, match="--port must be a number from 1 to 65535, not 70000"):
        Address("127.0.0.1", 70000).check()
    with pytest.raises(ConfigError, match=r"--host 192\.0\.2\.1 .*cannot listen there"):
        Address("192.0.2.1", port).check()


@pytest.mark.parametrize(
    ("shown", "html"),
    [
        (escaped("a\x00b'"), "a\ufffdb&#x27;"),
        (note_html("runs/<x> ${y}"), '<p class="remark">runs/&lt;x&gt; &#36;&#123;y&#125;</p>'),
        (note_html("<x>", is_strong=True), '<p class="remark"><strong>&lt;x&gt;</strong></p>'),
        (note_html(""), ""),
        (status_html("a < b", "done"), '<p class="problem" role="alert">error: a &lt; b</p>'),
        (status_html("", "done"), '<p class="note" role="status">done</p>'),
        (status_html("", ""), ""),
        (help_html("1 < 2"), '<h1>rl4dialog</h1><p class="hint">1 &lt; 2</p>'),
        (help_html("", "a & b"), '<h1>rl4dialog</h1><p class="hint"></p><p class="about">a &amp; b</p>'),
    ],
)
def test_texts_are_escaped(shown, html):
    assert shown == html
    assert "</summary>a &amp; b</details>" in help_html("", goal="a & b")


def test_chatbot_can_read_no_markup_in_a_text():
    text = "<b>1 < 2</b> &lt; <!-- x --> a & b"
    shown = plain(text)
    assert not re.search(r"<[a-zA-Z/!]|&\w", shown) and without_joiners(shown) == text
    assert plain("a\x00") == "a\ufffd"


@pytest.mark.parametrize("key", [None, "", "abc", "../../etc/passwd", 3, {"a": 1}, "0" * 31 + "g"])
def test_what_is_no_key_gets_a_new_one(key):
    known = browser_key(key)
    assert len(known) == 32 and known not in (key, browser_key(key)) and browser_key(known) == known


def test_chat_is_found_by_its_key_and_forgotten_if_it_was_not_used_for_longest():
    sessions = Sessions(str, capacity=2)
    for key in ("a", "b"):
        assert sessions.open(key) == "" and sessions.keep(key, f"of {key}") == f"of {key}"
    assert sessions.open("a") == "of a" and sessions.open("c") == ""
    assert sessions.open("a") == "of a" and sessions.open("b") == ""
