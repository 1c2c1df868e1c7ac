"""What a run knows of its samples."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.types import Sample
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.data.pool import TextGenPool
from rl4dialog.data.run_data import Data


def pool(*infos: dict[str, Any] | None) -> TextGenPool:
    return TextGenPool([Sample(i, "", [], info) for i, info in enumerate(infos)])


def test_persona_is_what_all_prompts_begin_with() -> None:
    format = DialogueFormat("eou", 3)

    def data(*personas: str | None) -> Data:
        samples = [Sample(i, format.prompt(["hi"], persona), []) for i, persona in enumerate(personas)]
        return Data({"train": TextGenPool(samples)}, None)

    assert data("be kind", "be kind").persona == "be kind"
    assert data("be kind", "be rude").persona is data("be kind", None).persona is data(None, None).persona is None


def test_personas_are_those_of_the_train_split_each_once() -> None:
    train = pool({"persona": ["a", "b"]}, None, {"persona": ["c"]}, {"persona": ["a", "b"]}, {"persona": "d"}, {})
    data = Data({"train": train, "val": pool({"persona": ["e"]})}, None)
    assert data.personas("persona") == [("a", "b"), ("c",)] and data.personas("partner_persona") == []
