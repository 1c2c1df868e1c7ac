import csv
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from judges import save_judge
from rated import conversation, write_lines
from runs import make_config, write_config

from rl4dialog.cli import main
from rl4dialog.core.protocols import BaseMetric, BatchedConversationReward, ConversationReward
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, RatedDialogue, Turn
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.features.inspection.reward_validation import (
    REFERENCES,
    baseline_scores,
    correlate,
    drawn,
    metric_scores,
    reward_scores,
    talk_of,
)
from rl4dialog.scores.composite import CompositeReward
from rl4dialog.scores.conversation import ConversationMetric, OutcomeReward
from rl4dialog.scores.diversity import DiversityMetric
from rl4dialog.scores.overlap import RougeMetric
from rl4dialog.scores.parts import as_parts
from rl4dialog.scores.rules import LengthMetric
from rl4dialog.scores.scoring import Scorer


def naive_tau_b(x, y):
    pairs = list(itertools.combinations(range(len(x)), 2))
    signs = [(np.sign(x[i] - x[j]), np.sign(y[i] - y[j])) for i, j in pairs]
    untied = [sum(sign[side] != 0 for sign in signs) for side in (0, 1)]
    return float(sum(a * b for a, b in signs) / math.sqrt(untied[0] * untied[1]))


def naive_ranks(values):
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2 for value in values
    ]


@pytest.mark.parametrize(("n_x", "n_y"), [(5, 4), (3, 1000), (1000, 3), (1000, 1000)])
def test_coefficients_equal_their_definitions_with_ties_and_gaps(n_x, n_y):
    rng = np.random.default_rng(0)
    x, y = rng.integers(n_x, size=60).astype(float), rng.integers(n_y, size=60).astype(float)
    with_gaps = x.copy()
    with_gaps[:10] = math.nan
    y[50:] = math.nan
    found = correlate(with_gaps, y, n_resamples=0)
    assert found.n == 40
    x, y = x[10:50], y[10:50]
    assert found.kendall == pytest.approx(naive_tau_b(x, y))
    assert found.spearman == pytest.approx(np.corrcoef(naive_ranks(x), naive_ranks(y))[0, 1])
    assert found.spearman_interval is None


@pytest.mark.long
def test_interval_contains_the_true_correlation_as_often_as_it_says():
    rng, rho = np.random.default_rng(0), 0.5
    truth = 6 / math.pi * math.asin(rho / 2)  # Spearman's of a bivariate normal distribution
    hits = 0
    for _ in range(60):
        x = rng.normal(size=100)
        y = rho * x + math.sqrt(1 - rho**2) * rng.normal(size=100)
        found = correlate(x, y, n_resamples=100)
        assert found.spearman_interval is not None and found.kendall_interval is not None
        assert found.spearman in found.spearman_interval and found.kendall in found.kendall_interval
        hits += truth in found.spearman_interval
    assert hits >= 50


def test_groups_are_resampled_as_a_whole():
    rng = np.random.default_rng(0)
    x, y = np.repeat(rng.normal(size=20), 10), np.repeat(rng.normal(size=20), 10)
    single = correlate(x, y, n_resamples=200).spearman_interval
    grouped = correlate(x, y, np.repeat(range(20), 10), n_resamples=200).spearman_interval
    assert single is not None and grouped is not None
    assert grouped.high - grouped.low > 2 * (single.high - single.low)


@pytest.mark.parametrize(
    ("scores", "ratings", "problem"),
    [
        ([1, 1, 1], [1, 2, 3], "the score is always 1"),
        ([1, 2, 3], [5, 5, 5], "the rating is always 5"),
        ([1, 2, math.nan], [1, math.nan, 3], "only 1 items have both"),
    ],
)
def test_column_without_information_is_named(scores, ratings, problem):
    found = correlate(scores, ratings)
    assert found.problem == problem and math.isnan(found.spearman)


