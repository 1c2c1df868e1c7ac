"""How calls are read, checked and answered, whatever the agent writes and whatever the tool does."""

import copy
import logging
import pickle
import threading
import time

import pytest
from tool_cases import Shop, shop_toolbox

from rl4dialog.catalog import ToolRegistry
from rl4dialog.core.errors import ConfigError, DataError, PartnerError
from rl4dialog.core.types import Call, Sample
from rl4dialog.data.pool import TextGenPool
from rl4dialog.features.tools import toolbox as toolbox_module
from rl4dialog.features.tools.calls import CallError, Slot, Tool, read_text, write_text
from rl4dialog.features.tools.right_calls import Gold, RightCallReward, call_outcome, gold_call, right_slots
from rl4dialog.features.tools.toolbox import Calls
from rl4dialog.training.building.texts import report_faults

GOOD = "call buy item=a red hat; n=2; size=m"


@pytest.fixture
def box():
    toolbox_module._told.clear()
    found = shop_toolbox()
    found.reset({}, 0)
    return found


@pytest.mark.parametrize(
    ("said", "name", "arguments"),
    [
        ("call buy", "buy", {}),
        (" call  buy a=b ", "buy", {"a": "b"}),
        ("call buy a = b ;c=d;", "buy", {"a": "b", "c": "d"}),
        ('call buy a="b; \\"c\\""; d=e=f', "buy", {"a": 'b; "c"', "d": "e=f"}),
        ('call buy a="b', "buy", {"a": '"b'}),
        ("call buy a=", "buy", {"a": ""}),
    ],
)
def test_call_is_read(said, name, arguments):
    assert read_text(said) == (name, arguments)


@pytest.mark.parametrize("value", ["x", "a; b", ' "', "a\nb", " a ", '"a"', "ä=b", "\\"])
def test_what_is_written_is_read(value):
    assert read_text(write_text("f", {"a": value, "b": "c"})) == ("f", {"a": value, "b": "c"})


@pytest.mark.parametrize("said", ["call", "call ", "call buy a", "call buy =b", "call buy a=1; a=2"])
def test_unreadable_call_is_an_error(said):
    with pytest.raises(CallError) as caught:
        read_text(said)
    assert caught.value.problem == "unreadable"


def test_long_texts_are_read_at_once():
    started = time.monotonic()
    for said in (
        "call " + '"' * 50_000,
        "call f " + "a=b;" * 10_000,
        "call f a=" + " " * 50_000 + "b",
        "call f " + ";" * 50_000,
    ):
        try:
            read_text(said)
        except CallError:
            continue
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("said", "problem", "answer"),
    [
        (GOOD, "", "sold {'item': 'a red hat', 'n': 2, 'size': 'M'} ; 2 in all"),
        (
            "call BUY ITEM=x; N=2.0; Size=S; gift=yes",
            "",
            "sold {'item': 'x', 'n': 2, 'size': 'S', 'gift': True} ; 2 in all",
        ),
        ("call buy item=x; n=2; size=S; gift=", "", "sold {'item': 'x', 'n': 2, 'size': 'S'} ; 2 in all"),
        ("call bye item=x", "unknown tool", "error: there is no 'bye'; did you mean 'buy'? (known: buy, fail, "),
        ("call buy thing=x", "unknown slot", "error: buy has no slot 'thing' (slots: item, n, size, gift)"),
        ("call buy itme=x", "unknown slot", "error: buy has no slot 'itme'; did you mean 'item'? (slots: "),
        ("call buy item=; n=2", "missing value", "error: buy needs item, size"),
        ("call buy", "missing value", "error: buy needs item, n, size"),
        ("call buy item=x; n=two; size=S", "wrong value", "error: n must be of type integer, not 'two'"),
        ("call buy item=x; n=2.5; size=S", "wrong value", "error: n must be of type integer, not '2.5'"),
        ("call buy item=x; n=inf; size=S", "wrong value", "error: n must be of type integer, not 'inf'"),
        ("call buy item=x; n=2; size=XL", "wrong value", "error: size must be one of S, M, not 'XL'"),
        ("call buy item=x; n=2; size=S; gift=3", "wrong value", "error: gift must be of type boolean, not '3'"),
        ("call buy item=x; ITEM=y", "unreadable", "error: slot item is given twice"),
        ("call buy a red hat", "unreadable", "error: write slot=value; slot=value, not 'a red hat'"),
        ("call", "unreadable", "error: write call NAME slot=value; slot=value"),
        ("call fail", "failed", "error: fail failed"),
        ("call number", "failed", "error: number failed"),
        ("call sleep", "takes too long", "error: sleep takes too long"),
    ],
)
def test_call_is_answered(box, said, problem, answer):
    assert box.takes(said)
    reply = box.answer(said)
    assert reply.text.startswith(answer) and reply.call.problem == problem and reply.call.answer == reply.text
    assert not reply.leaves and box.outcome()["calls"] == 1 and box.outcome()["failed_calls"] == bool(problem)
    assert box.outcome()["tool_faults"] == (problem in ("failed", "takes too long"))


