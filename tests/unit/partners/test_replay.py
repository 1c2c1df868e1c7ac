"""The partner that replays the dataset's dialogue."""

from __future__ import annotations

import pytest

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import PartnerReply


@pytest.mark.parametrize(
    ("continuation", "replies"),
    [
        ([], [PartnerReply(leaves=True)]),
        (["p1"], [PartnerReply("p1", leaves=True), PartnerReply(leaves=True)]),
        (["p1", "a1"], [PartnerReply("p1", info={"references": ["a1"], "labels": {}}), PartnerReply(leaves=True)]),
        (["p1", "a1", "p2"], [PartnerReply("p1", info={"references": ["a1"], "labels": {}}), PartnerReply("p2", leaves=True)]),
    ],
)
def test_references_follow_the_turn_until_the_dialogue_ends(continuation: list[str], replies: list[object]) -> None:
    partner = PartnerRegistry.get("replay")
    assert partner.gives_references
    for _ in range(2):
        partner.reset({"continuation": continuation}, seed=0)
        assert [partner.reply(["whatever"]) for _ in replies] == replies


def test_labels_follow_the_turn_too() -> None:
    partner = PartnerRegistry.get("replay")
    labels = [{"intent": [1]}, {"intent": [2]}, {"intent": [3]}, {"intent": [4]}]
    partner.reset({"continuation": ["p1", "a1", "p2", "a2"], "continuation_labels": labels}, seed=0)
    assert [partner.reply([]).info["labels"] for _ in range(2)] == [{"intent": [2]}, {"intent": [4]}]


@pytest.mark.parametrize("meta_info", [{}, {"continuation": None}, {"continuation": "hello"}])
def test_sample_without_continuation_is_an_error(meta_info: dict[str, object]) -> None:
    with pytest.raises(DataError, match=r"'replay' needs .*meta_data\['continuation'\].*args\.samples: dialogues"):
        PartnerRegistry.get("replay").reset(meta_info, seed=0)
