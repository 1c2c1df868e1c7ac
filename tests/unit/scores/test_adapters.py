"""A metric's score as a reward, and a reward's as a metric."""

import copy

import pytest
from replies import REFERENCES, pay, state

from rl4dialog.catalog import MetricRegistry, RewardFunctionRegistry
from rl4dialog.core.errors import ConfigError, RewardError
from rl4dialog.core.protocols import BatchedRewardFunction, RewardFunction
from rl4dialog.scores.adapters import AnyMetricReward
from rl4dialog.scores.diversity import SelfBleuMetric
from rl4dialog.scores.overlap import RougeReward

WORDS = ["the", "cat", "sat", "on", "a", "mat", "today"]


def steps(reward, words=WORDS, same_objects=True):
    states = [state(" ".join(words[:n])) for n in range(len(words) + 1)]
    return [
        float(reward(states[n] if same_objects else copy.copy(states[n]), 1, states[n + 1], n + 1 == len(words), {}))
        for n in range(len(words))
    ]


@pytest.mark.parametrize(
    ("id", "args"), [("rouge", {}), ("ter", {}), ("chrf", {}), ("meteor", {"synonyms": False}), ("bleu", {})]
)
@pytest.mark.parametrize("same_objects", [True, False])
def test_shaping_at_every_token_adds_up_to_the_score_at_the_end(id, args, same_objects):
    at_end = steps(RewardFunctionRegistry.get(id, args), same_objects=same_objects)
    shaped = RewardFunctionRegistry.get(id, {**args, "shaping": "every_token"})
    assert at_end[:-1] == [0.0] * (len(WORDS) - 1)
    for _ in range(2):  # a second episode begins from nothing
        each = steps(shaped, same_objects=same_objects)
        assert sum(each) == pytest.approx(at_end[-1])
        assert sum(value != 0 for value in each) > 2


def test_every_token_pays_what_it_changed():
    shaped = RewardFunctionRegistry.get("rouge", {"shaping": "every_token"})
    scores = [pay(RewardFunctionRegistry.get("rouge"), " ".join(WORDS[:n])) for n in range(1, len(WORDS) + 1)]
    assert steps(shaped) == pytest.approx([b - a for a, b in zip([0.0, *scores], scores, strict=False)])


class PerToken(RewardFunction):
    def __call__(self, *args, **kwargs):
        return 0.25


class BatchedHalf(BatchedRewardFunction):
    def __call__(self, prompt_texts, gen_texts, ref_texts, dones, meta_infos=None):
        return [0.5] * len(gen_texts)


def quarter(prompt_text, gen_text, ref_texts, meta_info):
    return 0.25


@pytest.fixture
def _registered(monkeypatch):
    for id, reward in (("per_token", PerToken), ("batched_half", BatchedHalf), ("quarter", quarter)):
        monkeypatch.setitem(RewardFunctionRegistry._entries, id, reward)


@pytest.mark.usefixtures("_registered")
@pytest.mark.parametrize("shaping_fn", ["per_token", "quarter"])
def test_shaping_fn_is_added_when_the_score_is_paid(shaping_fn):
    reward = RewardFunctionRegistry.get("rouge", {"shaping_fn": shaping_fn})
    assert pay(reward, REFERENCES[0], done=False) == 0.0
    assert pay(reward, REFERENCES[0]) == pytest.approx(1.25)
    every_token = RewardFunctionRegistry.get("rouge", {"shaping_fn": shaping_fn, "shaping": "every_token"})
    n_times = len(WORDS) if shaping_fn == "per_token" else 1
    assert sum(steps(every_token)) == pytest.approx(steps(RewardFunctionRegistry.get("rouge"))[-1] + 0.25 * n_times)


@pytest.mark.usefixtures("_registered")
def test_shaping_fn_of_the_main_process_fits_only_there():
    with pytest.raises(ConfigError, match=r"'batched_half' is scored in the main process.*'composite'"):
        RewardFunctionRegistry.get("rouge", {"shaping_fn": "batched_half"})
    for shaping_fn, extra in (("batched_half", 0.5), ("quarter", 0.25)):
        reward = RewardFunctionRegistry.get("metric", {"id": "length", "shaping_fn": shaping_fn})
        assert reward(["p"], ["one two"], [[]], [True], [{}]) == [2.0 + extra]


def test_metric_without_a_score_per_text_scores_each_alone():
    reward = AnyMetricReward(id="diversity", key="diversity_metrics/distinct-1")
    assert reward(["p"] * 2, ["a a a a", "a b c d"], [[], []], [True, True]) == pytest.approx([0.25, 1.0])


