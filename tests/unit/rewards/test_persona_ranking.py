"""Reward for what is learned about a persona."""

from __future__ import annotations

import math
from typing import Any

import pytest
from judges import save_judge

from rl4dialog.catalog import RewardFunctionRegistry
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn
from rl4dialog.metrics.persona_ranking import PersonaRankingMetric
from rl4dialog.rewards.persona_ranking import PersonaRankingReward

PERSONAS = {
    "partner_persona": [(f"pet{i}", f"food{i}") for i in range(20)],
    "persona": [(f"job{i}",) for i in range(5)],
}


def reward(**args: Any) -> PersonaRankingReward:
    return RewardFunctionRegistry.get("persona_ranking", args, personas=PERSONAS.__getitem__)


def dialogue(*said: str, given: tuple[str, ...] = ("hello",)) -> Dialogue:
    turns = [Turn(text, PARTNER) for text in given]
    turns += [Turn(text, AGENT if i % 2 == 0 else PARTNER) for i, text in enumerate(said)]
    info = {"partner_persona": ["pet3", "food3"], "persona": ["job2"]}
    return Dialogue(0, tuple(turns), meta_data=info, n_given=len(given))


def paid(chosen: PersonaRankingReward, said: Dialogue) -> Any:
    (found,) = chosen([said], [True])
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_judge(tmp_path_factory.mktemp("model"), template=None, architecture="llama")


def test_each_new_fact_is_paid_in_its_turn() -> None:
    said = dialogue("?", "pet3", "?", "hm", "?", "pet3", "?", "food3")
    # The margin of the pairs with a fact that was told is reached: half of them for each fact.
    assert paid(reward(), said) == pytest.approx([0.5, 0, 0, 0.5])
    assert paid(reward(shaping="end"), said) == pytest.approx(1.0)


def test_what_was_said_before_the_first_turn_is_not_paid() -> None:
    assert paid(reward(), dialogue("?", "pet3", "?", "food3", given=("pet3",))) == pytest.approx([0, 0.5])


def test_nothing_is_paid_before_the_end() -> None:
    said = dialogue("?", "pet3")
    assert reward()([said, said], [False, True]) == [0.0, pytest.approx([0.5])]


def test_longer_conversations_that_tell_nothing_more_earn_nothing_more() -> None:
    short, chosen = dialogue("?", "pet3"), reward()
    long = dialogue("?", "pet3", *("?", "hm", "pet3 ?", "pet3") * 5)
    assert sum(paid(chosen, long)) == pytest.approx(sum(paid(chosen, short)))


@pytest.mark.parametrize("scorer", ["tfidf", "hidden_mean", "likelihood"])
@pytest.mark.parametrize("side", ["partner", "agent"])
def test_rewards_add_up_to_the_change_of_the_potential(folder: str, scorer: str, side: str) -> None:
    args: dict[str, Any] = {"side": side, "n_distractors": 4}
    if scorer != "tfidf":
        args |= {"model_name": folder, **({"scorer": scorer} if scorer == "likelihood" else {"embedder": scorer})}
    said = dialogue("you are job2 ?", "pet3 , hm", "I am job1", "food3", "Fine. I ?", "you")
    by_turn, metric = paid(reward(**args), said), PersonaRankingMetric(PERSONAS.__getitem__, **args)
    before, after = (metric.compute([each])["persona_ranking/potential"][1] for each in (dialogue(), said))
    assert len(by_turn) == 3 and sum(by_turn) == pytest.approx(after - before, abs=1e-5) != 0
    assert paid(reward(shaping="end", **args), said) == pytest.approx(sum(by_turn))
    if scorer == "likelihood" and side == "agent":
        assert before == pytest.approx(-math.log(5))


def test_every_turn_is_never_positive_and_adds_up() -> None:
    short = paid(reward(shaping="every_turn"), dialogue("?", "pet3"))
    long = paid(reward(shaping="every_turn"), dialogue("?", "pet3", "?", "hm", "?", "hm"))
    # Two facts, and 19 blocks of two false ones: distances 0 and the root of 2 for the true ones.
    per_block = max(0 - math.sqrt(2) + 1, 0) + 1
    assert short == pytest.approx([-19 * per_block]) and long == pytest.approx(short * 3)
    with pytest.raises(ConfigError, match="every_turn compares embeddings: use scorer: embedding"):
        reward(shaping="every_turn", scorer="likelihood", model_name=".")


def test_partner_is_needed_for_its_side_only() -> None:
    assert reward().needs_partner and not reward(side="agent", n_distractors=4).needs_partner
    with pytest.raises(ConfigError, match="shaping"):
        RewardFunctionRegistry.check("persona_ranking", {"shaping": "each_turn"})
