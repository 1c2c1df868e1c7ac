"""The graph: shortest paths, and the exact returns of random walks."""

from __future__ import annotations

import random
import statistics

import numpy as np
import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.tasks.random_walks.graph import Graph, draw_graph

# a is the goal; b -> a, c -> b or d, d -> c; e leads only to itself through f.
SMALL = Graph({"a": [], "b": ["a"], "c": ["b", "d"], "d": ["c"], "e": ["f"], "f": ["e"]}, "a", 4)
GRAPHS = [draw_graph(n, share, 10, f"test/{n}/{share}") for n in (2, 5, 21, 26) for share in (0.15, 0.4)]


def matrix(graph: Graph) -> np.ndarray:
    """Transition matrix of a random walk, which stays at the goal."""
    nodes = list(graph.edges)
    found = np.zeros((len(nodes), len(nodes)))
    for row, after in enumerate(graph.edges.values()):
        for node in after:
            found[row, nodes.index(node)] = 1 / len(after)
    found[nodes.index(graph.goal), nodes.index(graph.goal)] = 1
    return found


@pytest.mark.parametrize("graph", [SMALL, *GRAPHS])
def test_distances_equal_those_of_floyd_and_warshall(graph: Graph) -> None:
    nodes = list(graph.edges)
    lengths = np.where(matrix(graph) > 0, 1.0, np.inf)
    np.fill_diagonal(lengths, 0)
    for middle in range(len(nodes)):
        lengths = np.minimum(lengths, lengths[:, middle : middle + 1] + lengths[middle : middle + 1, :])
    to_goal = lengths[:, nodes.index(graph.goal)]
    expected = {node: length for node, length in zip(nodes, to_goal, strict=True) if np.isfinite(length)}
    assert graph.distances() == expected
    assert graph.optimal_return() == pytest.approx(-np.minimum(to_goal[1:], graph.max_steps).mean())


def test_optimal_returns_of_a_small_graph() -> None:
    assert SMALL.starts == ["b", "c", "d", "e", "f"]
    assert SMALL.optimal_returns() == {"b": -1, "c": -2, "d": -3, "e": -4, "f": -4}


@pytest.mark.parametrize("graph", [SMALL, *GRAPHS])
def test_random_return_equals_that_of_the_markov_chain(graph: Graph) -> None:
    """A step is paid for each time at which the walk is not yet at the goal."""
    chain, not_there = matrix(graph), np.array([float(node != graph.goal) for node in graph.edges])
    distribution, expected = not_there / not_there.sum(), 0.0
    for _ in range(graph.max_steps):
        expected -= distribution @ not_there
        distribution = distribution @ chain
    assert graph.random_return() == pytest.approx(expected)


def test_mean_of_random_walks_is_the_random_return() -> None:
    graph, rng = draw_graph(21, 0.1, 10, "test"), random.Random(0)
    returns = [-len(graph.random_walk(start, rng)) for start in graph.starts * 500]
    standard_error = statistics.stdev(returns) / len(returns) ** 0.5
    assert abs(statistics.mean(returns) - graph.random_return()) < 4 * standard_error < 0.15


def test_random_walks_follow_edges_to_the_goal_or_the_limit() -> None:
    graph, rng = draw_graph(21, 0.1, 6, "test"), random.Random(0)
    ends = set()
    for start in graph.starts * 50:
        walk = graph.random_walk(start, rng)
        assert all(after in graph.edges[node] for node, after in zip([start, *walk], walk, strict=False))
        assert "a" not in walk[:-1] and (len(walk) == 6 or walk[-1] == "a")
        ends.add(walk[-1] == "a")
    assert ends == {True, False}


def test_drawn_graph_has_its_share_of_edges_and_reaches_the_goal() -> None:
    graphs = [draw_graph(20, 0.3, 10, f"test/{number}") for number in range(50)]
    shares = [sum(map(len, graph.edges.values())) / (19 * 19) for graph in graphs]
    assert statistics.mean(shares) == pytest.approx(0.3, abs=0.01)
    for graph in graphs:
        assert graph.goal == "a" and graph.edges["a"] == [] and list(graph.edges) == list("abcdefghijklmnopqrst")
        assert all(node not in after for node, after in graph.edges.items())
        assert max(graph.distances().values()) < 10 and len(graph.distances()) == 20
    assert len({repr(graph) for graph in graphs}) == 50
    assert draw_graph(20, 0.3, 10, "test/0") == graphs[0]


def test_impossible_graph_is_an_error_that_names_the_arguments() -> None:
    message = (
        "none of 10000 graphs of 20 nodes with edge_share 0.001 has paths of fewer than 10 steps .* raise edge_share"
    )
    with pytest.raises(DataError, match=message):
        draw_graph(20, 0.001, 10, "test")
