"""Candidates, ranks by hand, and rewards of turns."""

import math

import pytest
from judges import save_judge

from rl4dialog.catalog import MetricRegistry, RewardFunctionRegistry
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn
from rl4dialog.features.personas import persona_ranking

CANDIDATES = [tuple(f"my {topic} is {i}" for topic in ("pet", "food", "home")) for i in range(30)]
TRUE = CANDIDATES[3]


def candidates(n_distractors=9, hard=0, seed=0, personas=CANDIDATES):
    known = {"partner_persona": personas, "persona": []}
    return persona_ranking.PersonaCandidates(known.__getitem__, "partner", n_distractors, hard, seed)


def of(chosen, id=0, true=TRUE):
    return chosen(Dialogue(id, (), meta_data={"partner_persona": [*true]}))


def test_true_persona_comes_first_and_others_differ():
    for id in range(40):
        first, *others = of(candidates(), id)
        assert first == TRUE and len(others) == 9 and len({TRUE, *others}) == 10 and {*others} < {*CANDIDATES}


def test_the_same_conversation_has_the_same_candidates():
    assert of(candidates()) == of(candidates())
    assert of(candidates()) != of(candidates(), id=1) != of(candidates(seed=1), id=1)
    drawn = {persona for id in range(100) for persona in of(candidates(), id)}
    assert drawn == {*CANDIDATES}


@pytest.mark.parametrize("hard", [1, 2])
def test_hard_candidates_share_facts_and_have_no_second_fact_of_their_topics(hard):
    for id in range(40):
        first, *others = of(candidates(hard=hard), id)
        assert all(len({*first} & {*other}) == hard and len(other) == 3 for other in others)
        assert all(len({fact.split()[1] for fact in other}) == 3 for other in others)
    shared = {fact for id in range(40) for other in of(candidates(hard=hard), id)[1:] for fact in {*other} & {*TRUE}}
    assert shared == {*TRUE}


def test_a_persona_in_another_order_is_no_distractor():
    chosen = candidates(n_distractors=1, personas=[TRUE, TRUE[::-1], CANDIDATES[4]])
    assert of(chosen) == [TRUE, CANDIDATES[4]]


def test_unfit_data_is_refused():
    with pytest.raises(ConfigError, match=r"n_distractors: 30 needs at least 31 different personas; .* has 30"):
        candidates(n_distractors=30)
    with pytest.raises(ConfigError, match="hard: 3 facts in common leave no difference from a persona of 3 facts"):
        candidates(hard=3)
    with pytest.raises(DataError, match=r"meta_data\['partner_persona'\], which the datapools get_acquainted"):
        candidates(personas=[])
    with pytest.raises(DataError, match="sample 'x' has only persona"):
        candidates()(Dialogue("x", (), meta_data={"persona": ["a"]}))
    with pytest.raises(DataError, match="only 0 personas differ from that of sample 0; lower n_distractors: 1"):
        of(candidates(n_distractors=1, personas=[("a",), ("b",)]), true=("a", "b"))


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
def test_ranking_splits_ties(scores, expected):
    found = persona_ranking.ranking_scores(scores)
    assert [found[key] for key in KEYS] == pytest.approx(expected)


def conversation(*said, given=("hello",)):
    turns = [Turn(text, PARTNER) for text in given]
    turns += [Turn(text, AGENT if i % 2 == 0 else PARTNER) for i, text in enumerate(said)]
    info = {"partner_persona": ["pet3", "food3"], "persona": ["job2"]}
    return Dialogue(0, tuple(turns), meta_data=info, n_given=len(given))


def metric(**args):
    return MetricRegistry.get("persona_ranking", args, personas=PERSONAS.__getitem__)


