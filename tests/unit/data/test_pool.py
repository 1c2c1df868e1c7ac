"""The datapool interface and its checks, the samples of a run, and the toy pools."""

import inspect
import random

import pytest

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import AGENT, PARTNER, SYSTEM_KEY, Dialogue, Sample, Turn
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.data.pool import Data, TextGenPool, check_split, hub_split
from rl4dialog.data.toy_pools import DummyPool, RandomNumbers
from rl4dialog.scores.rules import increasing_numbers_score


def make_pool(n_samples):
    return TextGenPool([Sample(index, f"prompt {index}", [f"reply {index}"]) for index in range(n_samples)])


def test_pool_is_a_sequence_of_weighted_samples_drawn_with_the_global_seed():
    pool = make_pool(3)
    assert [(sample.id, weight) for sample, weight in pool] == [(0, 1.0), (1, 1.0), (2, 1.0)]
    assert (len(pool), pool[1][0].id, pool[-1][0].id) == (3, 1, 2)
    with pytest.raises(IndexError):
        pool[3]
    pool = make_pool(4)
    random.seed(5)
    first = [pool.sample().id for _ in range(50)]
    random.seed(5)
    assert [pool.sample().id for _ in range(50)] == first
    assert set(first) == {0, 1, 2, 3}
    pool = TextGenPool([Sample(index, "", [""]) for index in range(4)], [1, 2, 0.001, 3])
    assert pool[1][1] == 2.0
    assert [weight for _, weight in pool.split([0.5, 0.5])[1]] == [0.001, 3.0]
    random.seed(0)
    drawn = [pool.sample().id for _ in range(600)]
    assert drawn.count(2) < 10 < drawn.count(0) < drawn.count(1) < drawn.count(3)


@pytest.mark.parametrize("weights", [[1.0], [1.0, 0.0], [1.0, -1.0], [1.0, float("nan")], [1.0, float("inf")]])
def test_weights_must_be_positive_and_as_many_as_samples(weights):
    with pytest.raises(DataError, match="2 samples need as many positive weights"):
        TextGenPool([Sample(0, "", [""]), Sample(1, "", [""])], weights)


@pytest.mark.parametrize("ratios, sizes", [([0.8, 0.2], [8, 2]), ([1 / 3, 1 / 3, 1 / 3], [3, 4, 3]), ([0.5], [5])])
def test_split_cuts_consecutive_parts_without_losing_samples(ratios, sizes):
    parts = make_pool(10).split(ratios)
    assert [len(part) for part in parts] == sizes
    assert [sample.id for part in parts for sample, _ in part] == list(range(sum(sizes)))


@pytest.mark.parametrize("ratios", [[0.7, 0.7], [-0.1, 0.5]])
def test_split_refuses_impossible_ratios(ratios):
    with pytest.raises(DataError, match="sum to at most 1"):
        make_pool(10).split(ratios)


def test_splits_have_three_names():
    assert [hub_split(split) for split in ("train", "val", "test")] == ["train", "validation", "test"]
    for split in ("validation", "dev", "", None):
        with pytest.raises(DataError, match=r"unknown split .*train, val, test"):
            check_split(split)
    with pytest.raises(DataError, match="did you mean 'train'"):
        check_split("trian")


@pytest.mark.parametrize("pool_id", DataPoolRegistry.ids())
def test_every_pool_of_the_catalog_takes_a_split(pool_id):
    assert issubclass(DataPoolRegistry.resolve(pool_id), TextGenPool)
    assert "split" in inspect.signature(DataPoolRegistry.resolve(pool_id).prepare).parameters
    arguments = [argument.partition("=")[0] for argument in DataPoolRegistry.describe(pool_id)[1].split(", ")]
    assert "split" not in arguments


