"""The datapool: random walks, each as a reply to the name of its start node."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from rl4dialog.core.arguments import Count
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Prompt, Sample, Turn
from rl4dialog.data.dialogue_format import DialogueFormat, FormatName, RenderChat
from rl4dialog.data.pool import TextGenPool, size_of
from rl4dialog.tasks.random_walks.graph import NODES, Graph, WalkTask, draw_graph


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

        Returns:
            A pool with one sample per walk. The prompt names the start node, and the reference is the walk: the nodes
            after the start, separated by spaces. In the meta data are ``history`` and, for the reward and the metric
            ``shortest_path``, the ``walk``'s start, edges, goal and max_steps.

        Raises:
            DataError: If no graph is found.
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
    return Prompt(prompt.turns, prompt.opening, prompt.later_opening, prompt.agent_opening, reply_opening=" ")
