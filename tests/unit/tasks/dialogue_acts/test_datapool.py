"""Dialogues of a task as samples."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from worlds import tiny_world

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Sample
from rl4dialog.tasks.dialogue_acts.agenda_partner import AgendaUserPartner
from rl4dialog.tasks.dialogue_acts.corpus import CorpusDialogue, CorpusTurn
from rl4dialog.tasks.dialogue_acts.database import Database
from rl4dialog.tasks.dialogue_acts.datapool import TaskDialogues
from rl4dialog.tasks.dialogue_acts.world import World, make_world
from rl4dialog.tasks.town_guide.world import town_guide


@cache
def town() -> World:
    return town_guide(n_dialogues=40)


def samples(split: str, **arguments: Any) -> list[Sample]:
    return [sample for sample, _ in TaskDialogues.prepare(split, town, **arguments)]


def test_each_goal_is_a_sample_with_the_whole_dialogue() -> None:
    found = samples("train")
    assert [sample.meta_data["goal"] for sample in found] == [goal.to_json() for goal in town().goals["train"]]
    for sample in found:
        (first,) = sample.meta_data["history"]
        assert sample.prompt_or_input_text == f"{first} <EOU>"
        assert len(sample.meta_data["continuation"]) % 2 == 0, "the agent's reply is the last utterance"
        for text in (first, *sample.meta_data["continuation"][::2]):
            assert " | " in text
        for reply in (*sample.references, *sample.meta_data["continuation"][1::2]):
            assert " | " not in reply and "  " not in reply


def test_replies_of_the_corpus_reach_the_goal() -> None:
    """Its placeholders are filled with the same values again, as long as the user says the same as in the corpus."""
    n_same = n_successes = 0
    for number, sample in enumerate(samples("train")):
        partner = AgendaUserPartner(town)
        partner.reset(sample.meta_data, number)
        partner.open()
        answers = [partner.reply([reply]) for reply in (*sample.references, *sample.meta_data["continuation"][1::2])]
        n_same += [a.text for a in answers[:-1]] == sample.meta_data["continuation"][::2]
        n_successes += partner.outcome()["success"] == 1
    assert n_successes >= n_same > 0


def test_goals_are_repeated_up_to_the_size() -> None:
    own = samples("test")
    found = samples("test", n_test=len(own) + 2)
    assert [sample.id for sample in found[len(own) :]] == [f"{own[0].id}_2", f"{own[1].id}_2"]
    assert [sample.meta_data for sample in found[len(own) :]] == [sample.meta_data for sample in own[:2]]
    assert [sample.id for sample in samples("test", n_test=3)] == [sample.id for sample in own[:3]]
    assert len(samples("train", n_test=3)) == len(town().goals["train"])


def test_corpus_without_words_gets_those_of_templates() -> None:
    (first, *_) = TaskDialogues.prepare("train", tiny_world)
    assert first[0].references == ["There is a restaurant called [restaurant_name]."]


def test_chat_template_is_a_format() -> None:
    def render(messages: Any, **_: Any) -> str:
        return "".join(f"<{message['role']}>{message['content']}" for message in messages) + "<assistant>"

    (sample, *_) = samples("test", format="chat_template", render_chat=render)
    assert sample.prompt_or_input_text == f"<user>{sample.meta_data['history'][0]}<assistant>"


def test_empty_database_is_an_error() -> None:
    tiny = tiny_world()
    entities = {name: tiny.database.entities(name) for name in ("restaurant", "taxi")}
    with pytest.raises(DataError, match="hungry: the database is empty in the domain 'train', which goals are about"):
        make_world("hungry", tiny.ontology, Database(tiny.ontology, entities), tiny.dialogues)


def test_dialogues_in_which_the_agent_says_nothing_are_an_error() -> None:
    tiny = tiny_world()
    silent = {
        split: [CorpusDialogue(d.id, (CorpusTurn(d.turns[0].user, ()),), d.goal) for d in each]
        for split, each in tiny.dialogues.items()
    }
    # The vocabulary needs some act.
    silent["train"].append(CorpusDialogue("spoken", tiny.dialogues["train"][0].turns))

    def world() -> World:
        return make_world("silent", tiny.ontology, tiny.database, silent)

    with pytest.raises(DataError, match=r"the val split of silent has no dialogue in words"):
        TaskDialogues.prepare("val", world)