def test_key_must_be_given_where_there_are_several_and_exist():
    with pytest.raises(ConfigError, match="RougeMetric has several keys; set key to one"):
        AnyMetricReward(id="rouge")(["p"], ["x"], [["x"]], [True])
    with pytest.raises(ConfigError, match="RougeMetric has no key 'lexical/rouge_rouge9'; did you mean"):
        AnyMetricReward(id="rouge", key="lexical/rouge_rouge9")(["p"], ["x"], [["x"]], [True])


def test_metric_of_conversations_is_refused():
    with pytest.raises(ConfigError, match="metric 'conversation' measures whole conversations"):
        AnyMetricReward(id="conversation")


def test_batch_goes_to_the_metric_as_one():
    texts, references = ["a cat sat on it", "a cat likes to run", "birds run"], [["a cat sat"], ["dogs run"], ["fish"]]
    metric, reward = SelfBleuMetric(), AnyMetricReward(id="self_bleu")
    ((expected, _),) = metric.compute([""] * 3, texts, references).values()
    assert any(expected) and reward([""] * 3, texts, references, [True] * 3) == pytest.approx(expected)
    # A reply that is not the last of its episode is not among them.
    ((pair, _),) = metric.compute([""] * 2, texts[:2], references[:2]).values()
    assert reward([""] * 3, texts, references, [True, True, False]) == pytest.approx([*pair, 0.0])


def test_arguments_of_a_subclass_are_its_own_and_those_that_it_passes_on(monkeypatch):
    class Doubled(RougeReward):
        """Twice as much."""

    class Fixed(RougeReward):
        def __init__(self, factor):
            super().__init__("rouge2")

    for id, reward in (("doubled", Doubled), ("fixed", Fixed)):
        monkeypatch.setitem(RewardFunctionRegistry._entries, id, reward)
    RewardFunctionRegistry.check("doubled", {"rouge_type": "rouge2", "shaping": "end", "use_single_ref": False})
    RewardFunctionRegistry.check("fixed", {"factor": 2.0})
    with pytest.raises(ConfigError, match=r"'fixed' has no argument 'rouge_type' \(accepted: factor\)"):
        RewardFunctionRegistry.check("fixed", {"rouge_type": "rouge2"})


TWO_TEXTS, TWO_REFERENCES = ["the cat sat", "dogs"], [["the cat sat"], ["a cat"]]


def compute(id, args=None):
    metric = MetricRegistry.get("reward", {"id": id, "args": args or {}})
    return metric.compute(["p", "q"], TWO_TEXTS, TWO_REFERENCES, [{"n": 1}, None])


def test_parts_of_a_composite_are_keys_too():
    async def judge(prompt_text, gen_text, ref_texts, meta_info):
        return float(len(gen_text))

    falling = {"schedule": "linear", "start": 2.0, "end": 0.0, "n_iters": 5}
    rewards = [
        {"id": "judge", "weight": falling, "clip": 9},
        {"id": "regex", "args": {"pattern": "cat"}, "name": "cats"},
    ]
    RewardFunctionRegistry.add("judge", judge)
    try:
        found = compute("composite", {"rewards": rewards})
    finally:
        del RewardFunctionRegistry._entries["judge"]
    assert found == {
        "reward/judge": ([11.0, 4.0], 7.5),
        "reward/cats": ([1.0, 0.0], 0.5),
        "reward/composite": ([19.0, 8.0], 13.5),
    }


def test_errors_are_those_of_the_reward():
    with pytest.raises(ConfigError, match="unknown reward function 'roug'; did you mean 'rouge'"):
        MetricRegistry.get("reward", {"id": "roug"})
    with pytest.raises(ConfigError, match="needs the argument 'id'"):
        MetricRegistry.get("reward", {})
    with pytest.raises(RewardError, match=r"'missing_eos_penalty' failed on sample 0.*needs a reply's tokens"):
        compute("missing_eos_penalty")


@pytest.mark.parametrize(("rewards", "needs"), [(["regex", "rouge"], True), (["regex"], False)])
def test_replies_without_references_are_left_out_if_a_part_needs_them(rewards, needs):
    blocks = [{"id": id, "args": {"pattern": "cat"} if id == "regex" else {}} for id in rewards]
    assert MetricRegistry.get("reward", {"id": "composite", "args": {"rewards": blocks}}).needs_references == needs


@pytest.mark.parametrize("id", ["outcome", "partner"])
def test_what_a_partner_gives_is_no_score_of_a_reply(id):
    with pytest.raises(ConfigError, match=f"reward '{id}' comes from the partner.*metric 'conversation'"):
        MetricRegistry.get("reward", {"id": "composite", "args": {"rewards": [{"id": id}]}})
