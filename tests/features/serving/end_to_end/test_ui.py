"""``rl4dialog ui`` in a browser: two models talked to and judged, and each kind of page on different screens."""

import argparse
import json
import shutil
import signal
import socket
import sys
import time

import pytest
from echo_model import Echo
from feature_rows import rows_of_features
from page_process import page_of, served_page, start_page
from runs import make_config, write_config

from rl4dialog import cli
from rl4dialog.commands.parser import make_parser
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.feedback import JudgedReply, QueuedReplies, read_feedback, write_queue
from rl4dialog.core.untrusted import visible
from rl4dialog.data.studies import Study
from rl4dialog.features.serving.chat import Chat
from rl4dialog.features.serving.chat_page import ChatPage
from rl4dialog.features.serving.commands import compared_name, load_compared
from rl4dialog.features.serving.judging import JudgingPage, QueueJudging, StudyJudging, StudyPage
from rl4dialog.features.serving.page import without_joiners


@pytest.fixture
def run(plain_run):
    return plain_run


def parsed(*flags):
    return make_parser().parse_args(["ui", *flags])


# -- in a browser -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Chromium without a window, which asks nothing of the network by itself."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium, a part of rl4dialog[dev]")
    program, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("needs chromium and chromedriver, Debian's packages chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (
        *("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-dev-shm-usage"),
        *("disable-background-networking", "disable-component-update", "disable-sync"),
        f"user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield opened
    finally:
        opened.quit()


# What a person cannot use or read on a screen. Conversations and the sidebar can be scrolled, the page cannot.
_FAULTS = """
const [part] = arguments, found = [], pixel = document.createElement("canvas").getContext("2d");
const shown = e => e.checkVisibility({visibilityProperty: true, opacityProperty: true});
const inside = (e, hit) => hit && (e.contains(hit) || e.closest("label")?.contains(hit));
for (const e of document.querySelectorAll(`${part} :is(button, input, textarea, summary)`)) {
    if (!shown(e)) continue;
    const scrolled = e.closest(".bubble-wrap, .sidebar-content");
    if (scrolled) scrolled.scrollTop += e.getBoundingClientRect().top - scrolled.getBoundingClientRect().top - 60;
    const {x, y, width, height} = e.getBoundingClientRect();
    const hit = document.elementFromPoint(x + width / 2, y + height / 2);
    if (x < 0 || x + width > innerWidth || !inside(e, hit)) found.push(`${e.outerHTML} is behind ${hit?.outerHTML}`);
}
const painted = colours => {
    for (const colour of colours) pixel.fillStyle = colour, pixel.fillRect(0, 0, 1, 1);
    return [...pixel.getImageData(0, 0, 1, 1).data.slice(0, 3)].map(value => value / 255)
        .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
        .reduce((sum, value, i) => sum + value * [0.2126, 0.7152, 0.0722][i], 0.05);
};
for (const e of document.querySelectorAll(`${part} *`)) {
    const hasText = [...e.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!hasText || !shown(e) || e.closest(":disabled")) continue;
    const behind = [];
    for (let each = e; each; each = each.parentElement) behind.unshift(getComputedStyle(each).backgroundColor);
    const [dark, light] = [painted(behind), painted([getComputedStyle(e).color])].sort((a, b) => a - b);
    if (light / dark < 4.5) found.push(`${e.outerHTML} has a contrast of ${light / dark}`);
}
const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
for (const e of document.querySelectorAll("body, .bubble-wrap")) {
    if (e.scrollWidth > e.clientWidth) found.push(`${e.tagName} scrolls sideways`);
    if (isDark !== (getComputedStyle(e).colorScheme === "dark")) found.push(`${e.tagName} has other scroll bars`);
}
if (document.documentElement.scrollHeight !== innerHeight) found.push("the page is not as tall as the window");
return found.map(text => text.slice(0, 300));
"""


class Tab:
    """The page as a person sees it, on a screen of a size and a colour scheme."""

    def __init__(self, opened, address, width=1280, height=860, scheme="light"):
        self.opened = opened
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        opened.get_log("performance")  # of other pages
        opened.get(address)

    def faults(self, part="body"):
        return self.opened.execute_script(_FAULTS, part)

    def wait_until_usable(self, part="body"):
        self.wait_for(lambda: not self.faults(part), f"{part} without faults")

    def toggle_settings(self):
        """Open or close the sidebar, and wait until it has slid to its place."""
        is_open = "open" in (sidebar := self.one(".sidebar")).get_attribute("class")
        edge = -sidebar.rect["width"] if is_open else 0
        self.one("[aria-label='Toggle Sidebar']").click()
        self.wait_for(lambda: sidebar.rect["x"] == edge, f"a sidebar at {edge}")

    def one(self, css):
        return self.opened.find_element("css selector", css)

    def texts(self, css):
        return [element.text for element in self.opened.find_elements("css selector", css)]

    def turns(self, index):
        return [without_joiners(text) for text in self.texts(f"#chat-{index} .message-content")]

    def wait_until_ready(self):
        self.wait_for(lambda: self.one("#text textarea").is_enabled(), "a box to write to")

    def reload(self, n_turns):
        self.opened.refresh()
        self.wait_until_ready()
        self.wait_for(lambda: [len(self.turns(i)) for i in (0, 1)] == [n_turns] * 2, f"{n_turns} turns")

    def write(self, css, text):
        self.one(css).send_keys(text)

    def click(self, css, says):
        """Click the last such thing, and wait for what the page says then."""
        self.wait_for(lambda: self.opened.find_elements("css selector", css)[-1].click() is None, css)
        self.wait_for(lambda: says in self.one("#status").text, says)

    def labels(self, index):
        """The labels of the buttons of the last reply in a column."""
        buttons = self.opened.find_elements("css selector", f"#chat-{index} .message-buttons-left")[-1]
        return [each.get_attribute("aria-label") for each in buttons.find_elements("css selector", "button")]

    def edit(self, index, text, says):
        """Edit the last reply in a column."""
        self.opened.find_elements("css selector", f"#chat-{index} [aria-label=Edit]")[-1].click()
        box = self.one(f"#chat-{index} textarea[aria-label='New text']")
        box.clear()
        box.send_keys(text)
        self.click(f"#chat-{index} [aria-label=Submit]", says)

    def send(self, text, index=0):
        """Say something, and wait for the whole reply."""
        n_turns = len(self.turns(index))
        self.write("#text textarea", f"{text}\n")
        self.wait_for(lambda: len(self.turns(index)) == n_turns + 2, "a reply")
        self.wait_for(lambda: self.texts("#text .submit-button"), "its end")

    def wait_for(self, is_so, what):
        from selenium.common.exceptions import WebDriverException

        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                if is_so():
                    return
            except WebDriverException:  # the page is just being changed
                pass
            time.sleep(0.05)
        raise AssertionError(f"no {what!r} on the page:\n{self.one('body').text}\nfaults: {self.faults()}")

    def asked_hosts(self):
        """Whom the browser has asked for something over the network."""
        entries = (json.loads(entry["message"])["message"] for entry in self.opened.get_log("performance"))
        urls = [one["params"]["request"]["url"] for one in entries if one["method"] == "Network.requestWillBeSent"]
        return {url.split("/")[2] for url in urls if url.startswith(("http", "ws"))}


@pytest.mark.long
def test_two_models_are_talked_to_and_judged_in_a_browser(opened, plain_run, tmp_path):
    run = shutil.copytree(plain_run, tmp_path / "run")
    provenance = json.loads((run / "provenance.json").read_text())
    (run / "provenance.json").write_text(json.dumps({**provenance, "persona": None}))  # as if prompts had several
    feedback = tmp_path / "feedback.jsonl"
    flags = ("--run", str(run), "--compare", str(run / "model"), "--seed", "0", "--feedback", str(feedback))
    with page_of(*flags) as address:
        tab = Tab(opened, address)
        tab.wait_until_ready()
        assert tab.texts(".placeholder") == ["Type a message below, or click on one of these."] * 2
        tab.toggle_settings()
        tab.write("#persona input, #persona textarea", "i like tea .")
        tab.send("do you like <b>tea</b> ?", 1)
        assert [tab.turns(i)[0] for i in (0, 1)] == ["do you like <b>tea</b> ?"] * 2
        (_, left), (_, right) = tab.turns(0), tab.turns(1)
        tab.one("#text textarea").send_keys("more\n")
        tab.wait_for(lambda: "choose one of the two replies first" in tab.one("#status").text, "that a choice is due")
        tab.one("#text textarea").clear()
        # A vote: the conversation goes on with the better one in both.
        tab.click("#chat-1 .option:first-child", "The preference was appended")
        assert tab.turns(0) == tab.turns(1) and tab.turns(0)[1] == right

        # Nothing is lost by a reload, and nothing is given twice.
        tab.reload(n_turns=2)
        assert tab.turns(0)[1] == right and tab.texts(".option") == ["Take back the choice"]
        assert tab.one("#persona input, #persona textarea").get_attribute("value") == "i like tea ."
        assert tab.texts("#chat-0 .remark") == [f"the reply of 2: {run / 'model'}"] and not tab.texts("#chat-1 .remark")
        # A thumb is highlighted if and only if the rating is on disk.
        tab.click("#chat-0 [aria-label=Dislike]", "give feedback in the column of that reply")
        tab.wait_for(lambda: "Disliked" not in tab.labels(0), "a thumb that is not highlighted")
        tab.click("#chat-1 [aria-label=Dislike]", "The rating was appended")
        assert "Disliked" in tab.labels(1)
        tab.reload(n_turns=2)
        assert "Disliked" in tab.labels(1)
        tab.click("#chat-1 [aria-label=Disliked]", "The rating was withdrawn")
        assert "Disliked" not in tab.labels(1)
        tab.click("#chat-1 [aria-label=Like]", "The rating was appended")
        assert "Liked" in tab.labels(1)

        tab.edit(1, "yes , i do .", "The correction was appended")
        assert tab.turns(0) == tab.turns(1) == ["do you like <b>tea</b> ?", "yes , i do ."]
        assert all("your correction of the reply of 2" in text for text in tab.texts(".remark"))
        assert not any(each.is_displayed() for each in opened.find_elements("css selector", "button[aria-label*=ike]"))
        tab.send("tell me more .", 1)
        tab.reload(n_turns=4)

        # Tokens are coloured by what there is of them; a model without a run has no critic.
        tab.toggle_settings()
        labels = {element.text: element for element in opened.find_elements("css selector", "#colour label")}
        for label, seen in (("value", "#chat-0 .legend"), ("KL", "#chat-0 .legend"), ("value", "#chat-1 .missing")):
            labels[label].click()
            tab.wait_for(lambda seen=seen, label=label: label in tab.one(seen).text, label)
        assert "no critic" in tab.one("#chat-1 .missing").text
        # A new conversation begins with a click on an utterance of the run's evaluation.
        tab.one("#chat-0 [title=Clear]").click()
        tab.wait_for(lambda: tab.texts("#chat-0 .example"), "examples")
        said = tab.texts("#chat-0 .example")[0]
        tab.one("#chat-0 .example").click()
        tab.wait_for(lambda: tab.turns(0)[:1] == tab.turns(1)[:1] == [said], "the example in both columns")
        assert tab.asked_hosts() == {address.removeprefix("http://")}

    preference, down, withdrawal, up, correction = read_feedback(feedback)
    assert (preference.kind, preference.chosen, preference.persona) == ("preference", 1, "i like tea .")
    shown = [left, right, right, right]
    judged = [reply for one in (preference, up, correction) for reply in one.replies]
    assert [visible(reply.text).split() for reply in judged] == [text.split() for text in shown]
    assert [reply.model for reply in preference.replies] == [str(run), str(run / "model")]
    assert (down.rating, withdrawal.rating, withdrawal.withdrawn, up.rating) == (-1, -1, True, 1)
    assert correction.correction == "yes , i do ."
    assert all(one.turns == ["do you like <b>tea</b> ?"] for one in (preference, up, correction))


@pytest.mark.long
def test_pairs_are_judged_by_keys_and_a_correction_outlives_the_server(opened, tmp_path):
    queue, feedback = tmp_path / "queue.jsonl", tmp_path / "feedback.jsonl"
    replies = [JudgedReply("m", "a"), JudgedReply("n", "b")]
    write_queue(queue, [QueuedReplies(str(i), [f"hello {i}"], replies) for i in range(3)])
    flags = ("--queue", str(queue), "--feedback", str(feedback))
    process, address = start_page(tmp_path, *flags)
    tab = Tab(opened, address)

    def press(*keys):
        opened.switch_to.active_element.send_keys(*keys)

    for number, keys in enumerate(("2", "\t\t\t\t\t\t\n")):  # the number of a reply; the button beneath it
        tab.wait_for(lambda number=number: tab.turns(1) == [f"hello {number}", "b"], f"pair {number}")
        assert [each.accessible_name for each in opened.find_elements("css selector", "[role=log], .option")] == [
            "Reply 1", "Reply 1: This reply is better", "Reply 2", "Reply 2: This reply is better"
        ]  # fmt: skip
        tab.wait_for(lambda: opened.switch_to.active_element.get_attribute("id") == "conversations", "the focus")
        press(keys)
    tab.wait_for(lambda: tab.turns(0) == ["hello 2", "a"], "the last pair")
    process.kill()
    tab.opened.find_elements("css selector", "#chat-0 [aria-label=Edit]")[-1].click()
    tab.write("textarea.edit-textarea", "nd {c}")
    tab.one("#chat-0 [aria-label=Submit]").click()
    tab.wait_for(lambda: "Connection to the server was lost" in tab.one("body").text, "that the server is gone")
    process, _ = start_page(tmp_path, *flags, port=address.rpartition(":")[2])
    tab.wait_for(lambda: "Not saved, since the server was gone: and {c}" in tab.one("#unsaved").text, "the text")
    tab.wait_for(lambda: tab.turns(0) == ["hello 2", "a"], "the pair again")
    tab.edit(0, "and {c}", "The correction was appended")
    assert not tab.one("#unsaved").text
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0 and "Traceback" not in process.errors
    assert [each.chosen for each in read_feedback(feedback)] == [1, 0, None]


TEXT = f"<b>do</b> you like {'tea' * 40} ?"
PAIR = QueuedReplies("0", [TEXT], [JudgedReply("m", "yes ."), JudgedReply("n", TEXT * 4)])
REPLY = QueuedReplies("0", [TEXT, "yes .", "why ?"], [JudgedReply("m", TEXT)])
STUDY = Study("Tea", TEXT, "How good is the reply?", 1, "I take part.", {1: "bad", 2: "", 3: "good"})


def chat(tab):
    tab.wait_until_ready()
    tab.wait_until_usable()
    tab.send(TEXT, 1)
    tab.wait_until_usable()
    tab.click("#chat-1 .option:first-child", "The preference was appended")
    tab.toggle_settings()
    tab.wait_until_usable(".sidebar")
    tab.write("#persona input, #persona textarea", "i like tea .")
    tab.toggle_settings()
    tab.send("more", 1)
    assert tab.turns(1)[-1] == "MORE twice"


def judge_a_pair(tab):
    tab.wait_for(lambda: len(tab.texts(".option")) == 2, "a pair")
    tab.wait_until_usable()
    tab.click("#chat-1 .option", "The preference was appended")


def take_part_in_a_study(tab):
    tab.wait_for(lambda: tab.texts("#begin"), "the start")
    tab.wait_until_usable()
    tab.write("#rater input, #rater textarea", "ann\n")
    tab.wait_for(lambda: len(tab.texts(".option")) == 3, "a reply")
    tab.wait_until_usable()
    tab.click(".option", "Your answer was saved: 3: good.")


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)], ids=["wide", "narrow"])
@pytest.mark.parametrize(
    ("build", "use"),
    [
        (lambda file: ChatPage(Chat([Echo("a"), Echo("b", "twice")], file), ["hi"]), chat),
        (lambda file: JudgingPage(QueueJudging([PAIR], file)), judge_a_pair),
        (lambda file: StudyPage(StudyJudging(STUDY, [REPLY], file)), take_part_in_a_study),
        *rows_of_features("USED_PAGES"),
    ],
    ids=lambda value: getattr(value, "__name__", "page"),
)
def test_each_page_can_be_read_and_used_on_each_screen(opened, tmp_path, build, use, width, height, scheme):
    with served_page(lambda: build(tmp_path / "feedback.jsonl")) as address:
        tab = Tab(opened, address, width, height, scheme)
        use(tab)
        tab.wait_until_usable()