@pytest.mark.parametrize("said", ["call me later", "Call buy item=x", "please call buy", "called", "", "a = b"])
def test_other_utterances_are_no_calls(box, said):
    assert not box.takes(said)


def test_calls_in_the_data_that_would_be_errors_are_named(box, caplog):
    more = {"history": ["hi"], "continuation": ["sold", "call bye a=b", "?", "call buy item", "?", "bye"]}
    samples = [Sample(0, "hi", [GOOD], more), Sample(1, "hi", ["call bye a=b"])]
    report_faults(box, TextGenPool(samples))
    (record,) = caplog.records
    assert record.message.startswith("3 of 4 calls in the train split would be answered by an error")
    assert "the most common one: there is no 'bye'; did you mean 'buy'?" in record.message
    assert box.outcome()["calls"] == 0


def test_megabytes_are_cut_and_faults_are_said_once(box, caplog):
    for said in ("call talk", "call fail", "call talk", "call fail"):
        box.answer(said)
    assert len(box.answer("call talk").text) <= 500 and box.outcome()["tool_faults"] == 5
    assert box.outcome()["failed_calls"] == 2, "a cut answer is one"
    messages = [record.message for record in caplog.records]
    assert len(messages) == 2 and "the tool of 'talk' returned 10,000,000 characters, cut to 500" in messages
    assert any("the tool of 'fail' raised KeyError: 'stock' (" in message for message in messages)


def test_time_limit_holds_in_threads_and_inside_another_one(box):
    from rl4dialog.core.time_limit import time_limit

    found = []
    thread = threading.Thread(target=lambda: found.extend(box.answer(each).text for each in ("call sleep", GOOD)))
    thread.start()
    thread.join(10)
    assert found[0] == "error: sleep takes too long" and found[1].startswith("sold")
    with time_limit(20):
        assert box.answer("call sleep").call.problem == "takes too long"


def test_call_cut_at_the_length_limit_is_not_executed(box):
    assert box.answer(GOOD, is_cut=True).call.problem == "unreadable"
    assert box.answer(GOOD).text.endswith("2 in all")


def test_toolbox_can_be_copied_and_sent(box):
    for other in (copy.deepcopy(box), pickle.loads(pickle.dumps(box))):
        other.reset({}, 0)
        other.answer(GOOD)
    assert box.outcome()["calls"] == 0


class Broken(Tool):
    functions = {"f": {"a": Slot()}}  # noqa: RUF012

    def reset(self, meta_info, seed):
        raise OSError("no database")

    def call(self, name, arguments):
        return ""


@pytest.mark.parametrize(
    ("tools", "more", "message"),
    [
        ([{"id": "shp"}], {}, "unknown tool 'shp'; did you mean 'shop'"),
        ([{"args": {}}], {}, "each of the tools needs an id"),
        ([{"id": "shop", "args": {"minutes": 1}}], {}, "tool 'shop' has no argument 'minutes'"),
        ([{"id": "shop"}, {"id": "shop"}], {}, "two tools have a function 'buy'"),
        ([{"id": "shop"}], {"ends_after": ["by"]}, "ends_after: there is no function 'by'; did you mean 'buy'"),
        ([{"id": "no_tool"}], {}, "tool 'no_tool' is a dict; it must be a subclass of Tool"),
    ],
)
def test_wrong_config_is_named(tools, more, message):
    ToolRegistry.add("shop", Shop)
    ToolRegistry.add("no_tool", type("NoTool", (), {"__new__": lambda cls: {}}))
    with pytest.raises(ConfigError, match=message):
        Calls(tools, **more)


