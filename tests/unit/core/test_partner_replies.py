"""What partners return is checked and cleaned."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl4dialog.core.errors import PartnerError
from rl4dialog.core.partner_replies import checked_outcome, checked_reply
from rl4dialog.core.types import PartnerReply


def test_valid_reply_is_kept_and_short_forms_are_written_out():
    reply = PartnerReply("hi", [1, 2], 0.5, {"references": ["a"], "more": 1}, True, "it failed")
    assert checked_reply(reply, "mine") == reply
    long = "word " * 20_000
    assert checked_reply(long, "mine").text == long
    assert checked_reply("hello", "mine") == PartnerReply("hello")
    assert checked_reply(None, "mine") == PartnerReply(leaves=True)
    reply = checked_reply(PartnerReply("hi", np.array([3, 4]), np.float32(0.5)), "mine")
    assert reply.ids == [3, 4] and {type(id) for id in reply.ids} == {int}
    assert reply.reward == 0.5 and type(reply.reward) is float


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\0b\0", "ab"),
        ("a\ud800b", "a\ufffdb"),
        ("\udc00\ud800", "\ufffd\ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\ufeffa\r\n", "\ufeffa\r\n"),
        ("\0", None),
        (" \n", None),
        ("", None),
    ],
)
def test_texts_are_cleaned(text, cleaned):
    reply = checked_reply(PartnerReply(text, ids=[7]), "mine")
    assert reply.text == cleaned
    assert reply.ids == ([7] if text == cleaned else None), "ids belong to the text"


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_every_text_can_be_encoded_afterwards(text):
    cleaned = checked_reply(text, "mine").text or ""
    assert "\0" not in cleaned
    assert checked_reply(cleaned, "mine").text == (cleaned or None)
    cleaned.encode("utf-8")


@pytest.mark.parametrize("answer", [3, 0.5, True, b"hello", ["hello"], {"text": "hello"}, ("hello", 1.0)])
def test_anything_else_is_an_error_that_names_it(answer):
    with pytest.raises(PartnerError) as error:
        checked_reply(answer, "mine")
    text = str(error.value)
    assert "'mine'" in text and repr(answer) in text and type(answer).__name__ in text and "PartnerReply" in text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": b"hi"}, "text is b'hi'"),
        ({"text": "hi", "ids": [1, -2]}, r"ids are \[1, -2\]"),
        ({"text": "hi", "ids": [1.0]}, r"ids are \[1.0\]"),
        ({"text": "hi", "ids": 5}, "ids are 5"),
        ({"info": {"labels": [1]}}, r"info\['labels'\] is \[1\]"),
        ({"ids": [1]}, r"ids are \[1\], not the token ids of its text"),
        ({"reward": float("nan")}, "reward is nan, not a finite number"),
        ({"reward": True}, "reward is True"),
        ({"info": ["a"]}, r"info is \['a'\], not a mapping"),
        ({"info": {"references": "a"}}, r"info\['references'\] is 'a'"),
        ({"leaves": "no"}, "leaves is 'no'"),
        ({"failed": 1}, "failed is 1"),
    ],
)
def test_invalid_fields_are_named(fields, message):
    with pytest.raises(PartnerError, match=f"partner 'mine' returned a PartnerReply whose {message}"):
        checked_reply(PartnerReply(**fields), "mine")


def test_outcomes_are_numbers_and_may_be_true_or_false():
    assert checked_outcome({"success": True, "turns": 3}, "mine") == {"success": 1.0, "turns": 3.0}
    with pytest.raises(PartnerError, match="mapping of finite numbers"):
        checked_outcome({"success": "yes"}, "mine")
