"""Dialogues of two people who get to know each other."""

from collections import Counter

import pytest

from rl4dialog.core.types import AGENT
from rl4dialog.data.pool import Data
from rl4dialog.features.personas import get_acquainted
from rl4dialog.features.personas.persona_ranking import PersonaRankingMetric
from rl4dialog.partners.scripted import FactsPartner
from rl4dialog.tasks.playing import play

DIALOGUES = get_acquainted.generate_dialogues("train", 300)
PERSONAS = ("partner_persona", "persona")


def sentences(text):
    parts = text.replace(" ?", " ?|").replace(" .", " .|").split("|")
    return [part.strip() for part in parts if part.strip()]


def facts_said(dialogue):
    known = {fact for topic in get_acquainted.TOPICS for fact in topic.facts}
    return [(turn.speaker, part) for turn in dialogue.turns for part in sentences(turn.text) if part in known]


def test_personas_have_five_facts_of_different_topics():
    personas = [get_acquainted.draw_persona(str(seed)) for seed in range(500)]
    assert {len(persona) for persona in personas} == {5}
    assert all(get_acquainted.goal_of(fact) == topic for persona in personas for topic, fact in persona.items())
    counts = Counter(fact for persona in personas for fact in persona.values())
    assert len(counts) == 96 and max(counts.values()) < 60, "26 are expected"


def test_speakers_are_true_to_their_personas():
    n_facts = 0
    for dialogue in DIALOGUES:
        for speaker, fact in facts_said(dialogue):
            assert fact in dialogue.meta_data[PERSONAS[speaker]]
            n_facts += 1
    assert n_facts > 300


def test_questions_are_answered_as_by_the_partner_facts():
    asked = set()
    for dialogue in DIALOGUES:
        for number, turn in enumerate(dialogue.turns[1:], start=1):
            *_, before = sentences(dialogue.turns[number - 1].text)
            if "?" in before:
                partner = FactsPartner(PERSONAS[turn.speaker])
                partner.reset(dialogue.meta_data, seed=0)
                assert sentences(turn.text)[0] == partner.reply([before])
                asked.add(before)
    assert asked == {question for topic in get_acquainted.TOPICS for question in topic.questions}


TOPICS = {topic.name for topic in get_acquainted.TOPICS}


@pytest.mark.parametrize("n_turns", [1, 4])
def test_every_utterance_has_its_goal(n_turns):
    found = Counter[str]()
    for dialogue in get_acquainted.generate_dialogues("test", 100, n_turns):
        goals = dialogue.meta_data["goals"]
        assert len(dialogue.turns) == len(goals) == 2 * n_turns + 1
        assert [turn.speaker for turn in dialogue.turns] == [i % 2 for i in range(len(goals))]
        for turn, goal in zip(dialogue.turns, goals, strict=True):
            topics = [get_acquainted.goal_of(part) for part in sentences(turn.text) if get_acquainted.goal_of(part)]
            if topics:
                assert goal == topics[-1]
            elif turn.text == get_acquainted.NOTHING:
                assert goal in TOPICS
            else:
                assert goal == "small_talk"
        found.update(goals)
    assert set(found) == {*TOPICS, "small_talk"} or n_turns == 1


POOL = get_acquainted.GetAcquainted.prepare("test", n_test=40)


def topics_of(name, number, n_turns=12):
    dialogue = play(POOL.players[name](), FactsPartner(), POOL[number][0], n_turns, seed=number)
    return [get_acquainted.goal_of(text) for text in dialogue.texts(AGENT)]


@pytest.mark.parametrize(("name", "least", "most"), [("one_topic", 1, 1), ("favorites", 1, 3), ("curious", 12, 12)])
def test_number_of_topics_is_that_of_the_player(name, least, most):
    found = [topics_of(name, number) for number in range(len(POOL))]
    assert None not in {topic for topics in found for topic in topics}
    assert all(least <= len(set(topics)) <= most for topics in found)
    assert len({topics[0] for topics in found}) > 5


def test_random_player_repeats_topics_and_curious_one_starts_again():
    assert any(len(set(topics_of("random", number))) < 12 for number in range(5))
    assert len(set(topics_of("curious", 0, 13))) == 12


def test_better_players_learn_more_about_the_partner():
    train, test = (get_acquainted.GetAcquainted.prepare(split, n_train=400, n_test=300) for split in ("train", "test"))
    metric = PersonaRankingMetric(Data({"train": train}, None).personas)
    found = []
    for player in test.players.values():
        talks = [play(player(), FactsPartner(), sample, 4, seed) for seed, (sample, _) in enumerate(test)]
        found.append(metric.compute(talks)["persona_ranking/p@1"][1])
    assert found == pytest.approx([0.27, 0.51, 0.72, 0.79], abs=0.08) and sorted(found) == found


def samples(split="train", **args):
    return [
        sample
        for sample, _ in get_acquainted.GetAcquainted.prepare(
            split, **{"n_train": 30, "n_val": 30, "n_test": 30, **args}
        )
    ]


def test_samples_are_whole_dialogues():
    for sample, dialogue in zip(samples(), get_acquainted.generate_dialogues("train", 30), strict=True):
        info = sample.meta_data or {}
        texts = [turn.text for turn in dialogue.turns]
        assert [*info["history"], *sample.references, *info["continuation"]] == texts
        assert sample.prompt_or_input_text == f"{' '.join(info['persona'])}<EOU>{texts[0]} <EOU>"
        assert len(info["persona"]) == len(info["partner_persona"]) == 5 and len(info["goals"]) == 9
