"""The datapool persona_pairs: two personas per sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.data.persona_pairs import PersonaPairs


def prepare(folder: Path, n_personas: int = 5, split: str = "train", **args: Any) -> list[dict[str, Any]]:
    rows = "".join(f"p{i} a,p{i} b\n" for i in range(n_personas))
    (folder / "x.csv").write_text(f"Fact 1,Fact 2\n{rows}", encoding="utf-8")
    return [sample.meta_data or {} for sample, _ in PersonaPairs.prepare(split, folder / "x.csv", **args)]


def firsts(pool: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(info["persona"][0][:2], info["partner_persona"][0][:2]) for info in pool]


def test_sample_has_both_personas_and_the_agents_in_its_prompt(tmp_path: Path) -> None:
    prepare(tmp_path)
    (sample, _), *_ = PersonaPairs.prepare("train", tmp_path / "x.csv", "sequence", greeting="good day .")
    assert sample.meta_data == {
        "history": ["good day ."],
        "persona": ["p0 a", "p0 b"],
        "partner_persona": ["p1 a", "p1 b"],
    }
    assert sample.prompt_or_input_text == "p0 a p0 b<EOU>good day . <EOU>" and sample.references == []
    ((both, _),) = PersonaPairs.prepare("train", tmp_path / "x.csv", "sequence", max_size=1, persona_side="both")
    assert both.prompt_or_input_text.startswith("your persona: p0 a p0 b partner's persona: p1 a p1 b<EOU>")


def test_sequence_takes_each_persona_once(tmp_path: Path) -> None:
    assert firsts(prepare(tmp_path, order="sequence")) == [("p0", "p1"), ("p2", "p3")]
    assert firsts(prepare(tmp_path, order="sequence", max_size=1)) == [("p0", "p1")]


def test_sequence_keeps_the_pairs_of_a_file(tmp_path: Path) -> None:
    rows = "".join(f'"p{i} a","p{i - 1} a"\n' for i in range(1, 4))
    (tmp_path / "x.csv").write_text(f"user 1 personas,user 2 personas\n{rows}", encoding="utf-8")
    pool = PersonaPairs.prepare("train", tmp_path / "x.csv", "sequence")
    assert firsts([sample.meta_data or {} for sample, _ in pool]) == [("p1", "p0"), ("p2", "p1"), ("p3", "p2")]


def test_random_pairs_differ_and_depend_on_the_seed(tmp_path: Path) -> None:
    pairs = firsts(prepare(tmp_path, max_size=400))
    assert len(pairs) == 400 and len(set(pairs)) == 20 and all(one != other for one, other in pairs)
    assert pairs == firsts(prepare(tmp_path, max_size=400)) != firsts(prepare(tmp_path, max_size=400, seed=1))
    assert len(prepare(tmp_path)) == 5


def test_too_few_personas_and_a_blank_greeting_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has 1 persona in this split; pairs need at least two different ones"):
        prepare(tmp_path, n_personas=1)
    with pytest.raises(DataError, match="no samples in split"):
        prepare(tmp_path, n_personas=1, order="sequence")
    with pytest.raises(DataError, match="greeting is blank"):
        prepare(tmp_path, greeting=" ")
