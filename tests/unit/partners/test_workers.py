"""Partners can live in environment workers."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest

from rl4dialog.catalog import PartnerRegistry

ARGS: dict[str, dict[str, Any]] = {
    "facts": {},
    "replay": {},
    "rules": {"rules": [{"pattern": "dog", "replies": list("abcdef")}]},
    "scripted": {},
}
META_INFO = {"partner_persona": ["i own a dog ."], "continuation": ["p", "a", "p", "a"], "partner_replies": ["x", "y"]}


@pytest.mark.parametrize("id", sorted(ARGS))
def test_copies_continue_a_conversation_independently(id: str) -> None:
    partner = PartnerRegistry.get(id, ARGS[id])
    partner.reset(META_INFO, 3)
    partner.reply(["a dog ?"])
    copies = [copy.deepcopy(partner), pickle.loads(pickle.dumps(partner))]
    answers = [[one.reply(["a dog ?"]) for _ in range(3)] for one in (partner, *copies)]
    assert answers[0] == answers[1] == answers[2]


def test_partners_import_no_torch() -> None:
    ids = ", ".join(repr(id) for id in (*ARGS, "http", "openai"))
    code = (
        "import sys; from rl4dialog.catalog import PartnerRegistry\n"
        f"for id in ({ids}): PartnerRegistry.resolve(id)\n"
        "assert 'rl4dialog.partners.scripted' in sys.modules and 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
