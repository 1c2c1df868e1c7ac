"""Measures of walks."""

from __future__ import annotations

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.metrics.shortest_path import ShortestPathMetric
from rl4dialog.tasks.random_walks.datapool import RandomWalks
from rl4dialog.tasks.random_walks.graph import Graph
from rl4dialog.tasks.random_walks.walks import WalkTask

META = WalkTask(Graph({"a": [], "b": ["a"], "c": ["b", "d"], "d": ["c"]}, "a", 6), "c").to_meta()


def test_scores_of_walks_made_by_hand() -> None:
    texts = ["b a", "d c b a", "d c d c d c", "d b", "", "d"]
    found = ShortestPathMetric().compute(["from c"] * 6, texts, [[]] * 6, [META] * 6)
    assert found == {
        "shortest_path/return": ([-2, -4, -6, -6, -6, -6], -5),
        "shortest_path/optimality": ([1, 0.5, 0, 0, 0, 0], 0.25),
        "shortest_path/reached": ([1, 1, 0, 0, 0, 0], pytest.approx(1 / 3)),
        "shortest_path/illegal": ([0, 0, 0, 1, 0, 0], pytest.approx(1 / 6)),
    }


def test_references_of_the_datapool_have_its_logged_return() -> None:
    pool = RandomWalks.prepare("test")
    rows = [(s.prompt_or_input_text, s.references[0], s.references, s.meta_data) for s, _ in pool]
    found = ShortestPathMetric().compute(*map(list, zip(*rows, strict=True)))
    assert found["shortest_path/return"][0] == [dialogue.turns[1].reward for dialogue in pool.conversations()]
    assert found["shortest_path/illegal"][1] == 0


def test_shortest_paths_are_optimal() -> None:
    pool = RandomWalks.prepare("test")
    graph, distances = pool.graph, pool.graph.distances()
    prompts, texts, metas = [], [], []
    for start in graph.starts:
        walk = [start]
        while walk[-1] != "a":
            walk.append(min(graph.edges[walk[-1]], key=lambda node: distances[node]))
        prompts.append(start)
        texts.append(" ".join(walk[1:]))
        metas.append(WalkTask(graph, start).to_meta())
    found = ShortestPathMetric().compute(prompts, texts, [[]] * 20, metas)
    assert found["shortest_path/optimality"] == ([1] * 20, 1)
    assert found["shortest_path/return"][1] == graph.optimal_return()


def test_samples_of_other_datapools_are_an_error() -> None:
    for infos in (None, [{}] * 2):
        with pytest.raises(DataError, match="metric 'shortest_path' needs samples"):
            ShortestPathMetric().compute(["x"] * 2, ["b a"] * 2, [[]] * 2, infos)
