"""Outcomes of runs that never ran."""

import pytest

from rl4dialog.features.experiments.quality.outcomes import Outcome, Outcomes
from rl4dialog.features.experiments.quality.plan import QualityPlan

KEY, OTHER = "intent/accuracy", "lexical/meteor"
MADE_BY = {
    "commit": "abcdef",
    "is_modified": False,
    "versions": {"python": "3", "torch": "2"},
    "machine": {"system": "Linux", "cpu": "a CPU", "cpu_cores": 2, "torch_threads": 1},
    "gpus": [],
    "first_weights": "w",
    "last_weights": "v",
}


def make_outcome(label, seed, gain, last_kl=0.2):
    curve = [0.5, 0.5 + gain / 2, 0.5 + gain]
    return Outcome(
        "",
        label,
        seed,
        "0123",
        {KEY: 0.5, OTHER: 0.2},
        {KEY: 0.5 + gain, OTHER: 0.2},
        {KEY: 0.9, OTHER: 1.0},
        [0.0, last_kl / 2, last_kl],
        {KEY: curve, OTHER: [0.2, 0.2, 0.2]},
        {"tokens": [0.0, 30_000.0, 50_000.0], "conversations": [0.0, 300.0, 500.0], "seconds": [0.0, 900.0, 1800.0]},
        rewards=[0.0, gain, 2 * gain],
        tokens=[10_000, 20_000, 20_000],
        peak_mib=1000.0,
        made_by=MADE_BY,
    )


@pytest.fixture
def outcomes():
    ppo = [make_outcome("PPO", seed, 0.1 + seed / 100) for seed in range(5)]
    return Outcomes([*ppo, *(make_outcome("RLOO", seed, 0.06, 0.1) for seed in range(3))], ["rloo_seed_3"])


@pytest.fixture
def plan():
    runs = {label: {"config": "x.yml", "seeds": [0]} for label in ("PPO", "RLOO")}
    return QualityPlan.model_validate({"title": "A title", "runs": runs, "metrics": {KEY: "intent", OTHER: "METEOR"}})
