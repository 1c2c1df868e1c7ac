"""Rank of the true persona, by hand and in whole conversations."""

from __future__ import annotations

from typing import Any

import pytest
from judges import save_judge

from rl4dialog.catalog import MetricRegistry
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn
from rl4dialog.metrics.persona_ranking import PersonaRankingMetric, ranking_scores

PERSONAS = {
    "partner_persona": [(f"pet{i}", f"food{i}") for i in range(20)],
    "persona": [(f"job{i}",) for i in range(5)],
}
KEYS = ("p@1", "p@5", "r@5", "r@10", "mrr")


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([3, 1, 2], (1, 0.2, 1, 1, 1)),
        ([1, 3, 2, 0], (0, 0.2, 1, 1, 1 / 3)),
        ([0, *range(1, 7)], (0, 0, 0, 1, 1 / 7)),
        ([0, 0], (0.5, 0.2, 1, 1, 0.75)),
        ([0, 1, 0, 0, -1], (0, 0.2, 1, 1, (1 / 2 + 1 / 3 + 1 / 4) / 3)),
        ([0] * 20, (0.05, 0.05, 0.25, 0.5, sum(1 / rank for rank in range(1, 21)) / 20)),
        ([0, 1, 1, 1, 1e-12, 0, 0, 0, -1], (0, 2 / 5 / 5, 2 / 5, 1, sum(1 / rank for rank in range(4, 9)) / 5)),
    ],
)
def test_ranking_splits_ties(scores: list[float], expected: tuple[float, ...]) -> None:
    found = ranking_scores(scores)
    assert [found[key] for key in KEYS] == pytest.approx(expected)


def dialogue(*said: str, given: str = "hello", id: int = 0) -> Dialogue:
    turns = [Turn(given, PARTNER), *(Turn(text, AGENT if i % 2 == 0 else PARTNER) for i, text in enumerate(said))]
    return Dialogue(id, tuple(turns), meta_data={"partner_persona": ["pet3", "food3"], "persona": ["job2"]}, n_given=1)


def metric(**args: Any) -> PersonaRankingMetric:
    return MetricRegistry.get("persona_ranking", args, personas=PERSONAS.__getitem__)


def test_what_the_partner_said_decides() -> None:
    found = metric().compute([dialogue("pet3 ?", "pet3"), dialogue("pet3", "hm"), dialogue("x", "y", given="food3")])
    assert found["persona_ranking/p@1"][0] == pytest.approx([1, 0.05, 1])
    assert found["persona_ranking/mrr"][1] == pytest.approx((2 + sum(1 / n for n in range(1, 21)) / 20) / 3)
    assert found["persona_ranking/potential"][0] == pytest.approx([-0.5, -1, -0.5])


def test_what_the_agent_said_decides_for_its_side() -> None:
    chosen = metric(side="agent", n_distractors=4)
    assert chosen.compute([dialogue("i am job2", "job3"), dialogue("hm", "job2")])["persona_ranking/p@1"][0] == [1, 0.2]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"scorer": "likelihood"}, "scorer: likelihood needs a model_name"),
        ({"embedder": "hidden_mean"}, "scorer: embedding with embedder: hidden_mean needs a model_name"),
        ({"model_name": "x"}, "scorer: embedding with embedder: tfidf has no use for model_name"),
        ({"scorer": "likelihood", "model_name": "builtin/tiny-gpt2"}, "which has random weights"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        metric(**args)


def test_models_can_rank(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = save_judge(tmp_path_factory.mktemp("model"), template=None, architecture="llama")
    for args in ({"scorer": "likelihood"}, {"embedder": "hidden_mean"}):
        found = metric(model_name=folder, **args).compute([dialogue("pet3 ?", "pet3")])
        assert 0 < found["persona_ranking/mrr"][1] <= 1
