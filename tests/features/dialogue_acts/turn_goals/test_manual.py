"""A person rates conversations on a page."""

import re
import socket
import threading
import urllib.parse
import urllib.request

import pytest

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn
from rl4dialog.features.dialogue_acts.turn_goals.manual import ManualRating

DIALOGUE = Dialogue(0, (Turn("hi <b>", PARTNER), Turn("what pet ?", AGENT), Turn("a cat", PARTNER)), n_given=1)


def test_conversation_is_rated_on_the_page_once(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    reward = ManualRating(tmp_path / "r.jsonl", 0, 10, port=port, pays_now=True)
    assert reward([DIALOGUE], [False]) == [0.0], "nobody is asked within a conversation"
    paid, _ = [], reward._ask  # the page is there
    asking = threading.Thread(target=lambda: paid.append(reward([DIALOGUE], [True])), daemon=True)
    asking.start()
    url = f"http://127.0.0.1:{port}/"

    def page(**headers):
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers)).read().decode()

    def rate(key, rating):
        urllib.request.urlopen(url, urllib.parse.urlencode({"key": key, "rating": rating}).encode())

    def key_on_page(problem=""):
        while not (found := re.search(r'name="key" value="(.+?)"', shown := page())) or problem not in shown:
            pass
        assert "hi &lt;b&gt;" in shown and "agent: what pet ?" in shown
        return found[1]

    key = key_on_page()
    with pytest.raises(urllib.error.HTTPError, match="403"):
        page(Host="elsewhere.example")
    rate("guessed", 3), rate(key, 11)
    key_on_page("a rating is a number from 0 to 10, not &#x27;11&#x27;")
    rate(key, "7.5")
    asking.join(timeout=60)
    assert paid == [[7.5]]
    assert ManualRating(tmp_path / "r.jsonl", 0, 10, pays_now=True)([DIALOGUE], [True]) == [7.5], "it is in the file"


@pytest.mark.parametrize(
    ("args", "message"),
    [({}, "it is for env.id: turn_goals"), ({"lowest": 5, "pays_now": True}, "lowest, 5, must be below highest, 5")],
)
def test_what_nobody_could_rate_is_refused(tmp_path, args, message):
    with pytest.raises(ConfigError, match=message):
        ManualRating(tmp_path / "r.jsonl", **args)
