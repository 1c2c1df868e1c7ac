"""A table in a restaurant: what is understood, the guest, the clerks, and conversations as data."""

import statistics

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import AGENT, PARTNER, PartnerReply
from rl4dialog.tasks import table_booking
from rl4dialog.tasks.playing import play

WISH = "Friday, 7 pm, 4 people, outside"
OPENING = "Hello, a table on Friday, please."


def test_what_is_said_is_understood():
    for slot in table_booking.SLOTS:
        assert [table_booking.asked_for(question) for question in slot.questions] == [slot] * 3
        for value in slot.values:
            for text in (slot.in_opening, *slot.answers):
                assert table_booking.values_in(text.format(value)) == [value]
    other = [*table_booking.CHAT, *(text for texts in table_booking.GUEST.values() for text in texts)]
    assert table_booking.values_in(*other) == [] and not any(map(table_booking.asked_for, other))


@pytest.mark.parametrize(
    ("text", "slot"),
    [
        ("on friday at what TIME ?", "time"),
        ("Very good. And how many are you?", "people"),
        ("Inside?", "place"),
        ("What time on which day?", None),
        ("Tell me the day.", None),
        ("Where would you like?", None),
        ("Friday?", None),
        ("Sometimes?", None),
        ("", None),
    ],
)
def test_question_asks_for_one_slot(text, slot):
    found = table_booking.asked_for(text)
    assert (found and found.name) == slot


def waiting(wish=WISH):
    guest = table_booking.BookingGuest()
    guest.reset({"goal_text": wish}, seed=0)
    return guest


def test_guest_answers_a_question_once():
    guest, history = waiting(), [OPENING]
    for said, answers, paid in [
        ("Which day?", table_booking.GUEST["asked_again"], -0.1),
        ("What time on which day?", table_booking.GUEST["puzzled"], -0.1),
        ("At what time?", ["At 7 pm.", "At 7 pm, please.", "We come at 7 pm."], 0.25),
        ("At what time?", table_booking.GUEST["asked_again"], -0.1),
        ("Is a table booked?", table_booking.GUEST["puzzled"], -0.1),
    ]:
        history.append(said)
        reply = guest.reply(history)
        assert reply.text in answers and reply.reward == paid and not reply.leaves
        history.append(reply.text)
    assert guest.outcome() == {"success": 0.0, "right_parts": 0.0, "asked_in_vain": 4.0}
    assert guest.failures() == ["no booking"]
    assert guest.outcome().keys() == set(guest.outcomes) and guest.secret() == WISH


@pytest.mark.parametrize(
    ("said", "failures"),
    [
        ("Booked: Friday, 7 pm, 4 people, outside.", []),
        ("booked for 4 people outside , friday at 7 pm", []),
        ("Booked: Friday, 8 pm, 4 people, inside.", ["wrong time", "wrong place"]),
        ("Booked: Friday, 7 pm, 4 people, inside or outside.", ["wrong place"]),
        ("Booked: Friday, 7 pm, 4 people.", ["wrong place"]),
        ("Booked!", ["wrong day", "wrong time", "wrong people", "wrong place"]),
    ],
)
def test_guest_leaves_after_a_booking(said, failures):
    guest = waiting()
    reply = guest.reply([OPENING, said])
    assert isinstance(reply, PartnerReply) and reply.leaves
    assert reply.text in table_booking.GUEST["disappointed" if failures else "satisfied"]
    assert reply.reward == (not failures)
    assert guest.failures() == failures
    scores = {"success": float(not failures), "right_parts": 1 - len(failures) / 4, "asked_in_vain": 0.0}
    assert guest.outcome() == scores


@pytest.mark.parametrize("meta_info", [{}, {"goal_text": "Friday"}, {"goal_text": [WISH]}])
def test_sample_without_a_wish_is_an_error(meta_info):
    with pytest.raises(DataError, match=r"meta_data\['goal_text'\] is a wish such as 'Monday.*table_booking"):
        table_booking.BookingGuest().reset(meta_info, seed=0)


def test_no_test_wish_is_in_training():
    splits = {split: table_booking.wishes_of(split) for split in ("train", "val", "test")}
    assert {split: len(wishes) for split, wishes in splits.items()} == {"train": 582, "val": 100, "test": 200}
    assert {*splits["train"], *splits["val"], *splits["test"]} == {*table_booking.WISHES}
    assert len(table_booking.WISHES) == 882
    for split in ("train", "test"):
        pool = table_booking.TableBooking.prepare(split, n_train=700)
        assert {sample.meta_data["goal_text"] for sample, _ in pool} == {*splits[split]}


def test_conversations_are_those_of_a_careless_clerk_with_the_guest():
    n_named = []
    for sample, _ in table_booking.TableBooking.prepare("train", n_train=200):
        (opening,) = sample.meta_data["history"]
        texts = [opening, *sample.references, *sample.meta_data["continuation"]]
        named = table_booking.values_in(opening)
        n_named.append(len(named))
        assert [value for value in table_booking.values_in(sample.meta_data["goal_text"]) if value in named] == named
        assert sample.prompt_or_input_text == f"{opening} <EOU>"
        bookings = [text.startswith("Booked") for text in texts[1::2]]
        assert len(texts) % 2 == 1 and not any(bookings[:-1]) and (bookings[-1] or len(bookings) == 6)
        assert {*table_booking.values_in(*texts[::2])} <= {*table_booking.values_in(sample.meta_data["goal_text"])}
    assert set(n_named) == {1, 2}


def test_careful_clerk_never_fails_and_careless_clerk_mostly():
    pool = table_booking.TableBooking.prepare("train", n_train=1500)
    talks = {
        name: [play(player(), table_booking.BookingGuest(), sample, 6, seed) for seed, (sample, _) in enumerate(pool)]
        for name, player in pool.players.items()
    }
    assert list(talks) == ["careless", "careful"]
    for talk in talks["careful"]:
        n_missing = 4 - len(table_booking.values_in(talk.turns[0].text))
        assert talk.outcome == {"success": 1.0, "right_parts": 1.0, "asked_in_vain": 0.0}
        assert len(talk.texts(AGENT)) == n_missing + 1 and talk.ended_by == "partner"
        assert talk.texts(PARTNER)[-1] in table_booking.GUEST["satisfied"]
    # Four standard errors around the share in 20,000 conversations.
    success = statistics.mean(talk.outcome["success"] for talk in talks["careless"])
    assert success == pytest.approx(0.112, abs=0.033)
