"""A seeded directed graph: random walks on it, shortest paths, and the exact mean returns of both.

A step costs 1. A walk ends at the goal, or has failed after ``max_steps`` steps. Returns are therefore between
``-max_steps`` and -1. To find shortest paths from random walks is a task of Chen et al. 2021 (arXiv 2106.01345).
"""

from __future__ import annotations

import random
import string
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rl4dialog.core.errors import DataError

NODES = string.ascii_lowercase
"""Names of nodes, in order. The first one is the goal."""
_MAX_DRAWS = 10_000


@dataclass(frozen=True)
class Graph:
    """A directed graph with a goal.

    Attributes:
        edges: By node, the nodes to which a step can lead; none from the goal, where walks end.
        goal: Node at which walks should end.
        max_steps: Number of steps after which a walk has failed.
    """

    edges: Mapping[str, Sequence[str]]
    goal: str
    max_steps: int

    @property
    def starts(self) -> list[str]:
        """Nodes at which walks can start: all but the goal."""
        return [node for node in self.edges if node != self.goal]

    def distances(self) -> dict[str, int]:
        """Return the length of the shortest path to the goal by node, by breadth-first search from the goal.

        Nodes from which the goal cannot be reached are missing.
        """
        found, queue = {self.goal: 0}, deque([self.goal])
        while queue:
            node = queue.popleft()
            for before, after in self.edges.items():
                if node in after and before not in found:
                    found[before] = found[node] + 1
                    queue.append(before)
        return found

    def optimal_returns(self) -> dict[str, float]:
        """Return the highest possible return by start node."""
        distances = self.distances()
        return {start: -float(min(distances.get(start, self.max_steps), self.max_steps)) for start in self.starts}

    def optimal_return(self) -> float:
        """Return the mean over all start nodes of the highest possible return."""
        returns = self.optimal_returns()
        return sum(returns.values()) / len(returns)

    def random_return(self) -> float:
        """Return the expected return of a random walk, as a mean over all start nodes.

        Computed exactly, by dynamic programming over the number of steps left: J_0 = 0, and J_n(node) is -1 plus the
        mean of J_{n-1} over the next nodes, with J_n(goal) = 0.
        """
        returns = dict.fromkeys(self.edges, 0.0)
        for _ in range(self.max_steps):
            returns = {
                node: 0.0 if node == self.goal else -1 + sum(returns[after] for after in nodes) / len(nodes)
                for node, nodes in self.edges.items()
            }
        return sum(returns[start] for start in self.starts) / len(self.starts)

    def random_walk(self, start: str, rng: random.Random) -> list[str]:
        """Walk at random until the goal or ``max_steps``; each next node is equally likely.

        Returns:
            The nodes after the start.
        """
        walk = [start]
        while walk[-1] != self.goal and len(walk) <= self.max_steps:
            nodes = self.edges[walk[-1]]
            walk.append(nodes[int(rng.random() * len(nodes))])  # only random() is the same in all versions of Python
        return walk[1:]


def draw_graph(n_nodes: int, edge_share: float, max_steps: int, seed: str) -> Graph:
    """Draw a graph in which every start node reaches the goal in fewer than ``max_steps`` steps.

    Each edge between two nodes exists with probability ``edge_share``. Graphs that violate the condition are drawn
    again.

    Args:
        n_nodes: Number of nodes, the goal included; at most 26.
        edge_share: Share of the possible edges.
        max_steps: Maximum number of steps of a walk.
        seed: Random seed.
    """
    rng, nodes = random.Random(seed), NODES[:n_nodes]
    goal = nodes[0]
    for _ in range(_MAX_DRAWS):
        edges = {node: [other for other in nodes if other != node and rng.random() < edge_share] for node in nodes}
        graph = Graph({**edges, goal: []}, goal, max_steps)
        distances = graph.distances()
        if len(distances) == n_nodes and max(distances.values()) < max_steps:
            return graph
    raise DataError(
        f"datapool 'random_walks': none of {_MAX_DRAWS} graphs of {n_nodes} nodes with edge_share {edge_share} has "
        f"paths of fewer than {max_steps} steps from every node to the goal; raise edge_share or max_steps"
    )
