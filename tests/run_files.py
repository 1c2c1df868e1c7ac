"""Run folders as a run would leave them, written by hand."""

import json

CONFIG = {
    "seed": 0,
    "datapool": {"id": "small_talk", "args": {}},
    "reward_fn": {"id": "meteor", "args": {}},
    "alg": {
        "id": "ppo",
        "kl_div": {"coeff": 0.1, "target_kl": 0.05},
        "policy": {"args": {"model_name": "builtin/tiny-gpt2"}},
    },
    "train_evaluation": {"n_iters": 3},
}


def write_json(path, obj):
    path.write_text(json.dumps(obj), encoding="utf-8")


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def prediction(i, reply, **scores):
    return {
        "split_name": "test",
        "sample_id": i,
        "prompt_text": f"hello {i}<EOU>how are you?<EOU>",
        "generated_text": reply,
        "ref_text": f"<START-1>fine {i}<END-1><START-2>good<END-2>",
        **scores,
    }


def game(i, *said, reward=0.0, won=False, **scores):
    """A prediction with a conversation of questions and answers, the last of which ends it."""
    turns = [{"speaker": "partner", "text": f"guess {i}", "given": True}]
    for question, answer in said:
        turns.append({"speaker": "agent", "text": question, "reward": reward})
        turns.append({"speaker": "partner", "text": answer})
    conversation = {"turns": turns, "outcome": {"success": float(won)}, "ended_by": "partner" if won else "max_turns"}
    return {**prediction(i, said[0][0] if said else "", **scores), **conversation}


def write_run(folder, n_iters=3, reward=0.0, n_prompts=4, **config):
    """A run of the iterations 1 to ``n_iters`` with two evaluations of ``n_prompts`` test prompts, an even number.

    The rewards of its rollouts are ``reward`` plus a tenth of the iteration, and the metric ``m`` rises from 0.5 to 1.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", {**CONFIG, **config})
    numbers = range(1, n_iters + 1)
    rollouts = [
        {
            "iteration": i,
            "rollout/task_reward": reward + 0.1 * i,
            "rollout/reward/meteor": 0.2 * i,
            "rollout/reward/length": -0.1 * i,
            "rollout/reward/length/weight": 0.5,
            "rollout/kl": 0.01 * i,
            "rollout/kl_coeff": 0.1,
            "rollout/tokens": 100,
            "rollout/values": 0.3,
            "time/generate_s": 2.0,
        }
        for i in numbers
    ]
    updates = [{"iteration": i, "train/entropy_loss": -2.0 + 0.1 * i, "time/update_s": 3.0} for i in numbers]
    write_lines(folder / "rollout_info.jsonl", rollouts)
    write_lines(folder / "training_info.jsonl", updates)
    metrics = [{"epoch": 0, "metrics": {"m": 0.5, "d": 7.0}}, {"epoch": n_iters, "metrics": {"m": 1.0, "d": 8.0}}]
    write_lines(folder / "test_split_metrics.jsonl", metrics)
    for epoch, scores in ((0, (0, 1) * (n_prompts // 2)), (n_iters, (1, 1) * (n_prompts // 2))):
        replies = [prediction(i, f"reply {i} at {epoch}", m=score, d="n/a") for i, score in enumerate(scores)]
        write_json(folder / f"epoch_{epoch}_test_split_predictions.json", replies)
    return folder
