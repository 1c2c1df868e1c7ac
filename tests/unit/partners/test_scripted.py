"""The partner with a given script."""

from __future__ import annotations

import pytest

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.errors import ConfigError, DataError


def test_lines_are_said_in_order_and_then_it_leaves() -> None:
    partner = PartnerRegistry.get("scripted", {"replies": ["and then ?", "i see ."]})
    for _ in range(2):
        partner.reset({"partner_replies": ["not this"]}, seed=0)
        assert [partner.reply(["hi"]) for _ in range(4)] == ["and then ?", "i see .", None, None]


def test_lines_of_the_sample_are_the_default() -> None:
    partner = PartnerRegistry.get("scripted")
    for lines in (["a", "b"], ["c"], []):
        partner.reset({"partner_replies": lines}, seed=0)
        assert [partner.reply(["hi"]) for _ in range(3)] == [*lines, None, None, None][:3]


@pytest.mark.parametrize("meta_info", [{}, {"partner_replies": "hello"}, {"partner_replies": ["a", 1]}])
def test_sample_without_lines_is_an_error(meta_info: dict[str, object]) -> None:
    with pytest.raises(DataError, match=r"'scripted' needs .*meta_data\['partner_replies'\].*set the argument replies"):
        PartnerRegistry.get("scripted").reset(meta_info, seed=0)


def test_empty_script_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"env\.args\.partner\.args\.replies: .*at least 1 item"):
        PartnerRegistry.check("scripted", {"replies": []}, "env.args.partner.args")
