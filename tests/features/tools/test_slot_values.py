"""The simulated user by rules, who says the values of its call."""

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.features.tools.slot_values import SlotValues

RIDE = {
    "name": "ride_book",
    "arguments": {
        "DepartureLocation": {"values": ["Old Mill", "the mill"]},
        "CustomerName": "Ann",
        "Day": {"values": ["Monday"], "unwanted": True},
        "Time": ["2 pm", "14:00"],
    },
}


def started(gold=RIDE, **kwargs):
    user = SlotValues(**kwargs)
    user.reset({"gold_call": gold}, 0)
    return user


def test_user_says_what_is_asked_for_and_then_what_was_not_said():
    user = started(otherwise="bye")
    assert user.open() == "ride book ."
    assert user.reply(["ride book .", "Who are you, what is your name?"]) == "Ann ."
    assert user.reply(["Hello!"]) == "departure location: Old Mill ."
    assert user.reply(["Where do you depart from?"]) == "Old Mill ."  # again
    assert user.reply(["Fine."]) == "time: 2 pm ."
    assert user.reply(["Anything else?"]) == "bye"


def test_an_unwanted_value_is_not_said():
    user = started()
    assert "Monday" not in user.secret() and user.secret().startswith("ride book; departure location: Old Mill")
    assert user.reply(["On what day?"]) != "Monday ."


def test_calls_as_texts_and_samples_without_one():
    assert started("call ride_book time=noon").reply(["Which time?"]) == "noon ."
    assert started({"name": "ping", "arguments": {}}).reply(["Well?"]) == "that is all ."
    with pytest.raises(DataError, match=r"partner 'slot_values' needs samples with meta_data\['gold_call'\]"):
        SlotValues().reset({}, 0)
