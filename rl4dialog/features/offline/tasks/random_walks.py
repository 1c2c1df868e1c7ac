"""Random walks on a seeded directed graph, from which shortest paths are to be learned, and the mean returns of both.

A step costs 1. A walk ends at the goal, or has failed after ``max_steps`` steps. Returns are therefore between
``-max_steps`` and -1. To find shortest paths from random walks is a task of Chen et al. 2021 (arXiv 2106.01345).
"""

from __future__ import annotations

import random
import string
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from pydantic import Field

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import DataError, shown
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Prompt, ReplyMarkup, Sample, Turn
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat
from rl4dialog.data.pool import TextGenPool, size_of

NODES = string.ascii_lowercase  # names of nodes, in order; the first one is the goal
_MAX_DRAWS = 10_000


@dataclass(frozen=True)
class Graph:
    """A directed graph with a goal."""

    # by node, the nodes to which a step can lead; none from the goal, where walks end
    edges: Mapping[str, Sequence[str]]
    goal: str  # node at which walks should end
    max_steps: int  # number of steps after which a walk has failed

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

    def random_walk(self, start: str, rng: random.Random) -> list[str]:
        """Walk at random until the goal or ``max_steps``; each next node is equally likely."""
        walk = [start]
        while walk[-1] != self.goal and len(walk) <= self.max_steps:
            nodes = self.edges[walk[-1]]
            walk.append(nodes[int(rng.random() * len(nodes))])  # only random() is the same in all versions of Python
        return walk[1:]


def draw_graph(n_nodes: int, edge_share: float, max_steps: int, seed: str) -> Graph:
    """Draw a graph in which every start node reaches the goal in fewer than ``max_steps`` steps.

    Each edge between two nodes exists with probability ``edge_share``. Graphs that violate this are drawn again.
    """
    rng, nodes = random.Random(seed), NODES[:n_nodes]
    goal = nodes[0]
    for _ in range(_MAX_DRAWS):
        edges = {node: [other for other in nodes if other != node and rng.random() < edge_share] for node in nodes}
        graph = Graph({**edges, goal: []}, goal, max_steps)
        distances = graph.distances()
        if len(distances) == n_nodes and max(distances.values()) < max_steps:
            return graph
    graphs = f"none of {_MAX_DRAWS} graphs of {n_nodes} nodes with edge_share {edge_share}"
    paths = f"paths of fewer than {max_steps} steps from every node to the goal"
    raise DataError(f"datapool 'random_walks': {graphs} has {paths}; raise edge_share or max_steps")


@dataclass(frozen=True)
class Walk:
    """A walk as far as it counts: until the goal, the first illegal step, or the last step that is allowed."""

    n_steps: int  # number of steps, without an illegal one
    reached: bool = False  # whether it reached the goal
    illegal: bool = False  # whether it was ended by a word that is no node to which an edge leads


@dataclass(frozen=True)
class WalkTask:
    """A start node on a graph, as the meta data of a sample describe it."""

    graph: Graph
    start: str  # node at which the walk starts

    def to_meta(self) -> dict[str, Any]:
        """Return the task as meta data of a sample, under the key ``walk``."""
        return {"walk": {"start": self.start, **asdict(self.graph)}}

    @classmethod
    def from_meta(cls, meta_data: Mapping[str, Any] | None, user: str) -> WalkTask:
        """Read the task from the meta data of a sample."""
        walk = (meta_data or {}).get("walk")
        if not isinstance(walk, Mapping) or walk.keys() != {"start", "edges", "goal", "max_steps"}:
            there = f"in meta_data['walk'], not {shown(walk)}; use the datapool random_walks"
            raise DataError(f"{user} needs samples with a walk's start, edges, goal and max_steps {there}")
        return cls(Graph(walk["edges"], walk["goal"], walk["max_steps"]), walk["start"])

    def read(self, text: str) -> Walk:
        """Read a walk: the nodes after the start, separated by whitespace. Words after its end do not matter."""
        node, n_steps = self.start, 0
        for word in text.split()[: self.graph.max_steps]:
            if word not in self.graph.edges[node]:
                return Walk(n_steps, illegal=True)
            node, n_steps = word, n_steps + 1
            if node == self.graph.goal:
                return Walk(n_steps, reached=True)
        return Walk(n_steps)

    def return_so_far(self, text: str) -> float:
        """Return the rewards of an unfinished reply: -1 per step, or at once the lowest return for an illegal one."""
        walk = self.read(text)
        return -float(self.graph.max_steps if walk.illegal else walk.n_steps)

    def return_of(self, text: str) -> float:
        """Return minus the number of steps to the goal, or the lowest return if it is not reached."""
        walk = self.read(text)
        return -float(walk.n_steps if walk.reached else self.graph.max_steps)

    def optimality(self, walk_return: float) -> float:
        """A return on a scale on which the lowest one is 0, and the highest possible one from this start 1."""
        lowest = -self.graph.max_steps
        return (walk_return - lowest) / (self.graph.optimal_returns()[self.start] - lowest)


