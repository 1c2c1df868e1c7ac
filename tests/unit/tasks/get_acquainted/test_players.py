"""Scripted players who ask about their partner."""

from __future__ import annotations

import pytest

from rl4dialog.core.types import AGENT
from rl4dialog.data.run_data import Data
from rl4dialog.partners.facts import FactsPartner
from rl4dialog.scores.persona_ranking import PersonaRankingMetric
from rl4dialog.tasks.get_acquainted.datapool import GetAcquainted
from rl4dialog.tasks.get_acquainted.topics import goal_of
from rl4dialog.tasks.playing import play

POOL = GetAcquainted.prepare("test", n_test=40)


def topics_of(name: str, number: int, n_turns: int = 12) -> list[str | None]:
    dialogue = play(POOL.players[name](), FactsPartner(), POOL[number][0], n_turns, seed=number)
    return [goal_of(text) for text in dialogue.texts(AGENT)]


@pytest.mark.parametrize(("name", "least", "most"), [("one_topic", 1, 1), ("favorites", 1, 3), ("curious", 12, 12)])
def test_number_of_topics_is_that_of_the_player(name: str, least: int, most: int) -> None:
    found = [topics_of(name, number) for number in range(len(POOL))]
    assert None not in {topic for topics in found for topic in topics}
    assert all(least <= len(set(topics)) <= most for topics in found)
    assert len({topics[0] for topics in found}) > 5


def test_random_player_repeats_topics_and_curious_one_starts_again() -> None:
    assert any(len(set(topics_of("random", number))) < 12 for number in range(5))
    assert len(set(topics_of("curious", 0, 13))) == 12


def test_better_players_learn_more_about_the_partner() -> None:
    """As in docs/personas.md, where 1,000 conversations were measured."""
    train, test = (GetAcquainted.prepare(split, n_train=400, n_test=300) for split in ("train", "test"))
    metric = PersonaRankingMetric(Data({"train": train}, None).personas)
    found = []
    for player in test.players.values():
        talks = [play(player(), FactsPartner(), sample, 4, seed) for seed, (sample, _) in enumerate(test)]
        found.append(metric.compute(talks)["persona_ranking/p@1"][1])
    assert found == pytest.approx([0.27, 0.51, 0.72, 0.79], abs=0.08) and sorted(found) == found
