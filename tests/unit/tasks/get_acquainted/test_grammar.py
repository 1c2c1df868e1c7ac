"""Dialogues of two people who get to know each other."""

from __future__ import annotations

from collections import Counter

import pytest

from rl4dialog.core.types import Dialogue
from rl4dialog.partners.facts import FactsPartner
from rl4dialog.tasks.get_acquainted.datapool import generate_dialogues
from rl4dialog.tasks.get_acquainted.grammar import draw_persona
from rl4dialog.tasks.get_acquainted.topics import GOALS, NOTHING, TOPICS, goal_of

DIALOGUES = generate_dialogues("train", 300)
PERSONAS = ("partner_persona", "persona")


def sentences(text: str) -> list[str]:
    """The sentences of an utterance, with their final marks."""
    parts = text.replace(" ?", " ?|").replace(" .", " .|").split("|")
    return [part.strip() for part in parts if part.strip()]


def facts_said(dialogue: Dialogue) -> list[tuple[int, str]]:
    known = {fact for topic in TOPICS for fact in topic.facts}
    return [(turn.speaker, part) for turn in dialogue.turns for part in sentences(turn.text) if part in known]


def test_twelve_topics_have_eight_facts() -> None:
    assert len(TOPICS) == 12 and {len(topic.facts) for topic in TOPICS} == {8}
    assert len({fact for topic in TOPICS for fact in topic.facts}) == 96


def test_personas_have_five_facts_of_different_topics() -> None:
    personas = [draw_persona(str(seed)) for seed in range(500)]
    assert {len(persona) for persona in personas} == {5}
    assert all(goal_of(fact) == topic for persona in personas for topic, fact in persona.items())
    counts = Counter(fact for persona in personas for fact in persona.values())
    assert len(counts) == 96 and max(counts.values()) < 60, "26 are expected"


def test_speakers_are_true_to_their_personas() -> None:
    n_facts = 0
    for dialogue in DIALOGUES:
        for speaker, fact in facts_said(dialogue):
            assert fact in dialogue.meta_data[PERSONAS[speaker]]
            n_facts += 1
    assert n_facts > 300


def test_questions_are_answered_as_by_the_partner_facts() -> None:
    """Also that it fits all questions, as all are asked."""
    asked = set()
    for dialogue in DIALOGUES:
        for number, turn in enumerate(dialogue.turns[1:], start=1):
            *_, before = sentences(dialogue.turns[number - 1].text)
            if "?" in before:
                partner = FactsPartner(PERSONAS[turn.speaker])
                partner.reset(dialogue.meta_data, seed=0)
                assert sentences(turn.text)[0] == partner.reply([before])
                asked.add(before)
    assert asked == {question for topic in TOPICS for question in topic.questions}


def test_facts_partner_knows_every_fact_by_every_question() -> None:
    every_other = {"partner_persona": [topic.facts[3] for topic in TOPICS]}
    partner = FactsPartner()
    for topic in TOPICS:
        for fact in topic.facts:
            facts = [fact if goal_of(other) == topic.name else other for other in every_other["partner_persona"]]
            partner.reset({"partner_persona": facts}, seed=0)
            assert {partner.reply([question]) for question in topic.questions} == {fact}
    partner.reset({"partner_persona": [TOPICS[0].facts[0]]}, seed=0)
    assert partner.reply([TOPICS[1].questions[0]]) == NOTHING


@pytest.mark.parametrize("n_turns", [1, 4])
def test_every_utterance_has_its_goal(n_turns: int) -> None:
    found = Counter[str]()
    for dialogue in generate_dialogues("test", 100, n_turns):
        goals = dialogue.meta_data["goals"]
        assert len(dialogue.turns) == len(goals) == 2 * n_turns + 1
        assert [turn.speaker for turn in dialogue.turns] == [i % 2 for i in range(len(goals))]
        for turn, goal in zip(dialogue.turns, goals, strict=True):
            topics = [goal_of(part) for part in sentences(turn.text) if goal_of(part)]
            if topics:
                assert goal == topics[-1]
            elif turn.text == NOTHING:
                assert goal in GOALS[:-1]
            else:
                assert goal == "small_talk"
        found.update(goals)
    assert set(found) == set(GOALS) or n_turns == 1
