"""A tab of a browser at a page of ``rl4dialog ui``: what it sends, and what it then shows, over plain HTTP.

Unlike gradio_client, it can click on a bubble.
"""

import json
import uuid

import httpx

from rl4dialog.features.serving.page import without_joiners


class Tab:
    """A tab."""

    def __init__(self, address, key=None):
        self._http = httpx.Client(base_url=f"{address}/gradio_api", timeout=60)
        config = httpx.get(f"{address}/config").json()
        self._ids = {each["id"]: each["props"].get("elem_id") or each["type"] for each in config["components"]}
        self._events = {each["api_name"]: each for each in config["dependencies"]}
        self._session = uuid.uuid4().hex
        self.props = {}
        self.key = key
        self.act("open")

    def act(self, name, event_data=None, **values):
        """Do something, and wait for all that comes of it."""
        for _ in self.acting(name, event_data, **values):
            pass

    def acting(self, name, event_data=None, **values):
        """Do something; yields after each update, the first of which is whole."""
        event = self._events[name]
        given = {"browserstate": self.key, "colour": "none", **{key.replace("_", "-"): values[key] for key in values}}
        body = {
            "data": [given.get(self._ids[id]) for id in event["inputs"]],
            "fn_index": event["id"],
            "session_hash": self._session,
            "event_data": event_data,
        }
        self._http.post("/queue/join", json=body).raise_for_status()
        with self._http.stream("GET", "/queue/data", params={"session_hash": self._session}) as lines:
            for line in lines.iter_lines():
                said = json.loads(line.removeprefix("data:")) if line.startswith("data:") else {}
                if said.get("msg") == "process_completed":
                    assert said["success"], said
                    self._take(event["outputs"], said["output"]["data"])
                    yield
                    return
                if said.get("msg") == "process_generating":
                    yield

    def _take(self, outputs, data):
        for id, value in zip(outputs, data, strict=True):
            name, props = self._ids[id], value
            if name == "browserstate":
                self.key = value
                continue
            if not isinstance(value, dict) or value.get("__type__") != "update":
                props = {"value": value}
            self.props.setdefault(name, {}).update(props)

    # -- what it shows --------------------------------------------------------------------------------------------

    def value(self, name):
        return self.props[name]["value"]

    @property
    def status(self):
        return str(self.value("status"))

    def turns(self, index=0):
        """The texts of the messages in a column."""
        return [without_joiners(each["content"][0]["text"]) for each in self.value(f"chat-{index}")]

    def below(self, index=0, number=-1):
        """What stands beneath the text of a message."""
        _, *others = self.value(f"chat-{index}")[number]["content"]
        return "".join(each["value"] for each in others)

    def options(self, index=0):
        """What can be chosen beneath the last message."""
        return [each["value"] for each in self.value(f"chat-{index}")[-1].get("options") or []]

    def ratings(self, index=0):
        given = self.props[f"chat-{index}"]["feedback_value"]
        return [each if each in ("Like", "Dislike") else None for each in given]

    # -- clicks on bubbles ----------------------------------------------------------------------------------------

    def rate(self, liked, index=0, number=-1, **values):
        """Click a thumb; an empty text takes the rating back."""
        self.act(f"rate_{index}", {"index": self._number(index, number), "liked": liked}, **values)

    def edit(self, text, index=0, number=-1, name="edit", **values):
        """Edit a message."""
        self.act(f"{name}_{index}", {"index": self._number(index, number), "value": text}, **values)

    def choose(self, option, index=0, name="option"):
        """Click a button beneath the last message."""
        self.act(f"{name}_{index}", {"index": 0, "value": option})

    def _number(self, index, number):
        return number if number >= 0 else len(self.value(f"chat-{index}")) + number