class RandomWalks(TextGenPool):
    """Random walks on a seeded graph, from which shortest paths can be learned; without files or network.

    Args:
        n_nodes: Number of nodes, including the goal; they are named ``a``, the goal, to ``z``.
        edge_share: Probability of each possible edge.
        max_steps: Number of steps after which a walk has failed. Its return is then ``-max_steps``.
        graph_seed: Random seed of the graph.
    """

    has_rewards = True

    graph: Graph  # the graph, which is the same in all splits

    repeats_prompts = True

    @classmethod
    def prepare(
        cls,
        split: str,
        n_nodes: Annotated[int, Field(ge=2, le=len(NODES))] = 21,
        edge_share: Annotated[float, Field(gt=0, le=1)] = 0.1,
        max_steps: Annotated[int, Field(ge=2)] = 10,
        graph_seed: int = 2,
        n_train: Count = 1000,
        n_val: Count = 100,
        n_test: Count = 100,
        seed: int = 0,
        format: FormatName = "eou",
        render_chat: RenderChat | None = None,
    ) -> RandomWalks:
        """Draw the walks of one split.

        All splits have the same graph, and walk number ``i`` starts at start node ``i % (n_nodes - 1)``. A number of
        walks that is a multiple of ``n_nodes - 1`` therefore has all start nodes equally often.

        There is one sample per walk. Its prompt names the start node, and its reference is the walk: the nodes after
        the start, separated by spaces. In its meta data are ``history`` and, for the reward and the metric
        ``shortest_path``, the ``walk``'s start, edges, goal and max_steps.
        """
        n_walks = size_of(split, n_train, n_val, n_test)
        graph = draw_graph(n_nodes, edge_share, max_steps, f"random_walks/graph/{graph_seed}")
        dialogue_format = DialogueFormat(format, None, render_chat)
        prompts = {start: _prompt(dialogue_format, start) for start in graph.starts}
        meta_data = {start: {"history": [_question(start)], **WalkTask(graph, start).to_meta()} for start in prompts}
        rng, samples = random.Random(f"random_walks/{seed}/{split}"), []
        for number in range(n_walks):
            start = graph.starts[number % len(graph.starts)]
            walk = " ".join(graph.random_walk(start, rng))
            samples.append(Sample(f"{split}_{number}", prompts[start], [walk], meta_data[start]))
        pool = cls(samples, dialogue_format=dialogue_format)
        pool.graph = graph
        return pool

    def conversations(self) -> Iterator[Dialogue]:
        """Yield each walk as a conversation of one reply, with its return as reward."""
        for sample in self._samples:
            meta_data, (walk,) = sample.meta_data or {}, sample.references
            reward = WalkTask.from_meta(meta_data, "datapool 'random_walks'").return_of(walk)
            turns = (Turn(meta_data["history"][0], PARTNER), Turn(walk, AGENT, reward=reward))
            yield Dialogue(sample.id, turns, meta_data=meta_data, n_given=1, prompt=sample.prompt_or_input_text)


def _question(start: str) -> str:
    return f"from {start}"


def _prompt(dialogue_format: DialogueFormat, start: str) -> Prompt:
    prompt = dialogue_format.prompt([_question(start)])
    if dialogue_format.name != "eou":
        return prompt
    # With a space before it, the first node of a reply has the token that it has everywhere else.
    return Prompt(prompt.turns, prompt.opening, prompt.later_opening, prompt.agent_opening, ReplyMarkup(" "))
