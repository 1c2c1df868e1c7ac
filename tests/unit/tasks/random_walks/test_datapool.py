"""The datapool random_walks: walks as samples and as conversations."""

import statistics

import pytest

from rl4dialog.core.types import AGENT, PARTNER
from rl4dialog.tasks.random_walks.datapool import RandomWalks
from rl4dialog.tasks.random_walks.graph import WalkTask
from rl4dialog.text.prompts import encode_prompt, encode_reply
from rl4dialog.text.tokenizer import build_tokenizer
from rl4dialog.training.building.texts import texts_of


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
    assert graph.random_return() == pytest.approx(-6.932, abs=5e-4)
    assert graph.optimal_return() == -2.35


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
    assert abs(statistics.mean(returns) - pool.graph.random_return()) < 4 * standard_error < 0.25


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
    assert getattr(pool[0][0].prompt_or_input_text, "reply_opening", None) == ""
