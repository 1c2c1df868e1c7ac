from typing import cast

import numpy as np
import pytest
from reward_models import save_reward_model
from runs import make_config, run_folder, train

from rl4dialog.cli import main
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.feedback import read_queue
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn
from rl4dialog.data.dialogue_text import replied
from rl4dialog.data.ratings import judged_dialogue
from rl4dialog.features.feedback.queue_selection import STRATEGIES, check_strategy, select
from rl4dialog.scores.reward_models import RewardModel, load_reward_model


class Judge:
    class card:
        context_size = None

    def differences(self, first, second):
        def scores(texts):
            return np.array([[float(number) for number in text.split(": ")[-1].split()] for text in texts])

        return scores(first) - scores(second)

    def standard_scores(self, texts):
        return self.differences(texts, ["x: 0 0"] * len(texts))


JUDGE = cast(RewardModel, Judge())
# Differences of the two models: (0.1, 0.1), (3, 3), (4, -3).
REPLIES = [("1.1 0.1", "1 0"), ("3 4", "0 1"), ("4 0", "0 3")]


def candidates(*replies, history, **meta_data):
    return [replied("", reply, {"history": [history], **meta_data}) for reply in replies]


CANDIDATES = [candidates(*replies, history=f"hello {i}") for i, replies in enumerate(REPLIES)]


@pytest.mark.parametrize(("strategy", "best"), [("uncertain", 0), ("gap", 1), ("disagreement", 2)])
def test_strategy_selects_the_pair(strategy, best):
    (pair,) = select(CANDIDATES, 1, "m", strategy, [JUDGE])
    assert pair.turns == [f"hello {best}"] and pair.strategy == strategy
    assert {reply.text for reply in pair.replies} == set(REPLIES[best])
    assert pair.score == pytest.approx({"uncertain": -0.1, "gap": 3, "disagreement": 3.5}[strategy])


def test_each_prompt_gives_its_best_pair():
    many = candidates("0 0", "1 1", "5 5", history="hello", persona=["i sing .", "i run ."], goal="food")
    pairs = select([many, CANDIDATES[1]], 9, "m", "gap", [JUDGE])
    assert pairs[0].persona == "i sing . i run . goal : food"
    assert [{reply.text for reply in pair.replies} for pair in pairs] == [{"0 0", "5 5"}, {"3 4", "0 1"}]


def test_random_pairs_depend_on_the_seed_and_their_sides_are_mixed():
    many = [candidates("a", "b", history=f"p {i}") for i in range(40)]
    pairs, again, other = (select(many, 20, "m", seed=seed) for seed in (0, 0, 1))
    assert pairs == again and {p.id for p in pairs} != {p.id for p in other}
    assert 4 < sum(pair.replies[0].text == "a" for pair in pairs) < 16
    assert pairs[0].score is None and pairs[0].turns[0].startswith("p ")


def test_strategies_without_what_they_need_are_errors(tmp_path):
    for strategy in STRATEGIES[1:]:
        with pytest.raises(ConfigError, match=f"--strategy {strategy} needs --reward_model"):
            check_strategy(strategy, [])
    with pytest.raises(ConfigError, match="--strategy random reads no reward model"):
        check_strategy("random", ["x"])
    single = load_reward_model(save_reward_model(tmp_path), "reply", 8, "test")
    with pytest.raises(ConfigError, match="--strategy disagreement needs several models"):
        select(CANDIDATES, 1, "m", "disagreement", [single])
    with pytest.raises(DataError, match="no prompt has two different replies"):
        select([], 1, "m")


def test_single_replies_are_selected_at_random_or_by_disagreement():
    queue = select(CANDIDATES, 2, "m", "disagreement", [JUDGE], unit="reply")
    assert [[reply.text for reply in each.replies] for each in queue] == [["4 0"], ["1.1 0.1"]]
    assert [each.score for each in queue] == pytest.approx([2, 0.5])
    queue = select(CANDIDATES, 9, "m", unit="reply")
    assert len(queue) == 3 and all(len(each.replies) == 1 and each.score is None for each in queue)
    for strategy in ("uncertain", "gap"):
        with pytest.raises(ConfigError, match=f"--strategy {strategy} compares two replies"):
            check_strategy(strategy, ["x"], "reply")


def test_whole_conversations_are_selected_by_the_disagreement_about_them():
    def spoken(*texts):
        turns = tuple(Turn(text, (PARTNER, AGENT)[i % 2]) for i, text in enumerate(texts))
        meta_data = {"persona": ["i sing ."], "goal": "food"}
        return [Dialogue(0, turns, meta_data=meta_data, n_given=1)]

    made = [spoken("hi", "yes", "1 1"), spoken("hi", "no", "why?", "4 0")]
    first, second = select(made, 2, "m", "disagreement", [JUDGE], unit="conversation")
    assert (first.turns, first.replies[0].text, first.answer) == (["hi", "no", "why?"], "4 0", None)
    assert (second.turns, second.replies[0].text, second.answer) == (["hi"], "yes", "1 1")
    silent = Dialogue(0, tuple(Turn(text, AGENT) for text in ("one", "two")))
    (queued,) = select([[silent]], 1, "m", unit="conversation")
    assert (queued.turns, queued.replies[0].text, queued.answer) == (["one", ""], "two", None)
    assert judged_dialogue(queued.rated(0, 1), "two").turns == silent.turns  # the same text for a reward model
    assert first.is_conversation and first.score == 2 and first.persona == "i sing ." and first.id != second.id
    for strategy in ("uncertain", "gap"):
        with pytest.raises(ConfigError, match="use random or disagreement with --unit conversation"):
            check_strategy(strategy, ["x"], "conversation")
    with pytest.raises(DataError, match="all conversations failed, so there is none to judge"):
        select([], 1, "m", unit="conversation")


def test_command_writes_a_queue(tmp_path, capsys):
    config = make_config(tmp_path)
    config["train_evaluation"]["n_iters"] = 0
    assert train(tmp_path, config) == 0
    run, queue = str(run_folder(tmp_path)), tmp_path / "queue.jsonl"
    rater = save_reward_model(tmp_path / "rater", n_members=2)
    common = ["select", "--run", run, "--output", str(queue), "--n", "3", "--n_replies", "3"]
    assert main([*common, "--strategy", "disagreement", "--reward_model", rater]) == 0
    assert "pairs written to" in capsys.readouterr().out
    pairs = read_queue(queue)
    assert 0 < len(pairs) <= 3 and all(pair.replies[0].text != pair.replies[1].text for pair in pairs)
    assert [pair.score for pair in pairs] == sorted((pair.score for pair in pairs), reverse=True)
    assert main([*common, "--n", "0"]) == 2
    assert main([*common, "--n_replies", "1"]) == 2
    single = [*common, "--unit", "reply", "--n_replies", "1"]
    assert main([*single, "--strategy", "disagreement", "--reward_model", rater]) == 0
    assert "replies written to" in capsys.readouterr().out
    assert all(len(each.replies) == 1 for each in read_queue(queue))
