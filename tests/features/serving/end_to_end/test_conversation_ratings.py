"""From conversations of a run to a reward: selected, rated on the page, learned by a reward model, and optimized."""

import json
from pathlib import Path

import pytest
import reward_models
from page_client import Tab
from page_process import page_of
from runs import lines, make_config, run_folder, train

from rl4dialog.cli import main
from rl4dialog.core.features import features
from rl4dialog.core.feedback import read_feedback, read_queue

N = 8
pytestmark = pytest.mark.skipif("feedback" not in features(), reason="selects and learns by the feature feedback")


def test_rated_conversations_become_a_reward(tmp_path, capsys):
    talk = make_config(tmp_path, train_evaluation__n_iters=0, env__args__max_turns=2)
    talk |= {"reward_fn": {"id": "length_penalty", "args": {"min_length": 2}}}
    talk["train_evaluation"]["metrics"] = [{"id": "length"}]
    talk["env"]["args"]["partner"] = {"id": "scripted", "args": {"replies": ["oh .", "i see ."]}}
    assert train(tmp_path / "talk", talk) == 0
    run, queue, feedback = str(run_folder(tmp_path / "talk")), tmp_path / "queue.jsonl", tmp_path / "feedback.jsonl"

    select = ["select", "--run", run, "--unit", "conversation", "--output", str(queue)]
    assert main([*select, "--n", str(N)]) == 0
    assert f"{N} of {N} conversations written to" in capsys.readouterr().out
    queued = read_queue(queue)
    assert all(each.is_conversation and [each.turns[-1], each.answer] == ["oh .", "i see ."] for each in queued)

    with page_of("--queue", str(queue), "--feedback", str(feedback)) as address:
        person = Tab(address)
        for i in range(N):
            person.rate(bool(i % 2))
    assert [each.rating for each in read_feedback(feedback)] == [-1, 1] * (N // 2)

    judged = {"id": "feedback", "args": {"path": str(feedback), "use": "conversation_ratings"}}
    rater = reward_models.make_config(datapool=judged)
    rater["alg"]["ensemble"] = 2
    assert train(tmp_path / "rater", rater) == 0
    rater_folder = str(run_folder(tmp_path / "rater"))
    predicted = json.loads(Path(rater_folder, "epoch_3_test_split_predictions.json").read_text(encoding="utf-8"))
    assert all(each["prompt_text"].endswith("User: i see .") for each in predicted)

    # The disagreement of its models selects the next conversations.
    assert main([*select, "--n", "2", "--strategy", "disagreement", "--reward_model", rater_folder]) == 0
    assert all((each.score or 0.0) > 0 for each in read_queue(queue))

    args = {"model_name": rater_folder, "std_penalty": 0.5}
    talk |= {"reward_fn": {"id": "conversation_reward_model", "args": args}}
    talk["train_evaluation"]["n_iters"] = 1
    assert train(tmp_path / "again", talk) == 0
    (info,) = lines(run_folder(tmp_path / "again") / "rollout_info.jsonl")
    assert info["rollout/reward/conversation_reward_model"] != 0
