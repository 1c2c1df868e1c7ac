"""Random walks on a graph: shortest paths, exact returns, and walks as samples and as conversations."""

import statistics

import numpy as np
import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import AGENT, PARTNER, ReplyMarkup
from rl4dialog.features.offline.tasks.random_walks import Graph, RandomWalks, Walk, WalkTask, draw_graph
from rl4dialog.text.prompts import encode_prompt, encode_reply
from rl4dialog.text.tokenizer import build_tokenizer
from rl4dialog.training.building.texts import texts_of

# a is the goal; b -> a, c -> b or d, d -> c; e leads only to itself through f.
SMALL = Graph({"a": [], "b": ["a"], "c": ["b", "d"], "d": ["c"], "e": ["f"], "f": ["e"]}, "a", 4)
GRAPHS = [draw_graph(n, share, 10, f"test/{n}/{share}") for n in (2, 5, 21, 26) for share in (0.15, 0.4)]


def matrix(graph):
    nodes = list(graph.edges)
    found = np.zeros((len(nodes), len(nodes)))
    for row, after in enumerate(graph.edges.values()):
        for node in after:
            found[row, nodes.index(node)] = 1 / len(after)
    found[nodes.index(graph.goal), nodes.index(graph.goal)] = 1
    return found


@pytest.mark.parametrize("graph", [SMALL, *GRAPHS])
def test_distances_equal_those_of_floyd_and_warshall(graph):
    nodes = list(graph.edges)
    lengths = np.where(matrix(graph) > 0, 1.0, np.inf)
    np.fill_diagonal(lengths, 0)
    for middle in range(len(nodes)):
        lengths = np.minimum(lengths, lengths[:, middle : middle + 1] + lengths[middle : middle + 1, :])
    to_goal = lengths[:, nodes.index(graph.goal)]
    expected = {node: length for node, length in zip(nodes, to_goal, strict=True) if np.isfinite(length)}
    assert graph.distances() == expected
    assert [*graph.optimal_returns().values()] == (-np.minimum(to_goal[1:], graph.max_steps)).tolist()


def test_drawn_graph_has_its_share_of_edges_and_reaches_the_goal():
    graphs = [draw_graph(20, 0.3, 10, f"test/{number}") for number in range(50)]
    shares = [sum(map(len, graph.edges.values())) / (19 * 19) for graph in graphs]
    assert statistics.mean(shares) == pytest.approx(0.3, abs=0.01)
    for graph in graphs:
        assert graph.goal == "a" and graph.edges["a"] == [] and list(graph.edges) == list("abcdefghijklmnopqrst")
        assert all(node not in after for node, after in graph.edges.items())
        assert max(graph.distances().values()) < 10 and len(graph.distances()) == 20
    assert len({repr(graph) for graph in graphs}) == 50
    assert draw_graph(20, 0.3, 10, "test/0") == graphs[0]


def test_impossible_graph_is_an_error_that_names_the_arguments():
    message = (
        "none of 10000 graphs of 20 nodes with edge_share 0.001 has paths of fewer than 10 steps .* raise edge_share"
    )
    with pytest.raises(DataError, match=message):
        draw_graph(20, 0.001, 10, "test")


# a is the goal; b -> a, c -> b or d, d -> c.
TASK = WalkTask(Graph({"a": [], "b": ["a"], "c": ["b", "d"], "d": ["c"]}, "a", 5), "c")


@pytest.mark.parametrize(
    ("text", "walk", "so_far", "whole"),
    [
        ("b a", Walk(2, reached=True), -2, -2),
        (" b   a ", Walk(2, reached=True), -2, -2),
        ("b a x y", Walk(2, reached=True), -2, -2),
        ("d c b a", Walk(4, reached=True), -4, -4),
        ("d c d c b", Walk(5), -5, -5),
        ("d c d c b a", Walk(5), -5, -5),
        ("d c d c x", Walk(4, illegal=True), -5, -5),
        ("d c d c b x", Walk(5), -5, -5),
        ("", Walk(0), 0, -5),
        ("d", Walk(1), -1, -5),
        ("d b", Walk(1, illegal=True), -5, -5),
        ("c", Walk(0, illegal=True), -5, -5),
        ("a", Walk(0, illegal=True), -5, -5),
        ("ba", Walk(0, illegal=True), -5, -5),
        ("B a", Walk(0, illegal=True), -5, -5),
        ("b, a", Walk(0, illegal=True), -5, -5),
    ],
)
def test_walk_is_read_until_its_end(text, walk, so_far, whole):
    assert TASK.read(text) == walk
    assert TASK.return_so_far(text) == so_far
    assert TASK.return_of(text) == whole


