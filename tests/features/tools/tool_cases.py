"""Tools and chat templates of the tests."""

import time
from pathlib import Path

from rl4dialog.core.protocols import Partner
from rl4dialog.features.tools.calls import Slot, Tool
from rl4dialog.features.tools.toolbox import Calls

# As templates of Qwen and Hermes write calls: JSON in tags, and answers in tags within messages of the user.
IN_TAGS = Path(__file__).with_name("in_tags.jinja").read_text(encoding="utf-8").rstrip("\n")
# Any role, and nothing of calls.
PLAIN = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
REJECTING = PLAIN.replace(
    "{% for message in messages %}",
    "{% for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}",
)


class Shop(Tool):
    """Sells, raises, sleeps or talks a lot."""

    functions = {  # noqa: RUF012
        "buy": {"item": Slot(), "n": Slot(int), "size": Slot(("S", "M")), "gift": Slot(bool, required=False)},
        "fail": {},
        "sleep": {},
        "talk": {},
        "number": {},
    }

    def __init__(self, seconds=30.0):
        self._seconds = seconds

    def reset(self, meta_info, seed):
        self.n_sold = 0

    def call(self, name, arguments):
        if name == "fail":
            raise KeyError("stock")
        if name == "sleep":
            time.sleep(self._seconds)
        if name == "talk":
            return "a b <EOU> " * 1_000_000
        if name == "number":
            return 3
        self.n_sold += arguments["n"]
        return f"sold {arguments} ; {self.n_sold} in all"


def shop_toolbox(**args):
    from rl4dialog.catalog import ToolRegistry

    ToolRegistry.add("shop", Shop)
    return Calls([{"id": "shop"}], **{"timeout_s": 0.2, **args})


class Hears(Partner):
    """Keeps what it heard."""

    def reset(self, meta_info, seed):
        self.heard = []

    def reply(self, history):
        self.heard.append(history)
        return f"w{len(self.heard)}"