def test_what_the_partner_said_decides():
    found = metric().compute(
        [conversation("pet3 ?", "pet3"), conversation("pet3", "hm"), conversation("x", "y", given=("food3",))]
    )
    assert found["persona_ranking/p@1"][0] == pytest.approx([1, 0.05, 1])
    assert found["persona_ranking/mrr"][1] == pytest.approx((2 + sum(1 / n for n in range(1, 21)) / 20) / 3)
    assert found["persona_ranking/potential"][0] == pytest.approx([-0.5, -1, -0.5])
    chosen = metric(side="agent", n_distractors=4)
    assert chosen.compute([conversation("i am job2", "job3"), conversation("hm", "job2")])["persona_ranking/p@1"][
        0
    ] == [1, 0.2]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"scorer": "likelihood"}, "scorer: likelihood needs a model_name"),
        ({"embedder": "hidden_mean"}, "scorer: embedding with embedder: hidden_mean needs a model_name"),
        ({"model_name": "x"}, "scorer: embedding with embedder: tfidf has no use for model_name"),
        ({"scorer": "likelihood", "model_name": "builtin/tiny-gpt2"}, "which has random weights"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(args, message):
    with pytest.raises(ConfigError, match=message):
        metric(**args)


def reward(**args):
    return RewardFunctionRegistry.get("persona_ranking", args, personas=PERSONAS.__getitem__)


def paid(chosen, said):
    (found,) = chosen([said], [True])
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_judge(tmp_path_factory.mktemp("model"), template=None, architecture="llama")


def test_each_new_fact_is_paid_in_its_turn():
    said = conversation("?", "pet3", "?", "hm", "?", "pet3", "?", "food3")
    # The margin of the pairs with a fact that was told is reached: half of them for each fact.
    assert paid(reward(), said) == pytest.approx([0.5, 0, 0, 0.5])
    assert paid(reward(shaping="end"), said) == pytest.approx(1.0)
    assert paid(reward(), conversation("?", "pet3", "?", "food3", given=("pet3",))) == pytest.approx([0, 0.5])


@pytest.mark.parametrize("scorer", ["tfidf", "hidden_mean", "likelihood"])
@pytest.mark.parametrize("side", ["partner", "agent"])
def test_rewards_add_up_to_the_change_of_the_potential(folder, scorer, side):
    args = {"side": side, "n_distractors": 4}
    if scorer != "tfidf":
        args |= {"model_name": folder, **({"scorer": scorer} if scorer == "likelihood" else {"embedder": scorer})}
    said = conversation("you are job2 ?", "pet3 , hm", "I am job1", "food3", "Fine. I ?", "you")
    by_turn, metric = paid(reward(**args), said), persona_ranking.PersonaRankingMetric(PERSONAS.__getitem__, **args)
    before, after = (metric.compute([each])["persona_ranking/potential"][1] for each in (conversation(), said))
    assert len(by_turn) == 3 and sum(by_turn) == pytest.approx(after - before, abs=1e-5) != 0
    assert paid(reward(shaping="end", **args), said) == pytest.approx(sum(by_turn))
    if scorer == "likelihood" and side == "agent":
        assert before == pytest.approx(-math.log(5))


def test_hidden_states_are_those_of_the_layer(folder):
    args = {"embedder": "hidden_mean", "model_name": folder, "n_distractors": 4}
    first, last = (paid(reward(layer=layer, **args), conversation("?", "you are")) for layer in (0, -1))
    assert first != pytest.approx(last)


def test_every_turn_is_never_positive_and_adds_up():
    short = paid(reward(shaping="every_turn"), conversation("?", "pet3"))
    long = paid(reward(shaping="every_turn"), conversation("?", "pet3", "?", "hm", "?", "hm"))
    # Two facts, and 19 blocks of two false ones: distances 0 and the root of 2 for the true ones.
    per_block = max(0 - math.sqrt(2) + 1, 0) + 1
    assert short == pytest.approx([-19 * per_block]) and long == pytest.approx(short * 3)
    with pytest.raises(ConfigError, match="every_turn needs scorer: embedding"):
        reward(shaping="every_turn", scorer="likelihood", model_name=".")
