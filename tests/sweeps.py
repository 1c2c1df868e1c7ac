"""Runs and trials of sweeps, written by hand."""

import json

from rl4dialog.features.experiments.sweep.running import TrialResult


def write_run(folder, rewards, metrics=None):
    """A complete run with one iteration per reward; the metrics are evaluations of the val split, from iteration 0."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"seed": 0}')
    rows = [{"iteration": i, "rollout/kl": i / 10, "rollout/task_reward": r} for i, r in enumerate(rewards, start=1)]
    if rows:
        (folder / "rollout_info.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if metrics:
        records = [{"epoch": epoch, "metrics": values} for epoch, values in enumerate(metrics)]
        (folder / "val_split_metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        result = {"iterations": len(metrics) - 1, "val": {"before": metrics[0], "after": metrics[-1]}}
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def result(name, value=None, **others):
    return TrialResult(**{"name": name, "values": {"a.x": name}, "state": "complete", "value": value, **others})
