"""The critic as evaluations during training measure it."""

import math

from guessing import GAME
from runs import contents, lines, make_config, module_run, trained_run

run = module_run(lambda folder: make_config(folder, **GAME))


def test_measure_during_training_changes_nothing_else(run, tmp_path):
    config = make_config(tmp_path, **GAME, train_evaluation__value_rank_states=12)
    own = trained_run(tmp_path, config)
    evaluations = lines(own / "val_split_metrics.jsonl")
    ranks = [each["metrics"].pop("value_rank", None) for each in evaluations]
    assert ranks[-1] is None or -1 <= ranks[-1] <= 1
    assert any(rank is not None and math.isfinite(rank) for rank in ranks)
    for each in evaluations:
        each["metrics"].pop("value_rank_within_turns", None)
    before, after = contents(run), contents(own)
    metrics = {name for name in before if name.endswith("split_metrics.jsonl")}
    assert [name for name in before if name not in metrics and before[name] != after[name]] == []
    assert [each["metrics"] for each in lines(run / "val_split_metrics.jsonl")] == [e["metrics"] for e in evaluations]
