"""Reading of a walk from a reply, and its return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rl4dialog.core.errors import DataError, shown
from rl4dialog.tasks.random_walks.graph import Graph


@dataclass(frozen=True)
class Walk:
    """A walk as far as it counts: until the goal, the first illegal step, or the last step that is allowed.

    Attributes:
        n_steps: Number of steps, without an illegal one.
        reached: Whether it reached the goal.
        illegal: Whether it was ended by a word that is no node to which an edge leads.
    """

    n_steps: int
    reached: bool = False
    illegal: bool = False


@dataclass(frozen=True)
class WalkTask:
    """A start node on a graph, as the meta data of a sample describe it.

    Attributes:
        graph: The graph.
        start: Node at which the walk starts.
    """

    graph: Graph
    start: str

    def to_meta(self) -> dict[str, Any]:
        """Return the task as meta data of a sample, under the key ``walk``."""
        return {"walk": {"start": self.start, **asdict(self.graph)}}

    @classmethod
    def from_meta(cls, meta_data: Mapping[str, Any] | None, user: str) -> WalkTask:
        """Read the task from the meta data of a sample.

        Args:
            meta_data: The meta data.
            user: What needs the task, for the message.
        """
        walk = (meta_data or {}).get("walk")
        if not isinstance(walk, Mapping) or walk.keys() != {"start", "edges", "goal", "max_steps"}:
            raise DataError(
                f"{user} needs samples with a walk's start, edges, goal and max_steps in meta_data['walk'], not "
                f"{shown(walk)}; use the datapool random_walks"
            )
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

    def optimal_return(self) -> float:
        """Return the highest possible return from this start."""
        return self.graph.optimal_returns()[self.start]