def test_tool_that_cannot_begin_fails_as_a_partner_does():
    ToolRegistry.add("broken", Broken)
    found = Calls([{"id": "broken"}])
    with pytest.raises(PartnerError, match="the tool of 'f' cannot begin a conversation: OSError: no database"):
        found.reset({}, 0)


GOLD = Gold("buy", {"item": ["a red hat", "red hat"], "n": 2, "size": "M"})


@pytest.mark.parametrize(
    ("arguments", "share"),
    [
        ({"item": "Red  Hat", "n": "2.0", "size": "m"}, 1),
        ({"item": "hat", "n": 2, "size": "M"}, 2 / 3),
        ({"n": 2}, 1 / 3),
        ({"item": "red hat", "n": 2, "size": "M", "gift": "yes"}, 3 / 4),
        ({}, 0),
    ],
)
def test_share_of_right_slots(arguments, share):
    assert right_slots([Call("other"), Call("BUY", arguments)], GOLD) == pytest.approx(share)
    assert right_slots([Call("buy", arguments), Call("other", arguments)], GOLD) == 0
    outcome = call_outcome([Call("buy", arguments, problem="failed" if share == 1 else "")], GOLD)
    assert outcome["right_call"] == 0 and outcome["right_slots"] == pytest.approx(share), "a failed call is not right"


def test_gold_call_can_leave_slots_open_and_allow_for_spelling():
    color, note = {"values": ["red"], "unwanted": True}, {"values": ["two more towels"], "in_own_words": True}
    slots = {"item": {"values": ["Old Mill"]}, "color": color, "note": note}
    gold = gold_call({"gold_call": {"name": "buy", "arguments": slots, "open": True}})
    right = {"item": "old mil", "note": "towels", "gift": "yes"}
    assert (
        right_slots([Call("buy", right)], gold) == 1
        and right_slots([Call("buy", right)], gold._replace(is_open=False)) < 1
    )
    assert right_slots([Call("buy", {**right, "color": "Red", "item": "New Mill"})], gold) == pytest.approx(1 / 3)


def test_gold_calls_are_texts_or_objects():
    assert gold_call({"gold_call": "call buy n=2"}) == gold_call(
        {"gold_call": {"name": "buy", "arguments": {"n": "2"}}}
    )
    assert gold_call({}) is None and right_slots([], GOLD) == 0 and right_slots([Call("f")], Gold("f", {})) == 1
    for wrong in ("call", {"name": "f"}, {"name": "f", "arguments": 3}, {"name": "f", "arguments": {"n": {}}}, 7):
        with pytest.raises(DataError, match=r"meta_data\['gold_call'\] must be a call such as"):
            gold_call({"gold_call": wrong})


def test_reward_is_paid_at_the_end():
    from rl4dialog.core.types import AGENT, Dialogue, Turn

    turns = (Turn("call buy n=2", AGENT, call=Call("buy", {"n": 2})),)
    dialogue = Dialogue("s", turns, meta_data={"gold_call": {"name": "buy", "arguments": {"n": 2, "item": "hat"}}})
    reward = RightCallReward(per_turn=-0.1)
    assert reward(dialogue, False) == -0.1 and reward(dialogue, True) == pytest.approx(0.4)
    assert RightCallReward(exact=True)(dialogue, True) == 0
    with pytest.raises(DataError, match="needs samples with meta_data"):
        reward(Dialogue("s", turns), True)


def test_log_level_of_faults_is_a_warning(box, caplog):
    with caplog.at_level(logging.WARNING):
        box.answer("call number")
    assert caplog.records[0].levelname == "WARNING" and "returned a int and no text" in caplog.records[0].message