# -- without one ------------------------------------------------------------------------------------------------------


def test_second_model_is_a_run_a_checkpoint_of_it_or_any_model(run, tmp_path):
    first = ("--run", str(run), "--compare")
    of_run = parsed(*first, str(run), "--compare_checkpoint", "1")
    loaded = load_compared(of_run)
    assert loaded.run == run and compared_name(of_run) == f"{run} (checkpoint 1)"
    at_end = load_compared(parsed(*first, str(run)))
    of_model = load_compared(parsed(*first, str(run / "model")))
    assert of_model.run is None and of_model.config.datapool.id == "daily_dialog"
    prompt, reply = ["do you like tea ? <EOU>"], ["yes ."]
    assert of_model.log_probs(prompt, reply) == at_end.log_probs(prompt, reply) != loaded.log_probs(prompt, reply)
    config = write_config(tmp_path, make_config(tmp_path))
    flags = ("--model", str(run / "model"), "--config_path", str(config), "--compare", str(run / "model"))
    assert load_compared(parsed(*flags)).log_probs(prompt, reply) == at_end.log_probs(prompt, reply)


def test_checkpoint_of_what_is_no_run_is_told(run):
    with pytest.raises(ConfigError, match=r"works only with a run, and .*model is not a run folder"):
        load_compared(parsed("--run", str(run), "--compare", str(run / "model"), "--compare_checkpoint", "1"))


def test_what_cannot_be_served_is_told_before_a_model_is_loaded(monkeypatch, capsys, refused):
    refused(cli.main(["ui", "--run", "nowhere", "--compare_checkpoint", "1"]), "--compare_checkpoint needs --compare")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "gradio", None)
        assert cli.main(["ui", "--run", "nowhere"]) == 2
    assert "pip install 'rl4dialog[ui]'" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "gradio", argparse)  # any module: it is not used before the port is known
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        assert cli.main(["ui", "--run", "nowhere", "--port", port]) == 2
    assert f"--port {port}: cannot listen there (Address already in use)" in capsys.readouterr().err
