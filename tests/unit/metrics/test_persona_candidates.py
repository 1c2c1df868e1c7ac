"""The personas among which the true one is to be found."""

from __future__ import annotations

from typing import Any

import pytest

from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.types import Dialogue
from rl4dialog.metrics.persona_candidates import Persona, PersonaCandidates

PERSONAS = [tuple(f"my {topic} is {i}" for topic in ("pet", "food", "home")) for i in range(30)]
TRUE = PERSONAS[3]


def candidates(n_distractors: int = 9, hard: int = 0, seed: int = 0, personas: Any = PERSONAS) -> PersonaCandidates:
    known = {"partner_persona": personas, "persona": []}
    return PersonaCandidates(known.__getitem__, "partner", n_distractors, hard, seed, "it")


def of(chosen: PersonaCandidates, id: int = 0, true: Persona = TRUE) -> list[Persona]:
    return chosen(Dialogue(id, (), meta_data={"partner_persona": [*true]}))


def test_true_persona_comes_first_and_others_differ() -> None:
    for id in range(40):
        first, *others = of(candidates(), id)
        assert first == TRUE and len(others) == 9 and len({TRUE, *others}) == 10 and {*others} < {*PERSONAS}


def test_the_same_conversation_has_the_same_candidates() -> None:
    assert of(candidates()) == of(candidates())
    assert of(candidates()) != of(candidates(), id=1) != of(candidates(seed=1), id=1)
    drawn = {persona for id in range(100) for persona in of(candidates(), id)}
    assert drawn == {*PERSONAS}


@pytest.mark.parametrize("hard", [1, 2])
def test_hard_candidates_share_facts_and_have_no_second_fact_of_their_topics(hard: int) -> None:
    for id in range(40):
        first, *others = of(candidates(hard=hard), id)
        assert all(len({*first} & {*other}) == hard and len(other) == 3 for other in others)
        assert all(len({fact.split()[1] for fact in other}) == 3 for other in others)
    shared = {fact for id in range(40) for other in of(candidates(hard=hard), id)[1:] for fact in {*other} & {*TRUE}}
    assert shared == {*TRUE}


def test_a_persona_in_another_order_is_no_distractor() -> None:
    chosen = candidates(n_distractors=1, personas=[TRUE, TRUE[::-1], PERSONAS[4]])
    assert of(chosen) == [TRUE, PERSONAS[4]]


def test_unfit_data_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"n_distractors: 30 needs at least 31 different personas; .* has 30"):
        candidates(n_distractors=30)
    with pytest.raises(ConfigError, match="hard: 3 facts in common leave no difference from a persona of 3 facts"):
        candidates(hard=3)
    with pytest.raises(DataError, match=r"meta_data\['partner_persona'\], which the datapools get_acquainted"):
        candidates(personas=[])
    with pytest.raises(DataError, match="sample 'x' has only persona"):
        candidates()(Dialogue("x", (), meta_data={"persona": ["a"]}))
    with pytest.raises(DataError, match="only 0 personas differ from that of sample 0; lower n_distractors: 1"):
        of(candidates(n_distractors=1, personas=[("a",), ("b",)]), true=("a", "b"))