@pytest.mark.parametrize(
    ("meta_data", "there"),
    [(None, "None"), ({}, "None"), ({"walk": "b a"}, "'b a'"), ({"walk": {"start": "b"}}, "{'start': 'b'}")],
)
def test_other_samples_are_an_error_that_names_the_user(meta_data, there):
    message = f"reward 'x' needs samples with a walk's start, .* not {there}; use the datapool random_walks"
    with pytest.raises(DataError, match=message):
        WalkTask.from_meta(meta_data, "reward 'x'")


def samples(split="train", **args):
    return [sample for sample, _ in RandomWalks.prepare(split, **args)]


def test_samples_are_walks_from_the_node_in_the_prompt():
    pool = RandomWalks.prepare("train")
    assert len({sample.id for sample, _ in pool}) == 1000
    for sample, _ in pool:
        task = WalkTask.from_meta(sample.meta_data, "test")
        assert task.graph == pool.graph
        assert sample.prompt_or_input_text == f"from {task.start} <EOU>"
        assert sample.meta_data["history"] == [f"from {task.start}"]
        (text,) = sample.references
        walk = task.read(text)
        assert not walk.illegal and walk.n_steps == len(text.split())
        assert walk.reached or walk.n_steps == 10


def test_default_data_are_far_from_the_optimum():
    graph = RandomWalks.prepare("train").graph
    chain, not_there = matrix(graph), np.array([float(node != graph.goal) for node in graph.edges])
    distribution, of_random_walks = not_there / not_there.sum(), 0.0
    for _ in range(graph.max_steps):
        of_random_walks -= distribution @ not_there
        distribution = distribution @ chain
    assert of_random_walks == pytest.approx(-6.932, abs=5e-4)
    assert statistics.mean(graph.optimal_returns().values()) == -2.35


def test_conversations_pay_the_return_of_the_walk():
    pool = RandomWalks.prepare("train", n_train=4000)
    dialogues = list(pool.conversations())
    assert [dialogue.id for dialogue in dialogues] == [sample.id for sample, _ in pool]
    for dialogue, (sample, _) in zip(dialogues, pool, strict=True):
        question, walk = dialogue.turns
        assert (question.speaker, question.text, question.reward) == (PARTNER, sample.meta_data["history"][0], 0)
        assert (walk.speaker, walk.text) == (AGENT, sample.references[0])
        assert walk.reward == -len(walk.text.split())
        assert dialogue.n_given == 1 and dialogue.terminated and dialogue.meta_data == sample.meta_data
    returns = [dialogue.turns[1].reward for dialogue in dialogues]
    standard_error = statistics.stdev(returns) / len(returns) ** 0.5
    assert abs(statistics.mean(returns) + 6.932) < 4 * standard_error < 0.25


def test_every_node_is_the_same_token_everywhere():
    data = samples()
    corpus = [text for sample in data for text in texts_of(sample)]
    tokenizer = build_tokenizer("builtin/tiny-gpt2", vocab_size=300, corpus=corpus, turn_marker="<EOU>")
    for sample in data:
        prompt = encode_prompt(tokenizer, sample.prompt_or_input_text, None, end_of_turn="<EOU>")
        reply = encode_reply(tokenizer, sample.references[0], "<EOU>", prompt=sample.prompt_or_input_text)
        tokens = [token.removeprefix("Ġ") for token in tokenizer.convert_ids_to_tokens(prompt + reply)]
        assert tokens == [*sample.meta_data["history"][0].split(), "<EOU>", *sample.references[0].split(), "<EOU>"]
        assert [prompt[1], *reply[:-1]] == [
            *tokenizer(" " + " ".join([tokens[1], sample.references[0]]), add_special_tokens=False)["input_ids"]
        ]


def test_chat_template_has_no_space_before_the_reply():
    pool = RandomWalks.prepare("val", format="chat_template", render_chat=lambda messages: messages[-1]["content"])
    assert getattr(pool[0][0].prompt_or_input_text, "reply", None) == ReplyMarkup()