def test_conversations_are_the_references_by_default():
    history = {"history": ["a", "b", "c"], "topic": "x"}
    prompt = DialogueFormat("eou", None).prompt(["a", "b", "c"], "I like tea.")
    pool = TextGenPool(
        [
            Sample("one", prompt, ["d"], history),
            Sample("several", "plain", ["e", "", "f"]),
            Sample("whole", "a <EOU>", ["b", "never said"], {"history": ["a"], "continuation": ["c", "d", "e"]}),
            Sample("none", "plain", [""]),
        ]
    )
    one, first, second, whole = pool.conversations()
    assert [(turn.text, turn.speaker) for turn in one.turns] == [
        ("a", PARTNER),
        ("b", AGENT),
        ("c", PARTNER),
        ("d", AGENT),
    ]
    assert one.n_given == 3 and one.meta_data == {**history, SYSTEM_KEY: "I like tea."}
    assert [(each.id, *each.texts(AGENT)) for each in (first, second)] == [("several_0", "e"), ("several_2", "f")]
    assert first.turns[0].text == "plain" and first.n_given == 1
    assert [(turn.text, turn.speaker) for turn in whole.said] == [
        ("b", AGENT),
        ("c", PARTNER),
        ("d", AGENT),
        ("e", PARTNER),
    ]
    assert whole.id == "whole" and whole.meta_data == {"history": ["a"]}
    assert not pool.has_rewards and {turn.reward for each in pool.conversations() for turn in each.turns} == {0.0}
    assert all(each.terminated and each.ended_by is None for each in pool.conversations())


def test_what_the_partner_said_first_is_the_prompt():
    class Pool(TextGenPool):
        def conversations(self):
            yield Dialogue("partner", (Turn("a", PARTNER), Turn("b", AGENT), Turn("c", PARTNER)))
            yield Dialogue("agent", (Turn("b", AGENT), Turn("c", PARTNER)))

    pool = Pool([])
    pool.use_format(DialogueFormat("eou", None))
    after_partner, after_nobody = pool.prompted_conversations()
    assert after_partner.prompt == DialogueFormat("eou", None).prompt(["a"]) and after_partner.n_given == 1
    assert after_nobody.prompt == DialogueFormat("eou", None).prompt([]) and after_nobody.n_given == 0
    assert [turn.text for turn in after_partner.said] == [turn.text for turn in after_nobody.said] == ["b", "c"]


def pool(*infos):
    return TextGenPool([Sample(i, "", [], info) for i, info in enumerate(infos)])


def test_persona_is_what_all_prompts_begin_with_and_personas_are_in_the_meta_data():
    format = DialogueFormat("eou", 3)

    def data(*personas):
        samples = [Sample(i, format.prompt(["hi"], persona), []) for i, persona in enumerate(personas)]
        return Data({"train": TextGenPool(samples)}, None)

    assert data("be kind", "be kind").persona == "be kind"
    assert data("be kind", "be rude").persona is data("be kind", None).persona is None
    assert data(None, None).persona == ""
    train = pool({"persona": ["a", "b"]}, None, {"persona": ["c"]}, {"persona": ["a", "b"]}, {"persona": "d"}, {})
    data = Data({"train": train, "val": pool({"persona": ["e"]})}, None)
    assert data.personas("persona") == [("a", "b"), ("c",)] and data.personas("partner_persona") == []


def test_every_split_repeats_the_prompt():
    for split in ("train", "val", "test"):
        pool = DummyPool.prepare(split, prompt="count:", n_samples=7)
        assert {(sample.prompt_or_input_text, *sample.references) for sample, _ in pool} == {("count:", "")}
        assert len({sample.id for sample, _ in pool}) == len(pool) == 7 and pool.end_of_turn is None


def references(split, **args):
    return [sample.references[0] for sample, _ in RandomNumbers.prepare(split, n_samples=50, **args)]


def test_each_reference_is_so_many_numbers_and_far_from_increasing():
    train = references("train", n_numbers=8, largest=20)
    assert {len(text.split()) for text in train} == {8}
    assert {int(word) for text in train for word in text.split()} <= set(range(21))
    scores = [increasing_numbers_score(text, 8) for text in train]
    assert sum(scores) / len(scores) < 0.4
    assert references("train") == references("train") not in (references("val"), references("train", seed=1))