def test_few_groups_have_a_correlation_without_an_interval():
    rng = np.random.default_rng(0)
    scores, ratings = rng.normal(size=40), rng.normal(size=40)
    assert correlate(scores, ratings, groups=[i // 2 for i in range(40)]).spearman_interval is not None
    few = correlate(scores, ratings, groups=[i // 3 for i in range(40)])
    assert few.spearman_interval is few.kendall_interval is None and few.problem is None


def rated(*texts, n_given=0, **meta_data):
    turns = tuple(Turn(text, AGENT if i % 2 else PARTNER) for i, text in enumerate(texts))
    return RatedDialogue(Dialogue("d", turns, meta_data=meta_data, n_given=n_given), {"good": 1.0}, "d")


EOU = DialogueFormat("eou", 2)
TALKS = [talk_of(rated("a", "b c", "d", "e"), EOU), talk_of(rated("x", "y y y y"), EOU)]


def by_name(columns):
    return {column.name: column.problem or list(column.values) for column in columns}


def scored(reward, **settings):
    return by_name(reward_scores(Scorer(as_parts(reward, "r"), **settings), TALKS))


def test_baselines_are_lengths_with_a_number_for_each_dialogue():
    baselines = {"words_per_reply": [1.5, 4.0], "words": [3.0, 4.0], "replies": [2.0, 1.0]}
    assert by_name(baseline_scores(TALKS)) == {f"baseline/{name}": values for name, values in baselines.items()}


def test_prompts_have_the_format_of_the_datapool():
    assert [reply.prompt for reply in TALKS[0].replies] == ["a <EOU>", "b c<EOU>d <EOU>"]
    assert TALKS[0].replies[1].meta_info == {"history": ["b c", "d"]}
    assert talk_of(rated("a", "b", "c", "d"), None).replies[1].prompt == "a\nb\nc\n"
    assert talk_of(rated("a", "b", persona="I am X."), EOU).replies[0].prompt == "I am X.<EOU>a <EOU>"
    given = talk_of(rated("a", "b", "c", "d", n_given=3), EOU)
    assert [(reply.text, reply.prompt) for reply in given.replies] == [("d", "b<EOU>c <EOU>")]


@pytest.mark.parametrize(
    ("metric", "scores"),
    [
        (LengthMetric(), {"length/words": [1.5, 4.0]}),  # the mean over replies
        (DiversityMetric(), {"diversity_metrics/distinct-1": [1.0, 0.25]}),  # computed for each dialogue
        (ConversationMetric(), {"conversation/turns": [2.0, 1.0]}),
        (RougeMetric(), {"m": REFERENCES}),
    ],
)
def test_metrics_have_a_number_for_each_dialogue(metric, scores):
    found = by_name(metric_scores("m", metric, TALKS))
    assert found.items() >= scores.items() and "conversation/return" not in found


def test_metric_that_fails_is_named_with_its_error():
    class Failing(BaseMetric):
        def compute(self, *args, **kwargs):
            raise ZeroDivisionError("no")

    assert by_name(metric_scores("x", Failing(), TALKS)) == {"x": "ZeroDivisionError: no"}


def test_total_is_the_weighted_sum_of_the_parts():
    rewards = [
        {"id": "length_penalty", "args": {"max_length": 0, "per_word": 1.0}, "weight": 2.0},
        {"id": "regex", "name": "y", "args": {"pattern": "y"}, "weight": 10.0},
    ]
    found = scored(CompositeReward(rewards))
    assert found["reward/length_penalty"] == [-1.5, -4.0]
    assert found["reward"] == [-3.0, 2.0 * -4.0 + 10.0 * found["reward/y"][1]]


def test_total_with_a_part_that_needs_references_says_so():
    found = scored(CompositeReward([{"id": "rouge"}, {"id": "repetition_penalty"}]))
    assert found["reward/rouge"] == REFERENCES and found["reward"] == f"rouge: {REFERENCES}"
    assert found["reward/repetition_penalty"] == [0.0, -0.0]


class EveryTurn(ConversationReward):
    def __call__(self, dialogue, over):
        return len(dialogue.turns) + 100.0 * over


class AtTheEnd(BatchedConversationReward):
    def __call__(self, dialogues, overs):
        rows = zip(dialogues, overs, strict=True)
        return [[1.0] * len(dialogue.texts(AGENT)) if over else 0.0 for dialogue, over in rows]


def test_rewards_of_replies_are_averaged_and_those_of_conversations_summed():
    assert scored(lambda prompt_text, gen_text, ref_texts, meta_info: len(prompt_text)) == {"reward/r": [11.0, 7.0]}
    assert "comes from the partner" in scored(OutcomeReward())["reward/r"]
    assert scored(EveryTurn()) == {"reward/r": [3 + 4 + 100.0, 2 + 100.0]}
    assert scored(AtTheEnd()) == {"reward/r": [2.0, 1.0]}


@pytest.mark.parametrize("on_error", ["raise", "mask"])
def test_failing_reward_is_an_error_or_a_gap(on_error):
    def failing(prompt_text, gen_text, ref_texts, meta_info):
        if gen_text == "e":
            raise RuntimeError("judge is down")
        return 1.0

    found = scored(failing, on_error=on_error)["reward/r"]
    if on_error == "raise":
        assert "RuntimeError: judge is down" in found
    else:
        assert math.isnan(found[0]) and found[1] == 1.0


REPLIES = ["yes", "yes it is", "it is a long reply", "no", "I do not know what to say here", "a b c d e f g"]


def rows():
    rated = []
    for i, reply in enumerate(REPLIES * 2):
        ratings = {"good": len(reply.split()), "same": 3, "kind": None if i == 0 else i % 3}
        rated.append(conversation("hi", reply, ratings=ratings, id=i, system=f"bot{i % 3}"))
    return rated


def validate(tmp_path, *flags, rows):
    rewards = [{"id": "rouge"}, {"id": "length_penalty", "args": {"max_length": 2}}]
    config = make_config(tmp_path, reward_fn={"id": "composite", "args": {"rewards": rewards}})
    arguments = [
        *("--config_path", str(write_config(tmp_path, config)), "--n_resamples", "50"),
        *("--ratings", str(write_lines(tmp_path / "ratings.jsonl", rows)), "--output_path", str(tmp_path / "out")),
    ]
    return main(["validate-reward", *arguments, *flags])


def test_command_prints_and_writes_the_agreement_with_each_rating(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    assert validate(tmp_path, rows=rows()) == 0
    printed = capsys.readouterr().out
    assert "Agreement with the rating 'kind': 12 items, 1 without this rating" in printed
    assert "length/words: no correlation, because the rating is always 3" in printed
    assert "rouge cannot be computed: it needs references" in printed
    assert "3 systems are few" in printed
    written = json.loads((tmp_path / "out" / "correlations.json").read_text())
    found = {(row["score"], row["rating"]): row for row in written["correlations"]}
    assert found["length/words", "good"]["spearman"] == pytest.approx(1.0)
    assert found["reward/length_penalty", "good"]["kendall"] < -0.8
    assert found["baseline/words_per_reply", "kind"]["n"] == 11
    assert found["length/words", "same"]["problem"] == "the rating is always 3"
    assert written["unit"] == "dialogue" and written["n_systems"] == 3
    assert "rouge" in written["not_computed"] and "reward" in written["not_computed"]
    with (tmp_path / "out" / "scores.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 12
    assert (tmp_path / "out" / "correlations_good.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "out" / "correlations_same.png").exists()


def test_each_rating_has_a_picture_of_its_own(tmp_path):
    names = ["a/b", "a_b", "é" * 300]
    rated = [conversation("hi", reply, ratings=dict.fromkeys(names, len(reply)), id=reply) for reply in REPLIES]
    assert validate(tmp_path, rows=rated) == 0
    assert len(list((tmp_path / "out").glob("correlations_*.png"))) == 3


def validate_by(name, tmp_path, *flags):
    arguments = [
        *("--config_path", str(Path(__file__).parents[3] / "docs" / "examples" / name)),
        *("--n_resamples", "10", "--set", "datapool.args.n_train=20", "--output_path", str(tmp_path / "out")),
        *("--ratings", str(write_lines(tmp_path / "ratings.jsonl", rows()))),
    ]
    return main(["validate-reward", *arguments, *flags])


def test_config_of_the_documentation_is_valid(tmp_path):
    assert validate_by("human_ratings.yml", tmp_path) == 0
    written = json.loads((tmp_path / "out" / "correlations.json").read_text())
    assert written["not_computed"].keys() == {"rouge", "meteor"}


def test_local_judge_of_the_documentation_is_compared(tmp_path, monkeypatch):
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "cache"))
    folder = save_judge(tmp_path / "judge")
    assert validate_by("judge.yml", tmp_path, "--set", f"reward_fn.args.model_name={folder}", "--max_items", "5") == 0
    with (tmp_path / "out" / "scores.csv").open() as file:
        scored = [float(row["reward/judge"]) for row in csv.DictReader(file)]
    assert len(scored) == 5 and len(set(scored)) > 1


def test_items_are_drawn_at_random_in_their_order():
    rated = [RatedDialogue(Dialogue(i, ()), {}, i) for i in range(100)]
    chosen = [each.conversation for each in drawn(rated, 20, seed=0)]
    assert chosen == sorted(chosen) and len(set(chosen)) == 20 and max(chosen) > 60
    assert chosen == [each.conversation for each in drawn(rated, 20, seed=0)]
    assert chosen != [each.conversation for each in drawn(rated, 20, seed=1)]
    assert drawn(rated, None, 0) == drawn(rated, 100, 0) == rated


def test_ratings_of_replies_are_read(tmp_path):
    rated = [conversation("hi", reply, "and", "bye", id=i) for i, reply in enumerate(REPLIES)]
    for i, row in enumerate(rated):
        row["messages"][1]["ratings"] = {"good": i}
        row["messages"][3]["ratings"] = {"good": 2}
    assert validate(tmp_path, "--unit", "reply", rows=rated) == 0
    with (tmp_path / "out" / "scores.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 12


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--rating", "god"), "there is no rating 'god'; did you mean 'good'? (ratings: good, same, kind)"),
        (("--unit", "reply"), "ratings.jsonl has no ratings of replies"),
        (("--max_items", "2"), "--max_items must be at least 3, not 2"),
        (("--n_resamples", "-1"), "--n_resamples must be at least 1, not -1"),
    ],
)
def test_wrong_arguments_are_an_error(tmp_path, flags, message, capsys):
    assert validate(tmp_path, *flags, rows=rows()) == 2
    assert message in capsys.readouterr().err
